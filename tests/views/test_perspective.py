"""What a seat is sent of a conversation is what its own events showed, and all of that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType

import msgspec
import pytest

from mac_runner.errors import ConfigError
from mac_runner.reports.testing import objects
from mac_runner.store.testing import decode_transcript, entry
from mac_runner.structs import encode
from mac_runner.types import JsonObject
from mac_runner.view_model import (
    Arrow,
    Cell,
    ConversationView,
    EventView,
    Fact,
    ForkOrigin,
    Mark,
    Member,
    Note,
    Phase,
    Share,
    TableRow,
    TurnHead,
    ViewTable,
)
from mac_runner.views import perspective as module
from mac_runner.views.testing import perspective, transcript_text, whole_view
from tests.environments.discussion.table import everything
from tests.views.playing import ROOT, experiment, marker, transcripts, turn_view

SEATS = ("Ann", "Ben", "__proto__")
GOLDEN = sorted((ROOT / "tests" / "golden" / "runs").rglob("transcripts/*.json"))
TRUTH = "truth"


def view_of_marked_strings(chance: Random, size: int = 12) -> ConversationView:
    """A conversation in which every string says from which event or turn it is known, or that only the truth has it."""
    keys = [f"{place}/{chance.choice(SEATS)}/0/0" for place in range(size)]
    heads = [TurnHead(key, place, _agent(key), "act", f"<{key}>", ()) for place, key in enumerate(keys)]
    audiences = [chance.choice((None, *((seat,) for seat in SEATS), SEATS[:2], SEATS[1:])) for _ in range(size)]
    # Some turns make no event, some make several; some events have no turn.
    made = [chance.choice((*keys[max(0, place - 2) : place + 1], "")) for place in range(size)]
    events = tuple(
        EventView(
            place=place,
            when=f"[{place}]",
            text=f"[{place}]",
            audience=audiences[place],
            agent=_agent(made[place]) if made[place] else "",
            kind=TRUTH,
            turn=made[place],
            thought=f"<{made[place]}>" if made[place] and made[place] not in made[:place] else "",
            notes=(Note("claim", TRUTH, verdict=TRUTH),),
        )
        for place in range(size)
    )
    return ConversationView(
        task_id="t",
        index=0,
        environment="e",
        status="failed",
        seats=SEATS,
        members=tuple(Member(name, 0, TRUTH, TRUTH, _facts(chance, size)) for name in SEATS),
        phases=tuple(
            Phase("label", "day", first, _marks(chance, size), (Share(TRUTH, 1),)) for first in range(0, size, 3)
        ),
        events=events,
        turns=tuple(
            msgspec.structs.replace(head, events=tuple(place for place in range(size) if made[place] == head.key))
            for head in heads
        ),
        facts=_facts(chance, size),
        tables=tuple(_table(chance, size) for _ in range(3)),
        failure=TRUTH,
        fork=ForkOrigin(TRUTH, TRUTH, TRUTH, 1),
    )


def _agent(key: str) -> str:
    return key.split("/")[1]


def _facts(chance: Random, size: int) -> tuple[Fact, ...]:
    return tuple(Fact(text, text, event=event) for event, text in _some(chance, size))


def _marks(chance: Random, size: int) -> tuple[Mark, ...]:
    return tuple(Mark(text, text, event, "bad") for event, text in _some(chance, size))


def _some(chance: Random, size: int) -> Iterator[tuple[int | None, str]]:
    for _ in range(4):
        event = chance.choice((None, chance.randrange(size)))
        yield event, TRUTH if event is None else f"[{event}]"


def _table(chance: Random, size: int) -> ViewTable:
    def cell() -> Cell:
        (event, text), *_ = _some(chance, size)
        return Cell(text, "bad", event, text, TRUTH)

    def head() -> Cell:
        found = cell()
        return Cell("label", "bad", None, TRUTH, TRUTH) if found.event is None else found

    rows = tuple(TableRow(head(), (cell(), cell(), cell())) for _ in range(3))
    arrows = (Arrow(0, 0, 1, 1, TRUTH),)
    return ViewTable("label", "label", "matrix", "label", (head(), head(), head()), rows, arrows, TRUTH)


def strings(value: object) -> Iterator[str]:
    """Every string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


