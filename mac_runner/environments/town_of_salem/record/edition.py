"""Games that an earlier version played: what their replies must still lead to.

Edition 2 changed what players read, how their replies are taken and how events are worded. A reply of edition 1 is
taken as it was then (`Options.edition`), so its game is replayed move by move. Its prompts, its wordings and what is
measured in it are not those of this version, and are not compared.
"""

from __future__ import annotations

from typing import Final

from mac_runner.registry import Earlier
from mac_runner.types import JsonObject, JsonValue

_OUTCOME: Final = ("kind", "ending", "reason", "winners", "days")
_PLAYER: Final = (
    *("agent", "definition", "model", "seat", "role", "final_role", "faction"),
    *("won", "alive", "death", "died_on_day"),
)
_EVENT: Final = ("day", "phase", "kind", "audience", "data")
_ACT: Final = (
    *("day", "phase", "round", "player", "act", "targets", "is_default"),
    *("legality", "text", "choice", "is_lapsed", "simulated", "turn"),
)
_RECORD: Final = ("kind", "lobby", "cast", "nights", "trials", "deaths", "role_changes")


def essence(transcript: JsonObject) -> JsonObject:
    """Who played what, every move and event, and how the game ended. Raises ValueError for another form."""
    record, outcome = _object(transcript.get("record")), transcript.get("outcome")
    ending = None if outcome is None else _object(outcome)
    players: list[JsonValue] = [] if ending is None else [_part(one, _PLAYER) for one in _list(ending.get("players"))]
    return {
        "task": transcript.get("task"),
        "status": transcript.get("status"),
        "outcome": None if ending is None else {**_part(ending, _OUTCOME), "players": players},
        "record": _part(record, _RECORD),
        "events": [_part(event, _EVENT) for event in _list(record.get("events"))],
        "acts": [_part(act, _ACT) for act in _list(record.get("acts"))],
        "turns": [_turn(_object(turn)) for turn in _list(transcript.get("turns"))],
    }


def _turn(turn: JsonObject) -> JsonValue:
    return [turn.get("turn"), turn.get("reply"), _object(turn.get("receipt")).get("kind")]


def _part(value: JsonValue, keys: tuple[str, ...]) -> JsonObject:
    found = _object(value)
    return {key: found[key] for key in keys if key in found}


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("it is not the transcript of a game")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise ValueError("it is not the transcript of a game")
    return value


EARLIER: Final = Earlier(
    key="edition",
    reason=(
        "games of edition 1 can be read, shown and verified, but not played: this version asks and reads players "
        "differently; go on with the version that began the run, or start a new run without this key, with --out DIR"
    ),
    essence=essence,
    note=(
        "the games are of edition 1, of an earlier version: every move was replayed and compared; prompts and wordings "
        "were not, since this version has others"
    ),
)
