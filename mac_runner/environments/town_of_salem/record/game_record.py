"""What a finished game leaves behind: the outcome for statistics, and the record for readers of its transcript.

The record knows more than any player did, the truth about claims and nights included. Nothing that decides, prompts
or plays imports this folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mac_runner.environments.town_of_salem.counts import measure
from mac_runner.environments.town_of_salem.model.events import Event, EventKind
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import GameState, Player
from mac_runner.environments.town_of_salem.record.claim_verdicts import (
    JudgedClaim,
    Said,
    Utterance,
    claim_row,
    judged_claims,
    spoken,
    written,
)
from mac_runner.environments.town_of_salem.record.nights import death_rows, night_row
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.environments.town_of_salem.rules.acts import Act
from mac_runner.environments.town_of_salem.rules.calendar import has_won
from mac_runner.environments.town_of_salem.rules.night import play_out
from mac_runner.environments.town_of_salem.seat.knowledge import GameLog
from mac_runner.environments.town_of_salem.seat.narration import sentence, stamp
from mac_runner.environments.town_of_salem.turn_taking import Span
from mac_runner.types import JsonObject, JsonValue, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord:
    """One act as it was made: the ground truth that no player sees."""

    day: int
    phase: str
    round: int
    act: Act
    is_default: bool
    moment: int
    """How many events there were before it."""
    lapsed: str = ""
    """Why an act that was legal when chosen could not happen any more; its player waited instead."""
    span: Span | None = None
    """Under information lag, from when to when its turn ran."""
    place: tuple[int, int] | None = None
    """Where options are shuffled: the place of the chosen one, and of how many."""

    @property
    def legality(self) -> str:
        """Whether the act was legal, the default, or legal no more."""
        return "lapsed" if self.lapsed else "default" if self.is_default else "legal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A reply that could not be used, and why; `turn` is the key to its words."""

    day: int
    phase: str
    round: int
    turn: str
    seat: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What is known of a game once it is over: its nights, who held which role when, and what was said of it."""

    names: tuple[str, ...]
    nights: tuple[tuple[GameState, NightState], ...]
    """Each state in which a night was about to be resolved, and the night as it was at dawn."""
    history: RoleHistory
    words: tuple[Utterance, ...]
    claims: tuple[JudgedClaim, ...]


def hindsight_of(
    state: GameState, events: Sequence[Event], acts: Sequence[ActRecord | Refusal], dusks: Iterable[GameState]
) -> Hindsight:
    """Look back on a game; each night that `dusks` led into is resolved once more, to see how it went."""
    names = tuple(player.name for player in state.players)
    nights = tuple((dusk, play_out(dusk)) for dusk in dusks)
    by_day = {dusk.day: night for dusk, night in nights}
    history = RoleHistory(events, state.players)
    said = (Said(act.act, act.moment) for act in acts if isinstance(act, ActRecord) and not act.lapsed)
    words = (*spoken(said, events, names), *written(events, by_day, names))
    claims = tuple(judged_claims(words, names, history))
    return Hindsight(names=names, nights=nights, history=history, words=words, claims=claims)


def outcome_of(
    state: GameState, task: Task, log: GameLog, seen: Hindsight, replies: Sequence[Mapping[str, int]]
) -> JsonObject:
    """How the game ended, and each player's roles, success, fate and measures.

    `replies` counts by seat what was made of the replies.
    """
    result = state.result
    if result is None:
        raise ValueError("the game is not over")
    counted = measure(state, log.events, seen.nights, seen.words, seen.claims)
    return {
        "kind": "game",
        "ending": result.ending,
        "reason": result.reason,
        "winners": list(result.winners),
        "days": state.day,
        "players": [
            {**_player(state, player, task), "measures": _measures(counted[player.seat], replies[player.seat])}
            for player in state.players
        ],
    }


def _measures(*counted: Mapping[str, int]) -> JsonObject:
    """The counts of a seat that are not 0, in one order."""
    counts = {str(key): count for row in counted for key, count in row.items() if count}
    return dict(sorted(counts.items()))


def _player(state: GameState, player: Player, task: Task) -> JsonObject:
    agent = task.agents[player.seat]
    return {
        "agent": player.name,
        "definition": agent.definition,
        "model": agent.model,
        "seat": player.seat,
        "role": player.dealt,
        "final_role": player.role,
        "faction": player.faction.value,
        "won": has_won(state, player),
        "alive": player.alive,
        "death": None if player.death is None else " and ".join(player.death.causes),
        "died_on_day": None if player.death is None else player.death.day,
    }


def record_of(
    state: GameState, log: GameLog, task: Task, acts: Sequence[ActRecord | Refusal], seen: Hindsight
) -> JsonObject:
    """The game for a reader: the cast, all events and acts, and the truth about them."""
    names = list(seen.names)
    by_day = {dusk.day: night for dusk, night in seen.nights}
    return {
        "kind": "town_of_salem",
        "lobby": list(state.lobby),
        "cast": [_cast(state, player, log, task) for player in state.players],
        "events": [_event(event, turn, names) for event, turn in zip(log.events, log.turns, strict=True)],
        "acts": [_act(act, names) if isinstance(act, ActRecord) else _refused(act, names) for act in acts],
        "nights": [night_row(dusk, night) for dusk, night in seen.nights],
        "trials": trial_rows(log.events),
        "deaths": death_rows(log.events, by_day, seen.history, names),
        "role_changes": seen.history.changes(),
        "claims": [claim_row(claim) for claim in seen.claims],
    }


def _cast(state: GameState, player: Player, log: GameLog, task: Task) -> JsonObject:
    agent = task.agents[player.seat]
    targets = (event for event in log.private[player.seat] if event.kind is EventKind.QUARRY)
    first = next(targets, None)
    return {
        "name": player.name,
        "seat": player.seat,
        "slot": state.lobby[agent.slot] if agent.slot < len(state.lobby) else None,
        "role": player.dealt,
        "target": None if first is None else first.data["target"],
        "definition": agent.definition,
        "model": agent.model,
    }


def _event(event: Event, turn: str | None, names: list[str]) -> JsonObject:
    audience: JsonValue = "all" if event.audience is None else [names[seat] for seat in sorted(event.audience)]
    return {
        "when": stamp(event),
        "day": event.day,
        "phase": event.phase.value,
        "kind": str(event.kind),
        "turn": turn,
        "audience": audience,
        "text": sentence(event),
        "data": event.data,
    }


def _act(record: ActRecord, names: list[str]) -> JsonObject:
    act = record.act
    row: JsonObject = {
        "day": record.day,
        "phase": record.phase,
        "round": record.round,
        "player": names[act.seat],
        "act": act.verb,
        "targets": [names[seat] for seat in act.targets],
        "is_default": record.is_default,
        "legality": record.legality,
    }
    if act.text:
        row["text"] = act.text
    if act.choice:
        row["choice"] = act.choice
    if record.place is not None:
        row["option"] = {"place": record.place[0], "of": record.place[1]}
    if record.lapsed:
        row["is_lapsed"] = True
        row["reason"] = record.lapsed
    if record.span is not None:
        row["simulated"] = {"started_ms": record.span.started_ms, "ended_ms": record.span.ended_ms}
    return row


def _refused(refusal: Refusal, names: list[str]) -> JsonObject:
    return {
        "day": refusal.day,
        "phase": refusal.phase,
        "round": refusal.round,
        "player": names[refusal.seat],
        "act": None,
        "targets": [],
        "is_default": False,
        "legality": "refused",
        "reason": refusal.reason,
        "turn": refusal.turn,
    }


def trial_rows(events: Iterable[Event]) -> list[JsonValue]:
    """Every trial, in order.

    `votes` are the votes on the accused when the trial opened, each with its place in the order of voting. The verdict
    is None when the game was stopped before there was one.
    """
    found: list[JsonObject] = []
    standing: dict[str, str] = {}
    for event in events:
        data = event.data
        match event.kind:
            case EventKind.VOTING_START:
                standing = {}
            case EventKind.VOTE:
                # A changed vote is a new one.
                standing.pop(event.text("player"), None)
                standing[event.text("player")] = event.text("target")
            case EventKind.UNVOTE:
                standing.pop(event.text("player"), None)
            case EventKind.TRIAL:
                found.append({"day": event.day, "accused": data["accused"], "votes": _votes(standing, data), **_OPEN})
                standing = {}
            case EventKind.BALLOTS:
                found[-1] |= data
            case EventKind.VERDICT:
                found[-1]["verdict"] = "guilty" if data["is_guilty"] else "innocent"
            case _:
                pass
    return list[JsonValue](found)


_OPEN: JsonObject = {"guilty": [], "innocent": [], "abstain": [], "verdict": None}


def _votes(standing: dict[str, str], data: JsonObject) -> list[JsonValue]:
    voters = [voter for voter, target in standing.items() if target == data["accused"]]
    return [{"voter": voter, "order": order} for order, voter in enumerate(voters, start=1)]