def faults(apply: Callable[..., ConversationView], chance: Random) -> Iterator[str]:
    """What a perspective shows that it should not, and what it does not show."""
    whole = view_of_marked_strings(chance)
    for seat in SEATS:
        seen = apply(whole, seat)
        sent = msgspec.to_builtins(seen)
        places = [event.place for event in whole.events if event.audience is None or seat in event.audience]
        found = [*strings(sent)]
        if TRUTH in found:
            yield "the truth"
        known = {int(match[1]) for text in found if (match := re.fullmatch(r"\[(\d+)\]", text))}
        if known != set(places):
            yield f"other events: {known} {places}"
        if {key for text in found if (match := re.fullmatch(r"<(.*)>", text)) and _agent(key := match[1]) != seat}:
            yield "a turn of another seat"
        if [event.place for event in seen.events] != places:
            yield "other events"
        if any(event.audience or event.notes for event in seen.events):
            yield "an audience"
        if any(event.turn and _agent(event.turn) != seat for event in seen.events):
            yield "the key of another seat's turn"
        if any(event.agent not in ("", seat) for event in seen.events):
            yield "who acted"
        if any(mark.tone != "plain" for phase in seen.phases for mark in phase.marks):
            yield "a tone"
        yield from _table_faults(whole, seen, set(places))
        if not {event for turn in seen.turns for event in turn.events} <= set(places):
            yield "an event of a turn that the seat did not see"
        if [turn.key for turn in seen.turns] != [turn.key for turn in whole.turns if turn.agent == seat]:
            yield "other turns"
        if places:
            yield from _lost(whole, seen, set(places))


def _table_faults(whole: ConversationView, seen: ConversationView, places: set[int]) -> Iterator[str]:
    for table in seen.tables:
        cells = [cell for row in table.rows for cell in (row.head, *row.cells)]
        if any(cell.tone != "plain" for cell in (*cells, *table.heads)):
            yield "a tone"
        if not all(len(row.cells) == len(table.heads) for row in table.rows):
            yield "a row of another length"
    shown = [_count(table, places) for table in whole.tables]
    if [count for count in shown if count[0]] != [_count(table, places) for table in seen.tables]:
        yield "cells are missing"


def _count(table: ViewTable, places: set[int]) -> tuple[int, int]:
    """How many cells and heads of rows a seat should see, and how many heads of columns."""
    rows = [cell for row in table.rows for cell in (row.head, *row.cells)]
    return sum(cell.event in places for cell in rows), sum(head.event in places for head in table.heads)


def _lost(whole: ConversationView, seen: ConversationView, places: set[int]) -> Iterator[str]:
    facts = [sum(fact.event in places for fact in member.facts) for member in whole.members]
    if facts != [len(member.facts) for member in seen.members]:
        yield "facts are missing"
    marks = sum(mark.event in places for phase in whole.phases for mark in phase.marks if _has(phase, places))
    if marks != sum(len(phase.marks) for phase in seen.phases):
        yield "marks are missing"
    if len(seen.phases) != sum(_has(phase, places) for phase in whole.phases):
        yield "phases are missing"


def _has(phase: Phase, places: set[int]) -> bool:
    return not places.isdisjoint(range(phase.first, phase.first + 3))


def test_a_seat_is_sent_what_its_events_showed_and_all_of_it() -> None:
    for number in range(40):
        assert [*faults(perspective, Random(number))] == [], number


