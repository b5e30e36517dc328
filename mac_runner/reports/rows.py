"""An index row as the reports read it.

The index is a file, and a file may be damaged or written by hand. A row of another form is refused by name: a summary
over guesses would be worse than none.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mac_runner.results import parsed
from mac_runner.store.fork import origin_of
from mac_runner.structs import decode
from mac_runner.types import JsonObject, TokenCount


class _Timing(msgspec.Struct, frozen=True):
    cached: int


class _Tokens(msgspec.Struct, frozen=True):
    prompt: int
    completion: int
    timing: _Timing


class Taken(msgspec.Struct, frozen=True):
    """The turns that ended with an act, and those of them that ended with the default act."""

    turns: int
    defaults: int


class Counts(msgspec.Struct, frozen=True):
    """What was counted over the replies; `unusable` has those without use, by agent definition and cause.

    `uncounted_turns` are those without tokens beside others that have some.
    """

    turns: int
    corrections: int
    defaults: int
    tokens: _Tokens
    unusable: dict[str, dict[str, int]] = {}
    uncounted_turns: int = 0
    turns_by_definition: dict[str, Taken] = {}


class IndexRow(msgspec.Struct, frozen=True):
    """One ended conversation. `failed_attempts` are those before the one that ended so.

    `agents` has the definition, model and seat of each agent, where the outcome names agents.
    """

    task_id: str
    index: int
    status: Literal["finished", "failed"]
    counts: Counts
    failure: str | None = None
    outcome: Any = None
    group: int | None = None
    fork_of: str | None = None
    failed_attempts: list[Any] = []
    agents: dict[str, tuple[str, str, int]] = {}
    metrics: dict[str, bool | int | float | None] = {}
    metric_errors: dict[str, str] = {}
    reward_errors: dict[str, str] = {}

    @property
    def number(self) -> int:
        """Its number in the plan, from 0; where deals are played several times, that of its deal."""
        return self.index if self.group is None else self.group

    @property
    def cluster(self) -> int | str | None:
        """What it shares with conversations that are not independent of it (`intervals.one_cluster`).

        This is its deal, or the conversation that it is a fork of; None for one by itself.
        """
        if self.group is not None:
            return self.group
        return None if self.fork_of is None else origin_of(self.fork_of)

    @property
    def result(self) -> JsonObject | None:
        """Its outcome; None where it failed, and where its outcome is no object."""
        return self.outcome if self.reason is None and isinstance(self.outcome, dict) else None

    @property
    def reason(self) -> str | None:
        """Why it failed; None for a finished one."""
        return None if self.status == "finished" else self.failure or "no reason recorded"

    @property
    def tokens(self) -> TokenCount:
        """What the engines counted."""
        found = self.counts.tokens
        return TokenCount(prompt=found.prompt, cached=found.timing.cached, completion=found.completion)

    @property
    def uncounted_turns(self) -> int:
        """Its turns whose tokens no engine counted."""
        return self.counts.uncounted_turns if self.tokens.is_counted else self.counts.turns


class RawRow(IndexRow, frozen=True):
    """An index row whose outcome is still JSON."""

    outcome: msgspec.Raw = msgspec.Raw(b"null")


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


def read_row(data: bytes) -> RawRow:
    """Read an index row from its JSON. Raises msgspec.DecodeError or UnicodeDecodeError; `parse_row` says why."""
    return decode(data, RawRow)


def kind_of(outcome: msgspec.Raw) -> str | None:
    """The kind of an outcome that is still JSON; None where it is not an object."""
    return decode(outcome, _Kind).kind if bytes(memoryview(outcome)[:1]) == b"{" else None


def parse_row(row: JsonObject) -> IndexRow:
    """Read one row of the index. Raises RunDirectoryError naming the task and the key."""
    return parsed(IndexRow, row, f"the index row of {row.get('task_id')!r}")
