"""Measures: what is counted of outcomes, declared once and seen everywhere; and how an environment shows its results.

A `Measure` says what its cases are, what they are told apart by, and how all of it is called. `Counted` keeps a
statistic for each of its keys and writes them into the summary, at the measure's `place`. All else is read from there
as rows: printed tables (`measure_tables`), the figures of a grid (`measure_figures`), those of a report
(`figures/measures.py`).

The answers to one question go together, in one conversation and over several. So an interval goes by question: it
counts as as many cases as it is worth (`intervals.ClusteredRate`). Where all cases are of one question, or of none, it
goes by conversation; there the conversations of one deal are a cluster (`intervals.one_cluster`).

An environment names a `ResultsSpec` in its `SPEC`. The reports hand it every outcome of its kind and put its `report`
into the summary. From the summary alone they print its `lines` and `tables` and compare its `figures` over a grid.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.intervals import ClusteredDifference, ClusteredMean, ClusteredRate, Interval
from mac_runner.results import (
    NO_COLUMNS,
    NOUN,
    RATE_HEADS,
    AgentColumns,
    Columns,
    Declared,
    Export,
    ExportColumn,
    Figure,
    PlayedCombination,
    Results,
    StanceSpec,
    Table,
    Truth,
    count_text,
    decimal_text,
    ends,
    figure,
    interval_text,
    points_text,
    rate_texts,
    signed_text,
)
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import Scene

NUMBERS: Final[dict[str, int]] = {}
"""A number for each question that this process has read of, so that a rate keeps 4 bytes a count and no text."""
Keys: TypeAlias = tuple[str | int, ...]
"""What cases are told apart by: one for each `{name}` in the place of their measure."""


class Share(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How many of how many cases; `[1, 3]` in an outcome."""

    count: int
    cases: int

    def __post_init__(self) -> None:
        """Refuses what cannot be counted."""
        if not 0 <= self.count <= self.cases:
            raise ValueError(f"{self.count} of {self.cases} cases cannot be")

    def __add__(self, other: Share) -> Share:
        """The cases of both."""
        return Share(self.count + other.count, self.cases + other.cases)