MUTANTS = (
    ("if event.audience is not None and seat not in event.audience:", "if False:"),
    ("facts=_known(member.facts, known)", "facts=member.facts"),
    ("facts=_known(view.facts, known)", "facts=view.facts"),
    ("if fact.event in known)", "if fact.event is None or fact.event in known)"),
    ("if fact.event in known)", "if fact.event is not None)"),
    ("Member(name=member.name,", "Member(model=member.model, name=member.name,"),
    ("Member(name=member.name,", "Member(definition=member.definition, name=member.name,"),
    ("thought=event.thought if is_own else", "thought=event.thought if event else"),
    ("turn=event.turn if is_own else", "turn=event.turn if event else"),
    ("is_own = event.turn in own", "is_own = event.agent != ''"),
    ("if event.agent == seat or is_named(event.agent, event.text) else", "if event.agent else"),
    ('reach="" if event.audience is None', 'audience=event.audience, reach="" if event.audience is None'),
    ("text=event.text,", "text=event.text, notes=event.notes,"),
    ("text=event.text,", "text=event.text, kind=event.kind,"),
    ("seat=seat,\n", "seat=seat, failure=view.failure,\n"),
    ("seat=seat,\n", "seat=seat, fork=view.fork,\n"),
    ("if mark.event in known)", ")"),
    ("Mark(mark.symbol, mark.text, mark.event)", "mark"),
    ("first=places[at], marks=marks)", "first=places[at], marks=marks, standing=this.standing)"),
    ("and places[at] < beyond:", ":"),
    ("for turn in view.turns if turn.key in own)", "for turn in view.turns)"),
    ("in turn.events if event in known)", "in turn.events)"),
    ("if cell.event in known else _BLANK", "if cell.event is not None else _BLANK"),
    ("if cell.event in known else _BLANK", "if cell.event is None or cell.event in known else _BLANK"),
    ("return Cell(cell.text, event=cell.event, title=cell.title) if", "return cell if"),
    ("return Cell(head.text, event=head.event) if", "return head if"),
    ("if head.event is None or head.event in known else", "if head else"),
    ("if row.head.event in known or any", "if any"),
    ("heads, rows)", "heads, rows, table.arrows)"),
    ("heads, rows)", "heads, rows, (), table.note)"),
    ("tuple(compress(seen, columns))", "tuple(seen)"),
)


def test_the_property_finds_every_planted_leak() -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    missed = []
    for old, new in MUTANTS:
        assert source.count(old) == 1, old
        mutant = ModuleType("mutant")
        exec(compile(source.replace(old, new), "mutant", "exec"), mutant.__dict__)
        if not any(True for number in range(12) for _ in faults(mutant.perspective, Random(number))):
            missed.append(new)

    assert missed == []


def played() -> Iterator[JsonObject]:
    """Conversations of every environment: recorded ones, and some that are played now."""
    for path in GOLDEN:
        yield decode_transcript(path.read_bytes())
    yield from transcripts(experiment("experiments/tos_100games.yaml", "game.calendar.max_days=3"), "heuristic")
    lagging = experiment("experiments/tos_information_lag.yaml", "game.calendar.max_days=2")
    yield from transcripts(lagging, "random", turns=150)
    yield from transcripts(everything(), "clumsy", count=3)
    yield from transcripts(experiment("experiments/echo.yaml"), "echo")
    for name in ("werewolf", "negotiation", "twenty_questions"):
        yield from transcripts(experiment(f"examples/{name}.yaml"))


def test_nothing_of_a_hidden_event_or_of_another_seats_turn_is_in_what_a_seat_is_sent() -> None:
    for transcript in played():
        whole = whole_view(transcript)
        for seat in whole.seats:
            sent = encode(perspective(whole, seat)).decode()
            seen = {event.text for event in whole.events if event.audience is None or seat in event.audience}
            shown = "\n".join(seen)
            hidden = {event.text for event in whole.events if event.text not in shown}

            assert not [text for text in hidden if _quoted(text) in sent], (whole.task_id, seat)
            assert not [key for key in _keys(whole) if _agent(key) != seat and marker(key) in sent]
            assert not [key for key in _keys(whole) if _agent(key) != seat and _quoted(key) in sent]


def _quoted(text: str) -> str:
    return encode(text).decode()[1:-1]


def _keys(view: ConversationView) -> list[str]:
    return [turn.key for turn in view.turns]


def test_what_a_seat_is_sent_does_not_change_with_what_it_did_not_see() -> None:
    for transcript in played():
        view = whole_view(transcript)
        for seat in view.seats:
            other = whole_view(_with_other_secrets(transcript, seat))

            assert perspective(other, seat) == perspective(view, seat), (view.task_id, seat)


