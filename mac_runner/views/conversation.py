"""A conversation as a page shows it, from its transcript alone.

Every environment has the list of its events, its turns and its participants. What an environment adds, its `Scene`, is
put in between: phases, marks, facts, notes and tables. No code of a plug-in is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mac_runner.environments.reading import Thoughts, thoughts
from mac_runner.registry import results_of
from mac_runner.reports.turns import json_object, objects
from mac_runner.store.records import entry
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import (
    ConversationView,
    EventView,
    ForkOrigin,
    Member,
    Phase,
    PhaseKind,
    Scene,
    Status,
    TurnHead,
)
from mac_runner.views.perspective import is_named

_STATUSES: Mapping[JsonValue, Status] = {"finished": "finished", "failed": "failed"}
_OWN_REPLY = "Own"
"""The `when` that generators give to what an agent replied itself."""
_NO_SCENE = Scene()
_PHASE_KINDS: Mapping[str, PhaseKind] = {"day": "day", "night": "night", "round": "round"}


def whole_view(transcript: JsonObject, *, command: str = "") -> ConversationView:
    """The whole conversation: what only the truth knows too. `perspective` leaves what one seat saw.

    `command` is the run directory as commands name it. Raises RunDirectoryError for a transcript of another form.
    """
    task, record = json_object(transcript["task"]), json_object(transcript["record"])
    agents = objects(task["agents"])
    turns, results = objects(transcript["turns"]), results_of(str(transcript["environment"]))
    scene = _NO_SCENE if results is None or results.scene is None else results.scene(transcript)
    events = tuple(record_events(record, turns, scene))
    return ConversationView(
        task_id=str(task["task_id"]),
        index=entry(task, "index", int),
        environment=str(transcript["environment"]),
        status=_STATUSES.get(transcript["status"], "open"),
        seats=tuple(str(agent["agent_id"]) for agent in agents),
        members=tuple(_member(agent, scene) for agent in agents),
        phases=scene.phases or tuple(_phases(events)),
        events=events,
        turns=tuple(_heads(turns, events)),
        facts=scene.facts,
        tables=scene.tables,
        failure=str(transcript["failure"] or ""),
        note=str(transcript.get("note") or ""),
        fork=_fork(task),
        command=command,
    )


def record_events(
    record: JsonObject, turns: Iterable[JsonObject] = (), scene: Scene = _NO_SCENE
) -> Iterator[EventView]:
    """The events of a record as they are written there, with what the turns that made them and a scene add.

    Raises RunDirectoryError for another form.
    """
    # A turn may make several events: its thought belongs to the first.
    left = {str(turn["turn"]): turn for turn in turns}
    actors = {key: str(turn["agent"]) for key, turn in left.items()}
    for place, event in enumerate(objects(record.get("events", []))):
        text, audience, data = str(event["text"]), event["audience"], event.get("data")
        kind = event.get("kind", data.get("kind") if isinstance(data, dict) else None)
        key = str(event.get("turn") or "")
        # An event is about the agent of its turn where it names it: a turn may also end a night.
        actor, turn = actors.get(key, ""), left.pop(key, None)
        yield EventView(
            place=place,
            when=str(event["when"]),
            text=text,
            audience=tuple(map(str, audience)) if isinstance(audience, list) else None,
            agent=scene.agents.get(place) or (actor if is_named(actor, text) else ""),
            kind=kind if isinstance(kind, str) else "",
            turn=key,
            thought="" if turn is None else parted(turn).thought,
            notes=scene.notes.get(place, ()),
        )


def parted(turn: JsonObject) -> Thoughts:
    """What an agent thought in a turn and what it said."""
    reply = json_object(turn["reply"])
    apart = reply.get("thinking")
    return thoughts(str(reply["text"]), apart if isinstance(apart, str) else None)


def thought_parts(turn: JsonObject) -> tuple[str, ...]:
    """What an agent thought in a turn: what its engine gave apart, and what was in its reply."""
    reply = json_object(turn["reply"])
    apart = reply.get("thinking")
    parts = (apart.strip() if isinstance(apart, str) else "", thoughts(str(reply["text"])).thought)
    return tuple(filter(None, parts))


def _heads(turns: Iterable[JsonObject], events: Iterable[EventView]) -> Iterator[TurnHead]:
    made: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        made[event.turn].append(event.place)
    for turn in turns:
        key, receipt = str(turn["turn"]), json_object(turn["receipt"])
        yield TurnHead(
            key=key,
            round=entry(turn, "round", int),
            agent=str(turn["agent"]),
            result=str(receipt["kind"]),
            detail=str(receipt["detail"]),
            events=tuple(made.get(key, ())),
        )


def _phases(events: Iterable[EventView]) -> Iterator[Phase]:
    """A phase for each stretch of events of one `when`. What a seat remembers of its own replies begins none."""
    when = None
    for event in events:
        if event.when not in (when, _OWN_REPLY):
            when = event.when
            word = when.split(" ", 1)[0].lower()
            yield Phase(label=when, kind=_PHASE_KINDS.get(word, "other"), first=event.place)


def _member(agent: JsonObject, scene: Scene) -> Member:
    name = str(agent["agent_id"])
    return Member(
        name=name,
        seat=entry(agent, "seat", int),
        definition=str(agent["definition"]),
        model=str(agent["model"]),
        facts=scene.members.get(name, ()),
    )


def _fork(task: JsonObject) -> ForkOrigin | None:
    if "fork" not in task:
        return None
    fork = entry(task, "fork", dict)
    return ForkOrigin(of=str(fork["of"]), turn=str(fork["turn"]), arm=str(fork["arm"]), draw=entry(fork, "draw", int))
