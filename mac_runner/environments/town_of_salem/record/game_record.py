"""FIXME Trials as a table: whose votes made them, who judged how, and what came of them.

What a finished game says for itself: the outcome for the statistics, the record for whoever reads a transcript.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mac_runner.environments.town_of_salem.game.acts import Act
from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.game.state import GameState, Player
from mac_runner.environments.town_of_salem.game.victory import has_won
from mac_runner.environments.town_of_salem.night.resolution import play_out
from mac_runner.environments.town_of_salem.record.claim_verdicts import Said, claims_told, spoken, written
from mac_runner.environments.town_of_salem.record.nights import deaths_told, night_told
from mac_runner.environments.town_of_salem.record.role_history import Lives
from mac_runner.environments.town_of_salem.turn_taking import Span
from mac_runner.environments.town_of_salem.view.knowledge import GameLog
from mac_runner.environments.town_of_salem.view.narration import sentence, stamp
from mac_runner.types import JsonObject, JsonValue, Task


def trials_told(events: Iterable[Event]) -> list[JsonValue]:
    """Every trial, in order.

    `votes` are the votes that stood for the accused when the trial opened, each with its place in the order in which
    they were given. A trial that came to no verdict, because the game was stopped, has the verdict None.
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
                standing.pop(str(data["player"]), None)
                standing[str(data["player"])] = str(data["target"])
            case EventKind.UNVOTE:
                standing.pop(str(data["player"]), None)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord:
    """One act as it was made, for the transcript: the ground truth that no player sees.

    `moment` is how many events there had been before it; `span` is set under information lag. A lapsed act was legal
    when it was chosen and not any more when it was its turn to happen, for the reason `lapsed`; the player waited
    instead.
    """

    day: int
    phase: str
    round: int
    act: Act
    is_default: bool
    moment: int
    lapsed: str = ""
    span: Span | None = None

    @property
    def legality(self) -> str:
        """How the act stands with the rules."""
        return "lapsed" if self.lapsed else "default" if self.is_default else "legal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A reply that could not be used, and why: no act, several, one that was not legal. `turn` finds its words."""

    day: int
    phase: str
    round: int
    turn: str
    seat: int
    reason: str


def outcome_of(state: GameState, task: Task) -> JsonObject:
    """How the game ended, and for each player what they were, whether they won and what became of them."""
    result = state.result
    if result is None:
        raise ValueError("the game is not over")
    return {
        "kind": "game",
        "ending": result.ending,
        "reason": result.reason,
        "winners": list(result.winners),
        "days": state.day,
        "players": [_player(state, player, task) for player in state.players],
    }


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
    state: GameState,
    log: GameLog,
    task: Task,
    acts: Sequence[ActRecord | Refusal],
    dusks: Iterable[GameState],
) -> JsonObject:
    """The game for a reader: who was what, all that happened and was done, and the truth about it.

    `dusks` are the states in which a night was about to be resolved: each is played once more, to tell how.
    """
    names = [player.name for player in state.players]
    nights = [(dusk, play_out(dusk)) for dusk in dusks]
    by_day = {dusk.day: night for dusk, night in nights}
    lives = Lives(log.events, state.players)
    said = (Said(act.act, act.moment) for act in acts if isinstance(act, ActRecord) and not act.lapsed)
    utterances = (*spoken(said, log.events, names), *written(log.events, by_day, names))
    return {
        "kind": "town_of_salem",
        "lobby": list(state.lobby),
        "cast": [_cast(state, player, log, task) for player in state.players],
        "events": [_event(event, names) for event in log.events],
        "acts": [_act(act, names) if isinstance(act, ActRecord) else _refused(act, names) for act in acts],
        "nights": [night_told(dusk, night) for dusk, night in nights],
        "trials": trials_told(log.events),
        "deaths": deaths_told(log.events, by_day, lives, names),
        "role_changes": lives.changes(),
        "claims": claims_told(utterances, tuple(names), lives),
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


def _event(event: Event, names: list[str]) -> JsonObject:
    audience: JsonValue = "all" if event.audience is None else [names[seat] for seat in sorted(event.audience)]
    return {
        "when": stamp(event),
        "day": event.day,
        "phase": event.phase.value,
        "kind": event.kind.value,
        "audience": audience,
        "text": sentence(event),
        "data": event.data,
    }


def _act(record: ActRecord, names: list[str]) -> JsonObject:
    act = record.act
    told: JsonObject = {
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
        told["text"] = act.text
    if act.choice:
        told["choice"] = act.choice
    if record.lapsed:
        told["is_lapsed"] = True
        told["reason"] = record.lapsed
    if record.span is not None:
        told["simulated"] = {"started_ms": record.span.started_ms, "ended_ms": record.span.ended_ms}
    return told


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
