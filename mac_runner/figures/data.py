"""What figures read of a run: its index rows, and the flat tables of its conversations.

Rows are streamed, so that 10,000 conversations fit into memory: a figure reads them once into what it needs. Index rows
are cheap (an outcome each); a table reads the transcript of every conversation that it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mac_runner.flat import Row
from mac_runner.store.rows import IndexRow, parse_row
from mac_runner.types import JsonObject

IsWanted: TypeAlias = Callable[[JsonObject], bool]
"""Whether the conversation of an index row is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """A run, or a combination of a grid, as figures read it."""

    name: str
    """The name of the experiment; of a combination its slug."""
    environment: str
    experiment: JsonObject
    """As it was recorded."""
    planned: int
    read_rows: Callable[[], Iterator[JsonObject]]
    """The index rows, in task order."""
    read_table: Callable[[str, IsWanted], Iterator[Row]]
    """The rows of a flat table, of the conversations that are wanted, in task order."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Of a combination, what it differs in from others."""

    def ended(self) -> Iterator[IndexRow]:
        """The conversations that have ended, in task order. Raises RunDirectoryError for a damaged row."""
        return map(parse_row, self.read_rows())


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
