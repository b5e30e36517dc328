"""What a finished game says for itself: the outcome for the statistics, the record for whoever reads a transcript."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mac_runner.environments.town_of_salem.acts import Act
from mac_runner.environments.town_of_salem.claims import role_claims, trials
from mac_runner.environments.town_of_salem.events import Event
from mac_runner.environments.town_of_salem.knowledge import GameLog
from mac_runner.environments.town_of_salem.narration import stamp, tell
from mac_runner.environments.town_of_salem.state import GameState, Player
from mac_runner.environments.town_of_salem.turn_taking import Span
from mac_runner.environments.town_of_salem.victory import has_won
from mac_runner.types import JsonObject, JsonValue, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecord:
    """One act as it was made, for the transcript: the ground truth that no player sees.

    `span` is set under information lag. A lapsed act was legal when it was chosen and not any more when it was its turn
    to happen; the player waited instead.
    """

    day: int
    phase: str
    round: int
    act: Act
    is_default: bool
    is_lapsed: bool = False
    span: Span | None = None


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


def record_of(state: GameState, log: GameLog, task: Task, acts: Iterable[ActRecord]) -> JsonObject:
    """The game for a reader: cast, events with who learned of each, every act, trial and role claim."""
    names = [player.name for player in state.players]
    return {
        "kind": "town_of_salem",
        "lobby": list(state.lobby),
        "cast": [
            {"name": player.name, "seat": player.seat, "role": player.dealt, "model": task.agents[player.seat].model}
            for player in state.players
        ],
        "events": [_event(event, names) for event in log.events],
        "acts": [_act(act, names) for act in acts],
        "trials": trials(log.events),
        "claims": role_claims(log.events, state.players),
    }


def _event(event: Event, names: list[str]) -> JsonObject:
    audience: JsonValue = "all" if event.audience is None else [names[seat] for seat in sorted(event.audience)]
    return {
        "when": stamp(event),
        "day": event.day,
        "phase": event.phase.value,
        "kind": event.kind.value,
        "audience": audience,
        "text": tell(event),
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
    }
    if act.text:
        told["text"] = act.text
    if act.choice:
        told["choice"] = act.choice
    if record.is_lapsed:
        told["is_lapsed"] = True
    if record.span is not None:
        told["simulated"] = {"started_ms": record.span.started_ms, "ended_ms": record.span.ended_ms}
    return told
