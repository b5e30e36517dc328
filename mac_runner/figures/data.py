"""What figures read of a run: its index rows, and the flat tables of its conversations.

Rows are streamed, so that 10,000 conversations fit into memory: a figure reads them once into what it needs. Index rows
are cheap (an outcome each); a table reads the transcript of every conversation that it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mac_runner.flat import Row
from mac_runner.results import integer, section
from mac_runner.store.rows import IndexRow, parse_row
from mac_runner.types import JsonObject

IsWanted: TypeAlias = Callable[[JsonObject], bool]
"""Whether the conversation of an index row is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """A run, or a combination of a grid, as figures read it."""

    name: str
    """What it is called in a figure of several runs."""
    slug: str | None = ""
    """The name of a combination in its grid; empty for a run of its own, None for one of two runs."""
    environment: str
    experiment: JsonObject
    """As it was recorded."""
    summary: JsonObject
    """What came of its conversations, as in `summary.json`."""
    read_rows: Callable[[], Iterator[JsonObject]]
    """The index rows, in task order."""
    read_table: Callable[[str, IsWanted], Iterator[Row]]
    """The rows of a flat table, of the conversations that are wanted, in task order."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Of a combination, what it differs in from others."""

    def ended(self) -> Iterator[IndexRow]:
        """The conversations that have ended, in task order. Raises RunDirectoryError for a damaged row."""
        return map(parse_row, self.read_rows())

    def count(self, key: str) -> int:
        """How many conversations are `planned`, `finished` or `failed`."""
        return integer(section(self.summary, "conversations").get(key)) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Several runs, or the combinations of a grid, to be compared."""

    runs: Sequence[RunData]
    baseline: str | None = None
    """The name of the run that the others are compared with; None for the first."""
    primary: str | None = None
    """The figure that the study is about, as the experiment declares it."""

    @property
    def reference(self) -> RunData:
        """The run that the others are compared with."""
        return next((run for run in self.runs if run.name == self.baseline), self.runs[0])