def _with_other_secrets(transcript: JsonObject, seat: str) -> JsonObject:
    """The transcript with other texts in events that a seat did not see and in turns that are not its own."""
    changed = decode_transcript(json.dumps(transcript).encode())
    for event in objects(entry(changed, "record", dict).get("events", [])):
        if event["audience"] != "all" and seat not in entry(event, "audience", list):
            event["text"] = "Nothing at all."
    for turn in objects(changed["turns"]):
        if turn["agent"] != seat:
            turn["reply"] = {
                **entry(turn, "reply", dict),
                "text": "<thinking>Other.</thinking> Words.",
                "thinking": "No.",
            }
            turn["receipt"] = {"kind": "act", "detail": "other"}
    for agent in objects(entry(changed, "task", dict)["agents"]):
        agent.update(definition="other", model="other")
    return changed


def test_a_seat_is_not_sent_why_its_turn_ended_the_conversation() -> None:
    """The code of an environment may have said it, and know more."""
    transcript = transcripts(experiment("experiments/echo.yaml"), "echo")[0]
    turn = objects(transcript["turns"])[-1]
    turn["receipt"] = {"kind": "failure", "detail": TRUTH}
    seat, key = str(turn["agent"]), str(turn["turn"])
    failed: JsonObject = {**transcript, "status": "failed", "failure": TRUTH}

    whole = whole_view(failed)
    assert TRUTH in encode(whole).decode()
    assert TRUTH not in encode(perspective(whole, seat)).decode()
    assert TRUTH not in encode(turn_view(failed, perspective(whole, seat), key, None)).decode()
    assert TRUTH in transcript_text(failed)
    assert TRUTH not in transcript_text(failed, seat=seat)


def test_a_seat_that_was_not_there_is_refused_with_those_that_were() -> None:
    transcript = transcripts(experiment("experiments/echo.yaml"), "echo")[0]

    with pytest.raises(ConfigError, match=r"'Nobody' .*: echo_000, echo_001"):
        perspective(whole_view(transcript), "Nobody")


def games() -> Iterator[JsonObject]:
    """Games with jails, seances and other talk of authors without a name."""
    for lobby in ("ranked-15", "social-10", "classic-10"):
        one = experiment("experiments/tos_100games.yaml", f"game.lobby={lobby}", "game.calendar.max_days=3")
        for policy in ("heuristic", "random"):
            yield from transcripts(one, policy)
    yield from transcripts(everything(), "clumsy", count=3)


def shown(view: ConversationView) -> Iterator[tuple[str, int, str]]:
    """Every text that an event showed, with what is named beside it."""
    for member in view.members:
        for fact in member.facts:
            if fact.event is not None:
                yield f"{member.name} {fact.text}", fact.event, fact.name
    for fact in view.facts:
        if fact.event is not None:
            yield fact.text, fact.event, fact.name
    for phase in view.phases:
        for mark in phase.marks:
            if mark.event is not None:
                yield mark.text, mark.event, mark.symbol
    for table in view.tables:
        # A seat gets heads without their titles.
        heads = [(head.text, head.event) for head in (*table.heads, *(row.head for row in table.rows))]
        cells = [(f"{cell.text} {cell.title}", cell.event) for row in table.rows for cell in row.cells]
        yield from ((text, event, table.name) for text, event in (*heads, *cells) if event is not None)


@pytest.mark.ci
def test_a_scene_names_no_agent_that_its_event_does_not_name() -> None:
    found: set[tuple[str, ...]] = set()
    count = 0
    for transcript in games():
        view = whole_view(transcript)
        name = re.compile(rf"\b({'|'.join(map(re.escape, view.seats))})\b")
        for text, place, where in shown(view):
            event = view.events[place]
            # What one alone learned may be about itself: "You are the Doctor."
            known = {*name.findall(event.text), *(event.audience or () if len(event.audience or ()) == 1 else ())}
            found |= {(where, each, text, event.text[:120]) for each in name.findall(text) if each not in known}
            count += 1

    assert count > 500
    assert sorted(found) == []
