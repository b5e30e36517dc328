"""Figures as plain data: what functions in this room return, and what the report prints.

A figure answers one question, which its title names. It has its numbers as rows, and a Vega-Lite spec with the same
data inside; a figure without a spec is a table. The methods behind it become the Methods section of the report.

What figures read of a run: its index rows, and the flat tables of its conversations.

Rows are streamed, so that 10,000 conversations fit into memory: a figure reads them once into what it needs. Index rows
are cheap (an outcome each); a table reads the transcript of every conversation that it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from mac_runner.flat import Row
from mac_runner.results import integer, section
from mac_runner.store.rows import IndexRow, parse_row
from mac_runner.types import JsonObject

MADE_BY: Final = "mac_runner report"
"""What each file of a report says of itself, which distinguishes it from a file of somebody else's."""

Value: TypeAlias = str | float | bool | None
ColumnKind: TypeAlias = Literal["word", "count", "rate", "score", "number", "conversations"]
"""How a column is printed: words, whole numbers, rates of 1 as percent, scores with a sign, other numbers, and numbers
of conversations, such as `3, 17`, which may be links: to those of the combination that the row has as `slug`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A statistical method as the Methods section describes it."""

    statement: str
    """What was done, as whole sentences."""
    unit: str = ""
    """What is independent and was resampled, such as `game`."""
    n: int | None = None
    """How many units there are."""
    interval: str = ""
    """The kind of interval, such as `BCa bootstrap, 95 %`."""
    resamples: int = 0
    correction: str = ""
    """How several tests were corrected for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumn:
    """A column of the numbers behind a figure."""

    name: str
    """Its key in each row."""
    title: str
    """Its head in the printed table."""
    kind: ColumnKind = "word"
    unit: str = ""


def interval_columns(kind: ColumnKind, prefix: str = "") -> tuple[DataColumn, DataColumn]:
    """The columns of the ends of a 95 % interval, whose keys are `lo` and `hi`."""
    return (
        DataColumn(name=f"{prefix}lo", title="95 % from", kind=kind),
        DataColumn(name=f"{prefix}hi", title="to", kind=kind),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One question and its answer."""

    id: str
    """Unique in a report, such as `wins-by-faction`; for links."""
    title: str
    """The question that it answers."""
    caption: str
    """What is shown, on how many cases, and how to read it."""
    n: int
    unit: str
    """What `n` counts, such as `games`."""
    columns: tuple[DataColumn, ...]
    rows: tuple[dict[str, Value], ...]
    spec: JsonObject | None = None
    """Vega-Lite with its data inside; None for a table."""
    methods: tuple[Method, ...] = ()
    notes: tuple[str, ...] = ()
    """What the reader has to know to judge it, such as `too few games for an interval`."""
    is_primary: bool = False
    """Whether it is about the outcome that the experiment declares as primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A chapter of the report."""

    id: str
    title: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


def number_text(value: float) -> str:
    """A number in words: four digits, or all of those before the point."""
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


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
