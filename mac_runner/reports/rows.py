"""An index row as the reports read it.

The index is a file, and whatever stands in a file may be damaged or written by hand. A row that is not what it
should be is refused by name: a summary over guesses would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from mac_runner.errors import RunDirectoryError
from mac_runner.reports.discussions.results import DiscussionResult, parse_discussion
from mac_runner.types import JsonObject, JsonValue, TokenCount

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerResult:
    """What became of one player of one game. `role` is the one dealt, `final_role` the one held at the end."""

    definition: str
    model: str
    role: str
    final_role: str
    faction: str
    is_winner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """How one game ended."""

    ending: str
    days: int
    winners: frozenset[str]
    players: tuple[PlayerResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One ended conversation. `failure` is set iff it failed, `game` or `discussion` iff it is a finished one.

    `unusable` counts the replies that could not be used, by agent definition and cause; `failed_attempts` is how often
    it had failed before and was tried again.
    """

    task_id: str
    index: int
    failure: str | None
    turns: int
    corrections: int
    defaults: int
    tokens: TokenCount
    game: GameResult | None
    discussion: DiscussionResult | None
    unusable: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failed_attempts: int = 0

    @property
    def uncounted_turns(self) -> int:
        """Its turns, where no engine counted the tokens of any of them."""
        return 0 if self.tokens.is_counted else self.turns


def parse_row(row: JsonObject) -> IndexRow:
    """Read one row of the index. Raises RunDirectoryError naming the task and the key."""
    task_id = _get(row, "task_id", str, "an index row")
    where = f"the index row of {task_id!r}"
    status = _get(row, "status", str, where)
    if status not in {"finished", "failed"}:
        raise RunDirectoryError(f"{where}: status is {status!r}, not 'finished' or 'failed'")
    counts = _get(row, "counts", dict, where)
    tokens = _get(counts, "tokens", dict, where)
    has_failed = status == "failed"
    return IndexRow(
        task_id=task_id,
        index=_get(row, "index", int, where),
        failure=(_optional_text(row, "failure", where) or "no reason recorded") if has_failed else None,
        turns=_get(counts, "turns", int, where),
        corrections=_get(counts, "corrections", int, where),
        defaults=_get(counts, "defaults", int, where),
        tokens=TokenCount(
            prompt=_get(tokens, "prompt", int, where),
            cached=_get(_get(tokens, "timing", dict, where) if "timing" in tokens else tokens, "cached", int, where),
            completion=_get(tokens, "completion", int, where),
        ),
        game=None if has_failed else _game(row.get("outcome"), f"{where}, outcome"),
        unusable=_unusable(_get(counts, "unusable", dict, where), where) if "unusable" in counts else {},
        failed_attempts=len(_get(row, "failed_attempts", list, where)) if "failed_attempts" in row else 0,
        discussion=None if has_failed else parse_discussion(row.get("outcome"), f"{where}, outcome"),
    )


def _unusable(counted: JsonObject, where: str) -> dict[str, dict[str, int]]:
    by_definition = {name: _get(counted, name, dict, where) for name in counted}
    return {
        name: {cause: _get(causes, cause, int, where) for cause in causes} for name, causes in by_definition.items()
    }


def _game(outcome: JsonValue, where: str) -> GameResult | None:
    if not isinstance(outcome, dict) or outcome.get("kind") != "game":
        return None
    players = _get(outcome, "players", list, where)
    return GameResult(
        ending=_get(outcome, "ending", str, where),
        days=_get(outcome, "days", int, where),
        winners=frozenset(str(name) for name in _get(outcome, "winners", list, where)),
        players=tuple(_player(player, f"{where}, player {number}") for number, player in enumerate(players)),
    )


def _player(player: JsonValue, where: str) -> PlayerResult:
    if not isinstance(player, dict):
        raise RunDirectoryError(f"{where}: {player!r} is not an object")
    role = _get(player, "role", str, where)
    return PlayerResult(
        definition=_get(player, "definition", str, where),
        model=_get(player, "model", str, where),
        role=role,
        final_role=_optional_text(player, "final_role", where) or role,
        faction=_get(player, "faction", str, where),
        is_winner=_get(player, "won", bool, where),
    )


def _optional_text(source: JsonObject, key: str, where: str) -> str | None:
    return None if source.get(key) is None else _get(source, key, str, where)


def _get(source: JsonObject, key: str, kind: type[_T], where: str) -> _T:
    value = source.get(key)
    # To Python True is an int; to a count it is damage.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RunDirectoryError(f"{where}: {key!r} is {value!r}, expected {kind.__name__}; check the run with verify")
    return value
