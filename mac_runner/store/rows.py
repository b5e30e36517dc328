"""An index row, from its JSON to all who read it.

The index is a file, and a file may be damaged or written by hand. A row of another form is refused by name: a summary
over guesses would be worse than none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, cast

import msgspec

from mac_runner.results import parsed
from mac_runner.store.records import decode_json, encode_json, origin_of, row_id
from mac_runner.structs import convert, decode
from mac_runner.types import JsonObject, TokenCount


class _Timing(msgspec.Struct, frozen=True, gc=False):
    cached: int


class _Tokens(msgspec.Struct, frozen=True, gc=False):
    prompt: int
    completion: int
    timing: _Timing


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The turns that ended with an act, and those of them that ended with the default act."""

    turns: int
    defaults: int


class Counts(msgspec.Struct, frozen=True, gc=False):
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


class IndexRow(msgspec.Struct, frozen=True, gc=False):
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


class RecordedRow(IndexRow, frozen=True, kw_only=True):
    """An index row as a `done` frame has it; its outcome is still JSON."""

    outcome: msgspec.Raw
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: int
    traces: Any = None
    policy: dict[str, tuple[int, int]] = {}


@cache
def row_with(outcome: type) -> type[RecordedRow]:
    """A row as a `done` frame has it, whose outcome is read with the rest, as this type or null."""
    fields = [("outcome", outcome | None)]
    made = msgspec.defstruct("RowWithOutcome", fields, bases=(RecordedRow,), frozen=True, kw_only=True)
    return cast("type[RecordedRow]", made)


@dataclass(slots=True)
class DoneRow:
    """A `done` record whose index row is still JSON, and what that is read as where it fits."""

    task_id: str
    json: bytes
    kind: type[RecordedRow] = RecordedRow
    _parsed: RecordedRow | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, row: JsonObject) -> DoneRow:
        """The record of a row that is made here."""
        return cls(row_id(row), encode_json(row))

    @property
    def parsed(self) -> RecordedRow:
        """The row, decoded once for all who read on. Raises ValueError naming the key that does not fit."""
        if self._parsed is None:
            self._parsed = self._decoded()
        return self._parsed

    def _decoded(self) -> RecordedRow:
        try:
            return decode(self.json, self.kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The slower decoder takes half a surrogate pair, and the error of the conversion names the key.
            row = self.whole()
            # It also takes NaN, which is no number of a row.
            encode_json(row)
            outcome = {"outcome": msgspec.Raw(encode_json(row["outcome"]))} if "outcome" in row else {}
            return convert({**row, **outcome}, RecordedRow)

    def read(self) -> IndexRow:
        """The row with its whole outcome. Raises RunDirectoryError naming the task and the key that does not fit."""
        try:
            return decode(self.json, IndexRow)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return parse_row(self.whole())

    def whole(self) -> JsonObject:
        """The row with all that it holds."""
        row = decode_json(self.json)
        if not isinstance(row, dict):
            raise ValueError(f"'row' should be of type dict, not {row!r:.80}")
        return row


class CountedRows:
    """The counts of rows, added up."""

    def __init__(self) -> None:
        self.turns = self.corrections = self.defaults = 0
        self.unusable = defaultdict[str, Counter[str]](Counter)
        self.taken = defaultdict[str, Counter[str]](Counter)

    def add(self, counts: Counts) -> None:
        """Add those of one more row."""
        self.turns += counts.turns
        self.corrections += counts.corrections
        self.defaults += counts.defaults
        for name, causes in counts.unusable.items():
            self.unusable[name].update(causes)
        for name, found in counts.turns_by_definition.items():
            taken = self.taken[name]
            taken["turns"] += found.turns
            taken["defaults"] += found.defaults

    def as_json(self) -> JsonObject:
        """Under the names that an index row has for them."""
        return {
            "turns": self.turns,
            "corrections": self.corrections,
            "defaults": self.defaults,
            "unusable": {name: dict(causes) for name, causes in self.unusable.items()},
            "turns_by_definition": {name: dict(found) for name, found in self.taken.items()},
        }


class RowTotals:
    """What is added up over index rows for the head of a run: the counts, and the rows of failed conversations."""

    def __init__(self) -> None:
        self.counts = CountedRows()
        self.failures: dict[str, JsonObject] = {}
        """By task."""

    def add(self, row: DoneRow) -> None:
        """Add one more."""
        self.counts.add(row.parsed.counts)
        if row.parsed.status == "failed":
            self.failures[row.task_id] = row.whole()


def parse_row(row: JsonObject) -> IndexRow:
    """Read one row of the index. Raises RunDirectoryError naming the task and the key."""
    return parsed(IndexRow, row, f"the index row of {row.get('task_id')!r}")