class Sum(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What how many cases come to."""

    total: int
    cases: int

    def __add__(self, other: Sum) -> Sum:
        """The cases of both."""
        return Sum(self.total + other.total, self.cases + other.cases)


S = TypeVar("S", ClusteredRate, ClusteredMean, ClusteredDifference)


class Clusters(Generic[S]):
    """Counts of conversations added up by question, in as many columns as were asked for; the last counts the cases.

    As long as all cases are of one question, each of its conversations is a cluster. Its memory grows with the number
    of questions, and not with that of conversations.
    """

    def __init__(self, columns: int, sums: Callable[[], S], typecode: Literal["I", "q"] = "I") -> None:
        self._columns = columns
        self._cells = array(typecode)
        """The counts of each question, at its number."""
        self._alone: S = sums()
        """The conversations without a question."""
        self._question: str | None = None
        self._of_one: S | None = sums()
        """Each conversation; None from a second question on, when they are not needed any more."""

    def add(self, question: str | None, *counts: int) -> None:
        """Add the counts of one conversation with a case."""
        if question is None:
            self._of_one = None
            self._alone.add(*counts)
            return
        number = NUMBERS.get(question)
        if number is None:
            number = NUMBERS[question] = len(NUMBERS)
        cells, place = self._cells, number * self._columns
        if place >= len(cells):
            cells.frombytes(bytes(cells.itemsize * (place + self._columns - len(cells))))
        for count in counts:
            if count:
                cells[place] += count
            place += 1
        if self._of_one is not None:
            if self._question not in (None, question):
                self._of_one = None
            else:
                self._question = question
                self._of_one.add(*counts)

    def summed(self) -> S:
        """The sums over the clusters."""
        if self._of_one is not None:
            return self._of_one
        found = copy(self._alone)
        for counts in zip(*(self._cells[number :: self._columns] for number in range(self._columns)), strict=True):
            if counts[-1]:
                found.add(*counts)
        return found


class Statistic(Protocol):
    """What a measure keeps for one of its keys."""

    def add(self, counts: Any, question: str | None) -> None:
        """Add the cases of one conversation about `question`."""
        ...

    def report(self) -> JsonValue | UnsetType:
        """What the summary has of it; `UNSET` where it has no place there."""
        ...


@dataclass(slots=True)
class Rate:
    """Cases, those that count, and how many conversations they come from."""

    n: int = 0
    count: int = 0
    conversations: int = 0
    noun: str = "conversations"
    """What the summary calls them."""
    _clusters: Clusters[ClusteredRate] = field(default_factory=lambda: Clusters(2, ClusteredRate))

    def add(self, counts: Share, question: str | None) -> None:
        """Add the cases of one conversation about `question`."""
        self.include(counts.count, counts.cases, question)

    def include(self, count: int, cases: int, question: str | None) -> None:
        """The same, in numbers."""
        if cases:
            self.n += cases
            self.count += count
            self.conversations += 1
            self._clusters.add(question, count, cases)

    def clustered(self) -> ClusteredRate:
        """The rate by question, or by conversation where there is one question alone."""
        return self._clusters.summed()

    def report(self) -> JsonObject:
        """The counts, the rate, its interval, and the number of clusters that this goes by."""
        clustered = self.clustered()
        return {
            "n": self.n,
            self.noun: self.conversations,
            "clusters": clustered.clusters,
            "count": self.count,
            "rate": round(self.count / self.n, 4) if self.n else None,
            "interval": ends(clustered.interval),
        }


@dataclass(slots=True)
class Mean:
    """What cases come to on average, which may be below 0, and how many conversations they come from."""

    scale: int = 1
    """What totals are divided by."""
    noun: str = "conversations"
    """What the summary calls them."""
    _conversations: int = 0
    _clusters: Clusters[ClusteredMean] = field(default_factory=lambda: Clusters(2, ClusteredMean, "q"))

    def add(self, counts: Sum, question: str | None) -> None:
        """Add the cases of one conversation about `question`."""
        if counts.cases:
            self._conversations += 1
            self._clusters.add(question, counts.total, counts.cases)

    def report(self) -> JsonObject:
        """The total, the mean, its interval, and the number of clusters that this goes by."""
        found = self._clusters.summed()
        interval, total = found.interval, int(found.total)
        scaled = None if interval is None else Interval(interval.lo / self.scale, interval.hi / self.scale)
        return {
            "n": found.n,
            self.noun: self._conversations,
            "clusters": found.clusters,
            "total": total,
            "mean": round(total / found.n / self.scale, 4) if found.n else None,
            "interval": ends(scaled),
        }


class Row(NamedTuple):
    """What the summary has of a measure for one of its keys."""

    keys: tuple[str, ...]
    record: JsonObject


class By(NamedTuple):
    """What cases are told apart by: the head of its column, and words for keys, in their order, for reports."""

    head: str
    words: Mapping[str, str] = {}
    short: Mapping[str, str] = {}
    """Words for the columns of a heat map."""
    last: str = ""
    """The key that stands behind all others."""
    is_spaced: bool = False
    """Whether an underscore in a key stands for a space."""

    def said(self, key: str) -> str:
        """A key in words."""
        return self.words.get(key) or (key.replace("_", " ") if self.is_spaced else key)

    def place(self, key: str) -> int:
        """Where a key stands; those of one place stay in the order of the summary."""
        if key in self.words:
            return [*self.words].index(key)
        return len(self.words) + (key == self.last)


class Cells(NamedTuple):
    """The columns of numbers of a printed table, and their cells from the record of a row."""

    heads: tuple[str, ...]
    of: Callable[[JsonObject], tuple[str, ...]]


def counts_of(record: JsonObject, *keys: str) -> tuple[str, ...]:
    """Cells of counts."""
    return tuple(count_text(record.get(key)) for key in keys)


RATES: Final = Cells(
    ("n", "clusters", "count", *RATE_HEADS),
    lambda record: (*counts_of(record, "n", "clusters", "count"), *rate_texts(record)),
)


def _averages(text: Callable[[JsonValue], str], head: str) -> Cells:
    """The cells of a mean or a score, written by `text`."""
    return Cells(
        ("n", "clusters", head, "95% interval"),
        lambda record: (
            *counts_of(record, "n", "clusters"),
            text(record.get(head)),
            interval_text(record.get("interval"), text),
        ),
    )


Kind: TypeAlias = Literal["rate", "score", "mean", "lift"]
"""What a value is: a part of 1, a score from −1 to 1, a number for each case, a rate less that of chance."""
CELLS: Final[Mapping[Kind, Cells]] = {
    "rate": RATES,
    "score": _averages(signed_text, "score"),
    "mean": _averages(decimal_text, "mean"),
    "lift": _averages(points_text, "mean"),
}
"""How values are printed."""


class Listing(NamedTuple):
    """A printed table of the rows of a measure. Those of one title are one table."""

    title: str = ""
    """Empty for that of the measure."""
    heads: tuple[str, ...] = ()
    """Of its columns of words; empty for what the measure calls them."""
    label: Callable[[Row], tuple[str, ...] | None] = lambda row: row.keys
    """The words of a row; None for one that is left out."""
    cells: Cells | None = None
    """None for those of what its values are."""
    note: str = ""
    """What is said behind the title."""
    order: tuple[str, ...] = ()
    """What rows are sorted by, in place of the order of the summary."""
    when: Callable[[JsonObject], bool] = lambda _summary: True
    """From the summary, whether it is printed."""


MakesTables: TypeAlias = Callable[[JsonObject], Iterable[Table | str]]
"""Tables of another shape, and notes, from the summary."""


class Drawn(NamedTuple):
    """A figure of the report, of the rows of a measure. Those of one id are one figure.

    What is empty is as the measure has it.
    """

    id: str = ""
    """Empty for the place of the measure, without what cases are told apart by."""
    chart: Literal["forest", "rounds", "heat", "shares", "table"] = "forest"
    by: tuple[str, ...] = ()
    """Its columns of words. A forest: the labels, then the series; rounds: the series, then the round; a heat map: its
    rows, then its columns; shares: the bars, then their parts. With `run` first it compares runs.
    """
    heads: tuple[str, ...] = ()
    """What these columns are called."""
    title: str = ""
    """The question that it answers."""
    caption: str = ""
    """May have `{n}` in it."""
    axis: str = ""
    """What the values are."""
    chapter: str = ""
    label: Callable[[str, Row], str] = lambda words, _row: words
    """From the words of the first column what it says."""
    order: tuple[str, ...] = ()
    """What rows are sorted by, in place of the order of the summary."""
    sort: Callable[[Row], Any] | None = None
    """What they are sorted by then."""
    only: Callable[[tuple[str, ...]], bool] = lambda _keys: True
    """Which keys it has."""
    least: int = 1
    """With fewer labels, or rounds, there is nothing to compare."""
    ends_with: tuple[str, str, str] = ("", "", "")
    """Of rounds: what their own series is called, and the place and the name of one more point behind the last."""
    reference: str = ""
    """Of rounds: the series that others are compared with."""
    is_whole: bool = False
    """Whether its rows are parts of a whole, and `n` is their sum; else the most cases of any row."""


class InGrid(NamedTuple):
    """A figure that the combinations of a grid are compared by."""

    name: str
    is_headline: bool = False
    """Whether it is in the printed table of a grid, and at the head of the page of each run."""
    is_printed: bool = False
    """Whether it is in a second printed table, where it is no headline."""
    words: str = ""
    """What it is called in a sentence: `right first answers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is counted, of what, by what, and how it is shown."""

    place: str
    """In the summary, with what its cases are told apart by in braces: `discussions.accuracy_by_round.{round}`."""
    cases: Callable[[Any], Iterable[tuple[Keys, Any]]] = lambda _outcome: ()
    """From an outcome its cases by key, as what its statistic adds up; cases of one key add up."""
    reads: Callable[[JsonObject], Sequence[Row]] | None = None
    """From a summary its rows, where these are not just what stands at its place."""
    title: str = ""
    """The question that it answers."""
    caption: str = ""
    chapter: str = ""
    """Where a report has its figures."""
    value: str = "rate"
    """What its value is called: `right`."""
    unit: str = "cases"
    """What its cases are, several of them."""
    kind: Kind = "rate"
    statistic: Callable[[Keys], Statistic] | None = None
    """None for a `Rate` of rates, whose cases are a `Share`, and else for a `Mean`, whose cases are a `Sum`."""
    by: Mapping[str, By] = field(default_factory=dict)
    """The names in braces that have a head or words of their own."""
    n: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda _keys: ("n",)
    """The counts of a row that add up to its cases."""
    tables: Sequence[Listing | MakesTables] | None = None
    """None for one of all rows."""
    figures: Sequence[Drawn] | None = None
    """None for a forest of all rows."""
    grid: Callable[[tuple[str, ...]], InGrid | None] | None = None
    """None for all rows, each under its place in the summary."""
    compared: Mapping[tuple[str, ...], Literal["share", "score", "balance"]] = field(default_factory=dict)
    """The keys whose figures are compared in pairs with those of a baseline, and what they are a ratio of."""
    pair: Callable[[Keys, Any], tuple[int, int]] = lambda _keys, share: (share.count, share.cases)
    """What the cases of one conversation then come to, and how many they are."""
    cluster: str = "conversation"
    """What intervals go by, and `method` how."""
    method: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What its cases are told apart by."""
        return tuple(part[1:-1] for part in self.place.split(".") if part[0] == "{")

    def path(self, keys: Keys) -> list[str]:
        """The place of a key in the summary."""
        left = iter(keys)
        return [str(next(left)) if part[0] == "{" else part for part in self.place.split(".")]

    def place_of(self, keys: Keys) -> list[tuple[int, str | int]]:
        """Where keys stand in the summary."""
        return [(self.told(name).place(str(key)), key) for name, key in zip(self.names, keys, strict=True)]

    def told(self, name: str) -> By:
        """What is known of a name in braces."""
        return self.by.get(name) or By(name)

    def rows(self, summary: JsonObject, order: Sequence[str] = ()) -> list[Row]:
        """Its rows from a summary, sorted by some of its names."""
        rows = self._at_place(summary) if self.reads is None else self.reads(summary)
        sorts = []
        for at, name in ((self.names.index(name), name) for name in order):
            keys = sorted(dict.fromkeys(row.keys[at] for row in rows), key=self.told(name).place)
            sorts.append((at, {key: place for place, key in enumerate(keys)}))
        return sorted(rows, key=lambda row: [places[row.keys[at]] for at, places in sorts])

    def _at_place(self, summary: JsonObject) -> list[Row]:
        rows = [Row((), summary)]
        for part in self.place.split("."):
            found = [
                (Row((*row.keys, key), row.record) if part[0] == "{" else row, value)
                for row in rows
                for key, value in row.record.items()
                if part[0] == "{" or key == part
            ]
            rows = [Row(row.keys, value) for row, value in found if isinstance(value, dict)]
        return rows

    def counter(self, keys: Keys) -> Statistic:
        """What is kept for a key."""
        if self.statistic is not None:
            return self.statistic(keys)
        return Rate() if self.kind == "rate" else Mean()

    def in_grid(self, keys: tuple[str, ...]) -> InGrid | None:
        """The figure of a row in a grid."""
        if self.grid is not None:
            return self.grid(keys)
        return InGrid(".".join(self.path(keys)), is_headline=True)

    def figure(self, row: Row, shown: InGrid) -> Figure | None:
        """A row as a figure of a grid."""
        found = figure(row.record, cases=self.n(row.keys), is_headline=shown.is_headline)
        return found if found is None else found._replace(is_printed=shown.is_printed)


class Counted:
    """Counts outcomes one by one; its memory follows the number of keys and of questions."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self.kept: dict[str, dict[Keys, Any]] = {measure.place: {} for measure in measures}
        """The statistics of each measure, by its place and the keys."""
        self._measures = [(measure, self.kept[measure.place]) for measure in measures]

    def add(self, outcome: Any, question: str | None = None) -> None:
        """Count the outcome of one conversation, about `question` where several may be about one."""
        for measure, kept in self._measures:
            found: dict[Keys, Any] = {}
            for keys, counts in measure.cases(outcome):
                found[keys] = found[keys] + counts if keys in found else counts
            for keys, counts in found.items():
                if (statistic := kept.get(keys)) is None:
                    statistic = kept[keys] = measure.counter(keys)
                statistic.add(counts, question)

    def report(self, report: JsonObject | None = None) -> JsonObject:
        """All statistics at their places in the summary, beside what is there already.

        Keys stand in their order, and what has a name stands as it was declared.
        """
        report = {} if report is None else report
        ranks: dict[tuple[str, ...], int] = {}

        def place_of(found: tuple[Measure, Keys]) -> list[tuple[int, int, str | int]]:
            measure, keys = found
            parts, places = measure.place.split("."), iter(measure.place_of(keys))
            return [
                (ranks.setdefault((*parts[:at],), len(ranks)), *(next(places) if part[0] == "{" else (0, "")))
                for at, part in enumerate(parts, 1)
            ]

        found = [(measure, keys) for measure, kept in self._measures for keys in kept]
        for measure, keys in sorted(found, key=place_of):
            if (record := self.kept[measure.place][keys].report()) is UNSET:
                continue
            *parents, last = measure.path(keys)
            inner: Any = report
            for part in parents:
                inner = inner.setdefault(part, {})
            inner[last] = record
        return report


def measure_tables(measures: Iterable[Measure], summary: JsonObject) -> Iterator[Table | str]:
    """The printed tables of measures, in their order."""
    waiting: list[tuple[Listing, tuple[str, ...], list[tuple[str, ...]]]] = []
    for measure in measures:
        heads = tuple(measure.told(name).head for name in measure.names)
        listings = [Listing()] if measure.tables is None else measure.tables
        for declared in listings:
            listing = declared
            if isinstance(declared, Listing):
                listing = declared._replace(title=declared.title or measure.title, heads=declared.heads or heads)
            if waiting and not (isinstance(listing, Listing) and listing.title == waiting[0][0].title):
                yield _table(waiting)
                waiting = []
            if not isinstance(listing, Listing):
                yield from listing(summary)
            elif listing.when(summary):
                labelled = [(listing.label(row), row) for row in measure.rows(summary, listing.order)]
                cells = listing.cells or CELLS[measure.kind]
                rows = [(*label, *cells.of(row.record)) for label, row in labelled if label is not None]
                waiting += [(listing, cells.heads, rows)] if rows else []
    if waiting:
        yield _table(waiting)


def _table(found: Sequence[tuple[Listing, tuple[str, ...], list[tuple[str, ...]]]]) -> Table:
    """One table; rows of fewer columns end with empty cells."""
    title, heads, _, _, note, *_ = found[0][0]
    numbers = max((of_numbers for _, of_numbers, _ in found), key=len)
    width = len(heads) + len(numbers)
    rows = [(*row, *[""] * (width - len(row))) for *_, some in found for row in some]
    return Table(f"{title}; {note}" if note else title, heads, numbers, rows)


def measure_figures(measures: Iterable[Measure], summary: JsonObject) -> dict[str, Figure]:
    """The figures of measures that the combinations of a grid are compared by."""
    return {
        shown.name: found
        for measure in measures
        for row in measure.rows(summary)
        if (shown := measure.in_grid(row.keys)) is not None and (found := measure.figure(row, shown)) is not None
    }


def _nothing(_summary: JsonObject) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsSpec:
    """How the outcomes of an environment are counted and shown. What shows them ignores the sections of others."""

    counter: Callable[[], Results]
    """Begins to count."""
    noun: str = NOUN
    """What its conversations are called, several of them."""
    measures: Sequence[Measure] = ()
    """What the figures of a report show of it."""
    headline: Callable[[JsonObject, JsonObject], str] = lambda _summary, _compared: ""
    """The answer in a sentence, from the summary of a run or a grid, and of a grid from `comparisons.json`.

    Empty for the first figures, each of a grid with its least and its greatest combination.
    """
    lines: Callable[[JsonObject], Iterable[tuple[str, str]]] = _nothing
    """From a summary, a name and a value each for the first table."""
    tables: Callable[[JsonObject], Iterable[Table | str]] = _nothing
    """From a summary, tables and notes below them."""
    figures: Callable[[JsonObject], Mapping[str, Figure]] = lambda _summary: {}
    """From a summary, the figures that the combinations of a grid are compared by."""
    comparisons: Callable[[Sequence[PlayedCombination], bool, Declared | None], JsonObject] | None = None
    """From the combinations of a grid, what their outcomes say of one another: sections of `comparisons.json`.

    None for the figures of `measures` that are `compared`, against the baseline that is declared. A section is None
    where it needs the extra `stats` and this is false; without anything to compare there is none.
    """
    read: Callable[[JsonObject, str], tuple[Any, str | None]] = lambda outcome, _where: (outcome, None)
    """From an outcome and where it was read, what measures count then, and the question that it is about."""
    comparison_tables: Callable[[JsonObject], Iterable[Table | str]] = _nothing
    """Where it has `comparisons`: from `comparisons.json`, tables and notes below that of the grid."""
    ending: Callable[[JsonObject], Sequence[str]] = _nothing
    """From an outcome, a heading and lines for the end of the conversation's text."""
    columns: Columns = NO_COLUMNS
    """What `mac-run show RUN` lists of an outcome, and what `--where` compares."""
    exports: Mapping[str, Export] = field(default_factory=dict)
    """The tables that `mac-run export` writes beside those that every run has, by name."""
    conversation_columns: Mapping[str, ExportColumn] = field(default_factory=dict)
    """Columns of the table of conversations; their places begin with `outcome.`."""
    agent_columns: Sequence[AgentColumns] = ()
    """Columns of the table of agents."""
    moments: Callable[[JsonObject], Mapping[int, str]] = lambda _record: {}
    """From a record, when each round of turns was, as `when` of its events says it; rounds may be missing."""
    rewards: Callable[[JsonObject, str], Mapping[str, float]] | None = None
    """From an outcome and the name of an agent, its rewards; None for those of `default_rewards`.

    Raises RunDirectoryError for a damaged outcome.
    """
    truth: Callable[[JsonObject], Truth | None] = lambda _record: None
    """From a record, what was true; None when the record does not hold it. Raises RunDirectoryError."""
    scene: Callable[[JsonObject], Scene] | None = None
    """From a transcript, what pages show beside the events: phases, facts, notes, tables. Raises RunDirectoryError.

    The transcript may be of an open or a failed conversation, whose outcome is None.
    """
    stances: StanceSpec | None = None
    """Where participants hold stances that change from round to round."""


class MeasuredResults:
    """Counts measures of outcomes, as `parse` reads them."""

    def __init__(
        self, measures: Sequence[Measure], parse: Callable[[JsonObject, str], Any] = lambda outcome, _where: outcome
    ) -> None:
        self._counted, self._parse = Counted(measures), parse

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished conversation. Raises RunDirectoryError naming `where` for a damaged outcome."""
        try:
            self._counted.add(self._parse(outcome, where))
        except (AttributeError, LookupError, TypeError, ValueError) as fault:
            raise RunDirectoryError(f"{where} cannot be measured: {type(fault).__name__}: {fault}") from fault

    def report(self) -> JsonObject:
        """Each measure at its place in the summary."""
        return self._counted.report()


def measured(*measures: Measure, noun: str = NOUN) -> ResultsSpec:
    """The results of an environment that has these measures and nothing else.

    Raises ConfigError where two of them have one place in the summary.
    """
    for place, count in Counter(measure.place for measure in measures).items():
        if count > 1:
            raise ConfigError(f"{count} measures have the place {place!r}; give each one of its own")
    return ResultsSpec(
        counter=lambda: MeasuredResults(measures),
        noun=noun,
        tables=lambda summary: measure_tables(measures, summary),
        figures=lambda summary: measure_figures(measures, summary),
        measures=measures,
    )
