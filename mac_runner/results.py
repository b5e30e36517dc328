"""What results are made of: what counts outcomes, tables, figures, columns, and how numbers are written.

`measures.py` says how an environment puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from mac_runner.errors import RunDirectoryError
from mac_runner.flat import FlatColumn, Row, RowMaker
from mac_runner.intervals import ClusteredMean, ClusteredRate, ExactClusteredMean, Interval, wilson
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import Fact

UNKNOWN: Final = "–"
NOUN: Final = "conversations"
RATE_HEADS: Final = ("rate", "95% interval")
_T = TypeVar("_T")


class Results(Protocol):
    """Counts outcomes one by one, in any order.

    Its memory may grow with the number of names, such as roles or agents, but not with the number of conversations.
    """

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished conversation. Raises RunDirectoryError naming `where` for a damaged outcome."""
        ...

    def report(self) -> JsonObject:
        """Its sections of `summary.json`."""
        ...


class Table(NamedTuple):
    """A table before it is drawn: headed columns of words, then of numbers, and the cells of each row."""

    title: str
    words: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Figure(NamedTuple):
    """A rate (of 1), a score or a mean on `n` cases, with both ends of its interval.

    A headline has a column in the printed table of a grid, and is on the page of its run; every figure is in the files.
    """

    n: int
    value: float | None
    lo: float | None
    hi: float | None
    unit: Literal["rate", "score", "mean"] = "rate"
    is_headline: bool = True
    is_printed: bool = False
    """Whether it has a place in a second table, without its interval, where it is no headline."""


Value: TypeAlias = str | float | Sequence[str] | None
"""What a conversation has in a column: a word, a number, a truth value, several words, or nothing."""


class Column(NamedTuple):
    """A column of the list of conversations. One that is not listed can still be compared by `--where`."""

    kind: Literal["word", "words", "number", "truth"]
    is_listed: bool = True
    is_headline: bool = False
    """Whether its values are counted in the live view, while conversations are played."""


class Columns(NamedTuple):
    """What an environment puts into the list of conversations: its columns by name, and their values of an outcome."""

    of: Mapping[str, Column]
    values: Callable[[Any], Mapping[str, Value]]
    """Takes an outcome as `kind`."""
    kind: type = dict
    """Its fields are what the columns show; what else an outcome has is skipped where it is read."""

    def read(self, outcome: JsonObject) -> Mapping[str, Value]:
        """The values of an outcome. Raises RunDirectoryError for a damaged one."""
        return self.values(parsed(self.kind, outcome, "the outcome in the index"))


ExportColumn: TypeAlias = FlatColumn


class Export(NamedTuple):
    """A table over the conversations of a run, as `mac-run export` writes it."""

    columns: Mapping[str, ExportColumn]
    rows: Callable[[JsonObject, JsonObject], Iterable[Row]]
    """From a transcript and the experiment as it was recorded, the rows of that conversation, by column.

    Raises RunDirectoryError for a transcript that cannot be read.
    """
    meaning: str = ""
    """What a row is."""
    key: tuple[str, ...] = ()
    """The columns that together name a row."""
    is_optional: bool = False
    """Whether it is left out unless it is asked for by name."""


class AgentColumns(NamedTuple):
    """Columns of the table of agents: those of the element of a list, such as `outcome.players[]`, with its name."""

    where: str
    name: str
    """The key of the element that has the name of the agent."""
    columns: Mapping[str, ExportColumn]


def export_of(
    where: str, columns: Mapping[str, ExportColumn], *, key: tuple[str, ...], meaning: str, is_optional: bool = False
) -> Export:
    """The table of the elements of one list of a transcript, each column with the place of its value."""
    maker = RowMaker(where, columns)
    return Export(columns, lambda transcript, _experiment: maker.rows(transcript), meaning, key, is_optional)


NO_COLUMNS: Final = Columns({}, lambda _outcome: {})


class Truth(Protocol):
    """What only the engine knew of one conversation, for `mac-run show --truth`."""

    def opening(self) -> Sequence[str]:
        """A heading and its lines, to be shown before everything; empty for none."""
        ...

    def named(self, place: int, text: str) -> str:
        """The text of the event at `place`, or the names of its audience, with what was true of each name behind it.

        Asked for in the order of the events, for each of them.
        """
        ...

    def closing(self) -> Sequence[str]:
        """A heading and its lines, to be shown after everything; empty for none."""
        ...

    def before(self, event: JsonObject) -> Sequence[str]:
        """A heading and its lines, to be shown before an event of the record; empty for none."""
        ...

    def after(self, place: int) -> Iterable[str]:
        """Lines to be shown after the event at `place` of the record."""
        ...


class Stances(NamedTuple):
    """What each participant of a conversation held, and who took over whose."""

    by_agent: Mapping[str, Sequence[str]]
    """By round, one of the names of `StanceSpec.named`."""
    moved: Mapping[str, Mapping[str, tuple[int, int]]]
    """By author and reader, how often the reader followed, of how many times that it could."""


class StanceSpec(NamedTuple):
    """How stances are read off outcomes, for the flow over all conversations."""

    named: tuple[Fact, ...]
    """The stances, in the order in which they are drawn."""
    of: Callable[[JsonObject], Stances | None]
    """From an outcome. Raises RunDirectoryError for a damaged one."""


class PlayedCombination(NamedTuple):
    """A combination of a grid that has begun: what it differs in from others, and what came of its conversations.

    Conversations of one number have the same chance events in all combinations of one seed. Where deals are played
    several times, all conversations of a deal have its number.
    """

    slug: str
    values: Mapping[str, JsonValue]
    planned: int
    outcomes: Iterable[tuple[int, JsonObject, str]]
    """Of each finished conversation its number, its outcome, and where that was read. Can be read once."""


class Declared(NamedTuple):
    """What the section `report` of a grid's file declares."""

    baseline: str
    """The slug of the combination that the others are compared with."""
    primary: str | None = None
    """The figure that the study is about."""


def parsed(kind: type[_T], value: JsonValue, where: str) -> _T:
    """`value` as a `msgspec.Struct`. Raises RunDirectoryError naming `where` and the key that does not fit."""
    try:
        return convert(value, kind)
    except msgspec.ValidationError as fault:
        raise RunDirectoryError(f"{where}: {fault}; check the run with verify") from fault


def rate(count: int, n: int) -> JsonObject:
    """`rate` and its 95 % `interval`, both null when n is 0."""
    return {"rate": round(count / n, 4) if n else None, "interval": ends(wilson(count, n))}


def clustered(counted: ClusteredRate) -> JsonObject:
    """`n` cases of how many `games`, `wins` among them, their `rate` and its `interval` by game.

    Where deals are played several times, the interval is by deal, and `clusters` says of how many.
    """
    return {
        "n": counted.n,
        "games": counted.games,
        **clusters_of(counted),
        "wins": counted.wins,
        "rate": round(counted.wins / counted.n, 4) if counted.n else None,
        "interval": ends(counted.interval),
    }


def clusters_of(counted: ClusteredRate | ClusteredMean | ExactClusteredMean) -> JsonObject:
    """How many `clusters` the games are of; nothing where each is one."""
    return {} if counted.clusters == counted.games else {"clusters": counted.clusters}


def ends(interval: Interval | None) -> JsonValue:
    """An interval as a summary holds it."""
    return None if interval is None else [round(interval.lo, 4), round(interval.hi, 4)]


def figure(record: JsonObject, *, cases: Sequence[str] = ("n",), is_headline: bool = True) -> Figure | None:
    """The rate, score or mean of a summary, on as many cases as the counts `cases` add up to; None without one."""
    counts = [integer(record.get(name)) for name in cases]
    interval = record.get("interval")
    if None in counts:
        return None
    lo, hi = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    unit: Literal["rate", "score", "mean"] = "score" if "score" in record else "mean" if "mean" in record else "rate"
    n = sum(count or 0 for count in counts)
    return Figure(n, number(record.get(unit)), number(lo), number(hi), unit, is_headline)


def section(source: Mapping[str, JsonValue], key: str, *below: str) -> JsonObject:
    """The object under `key`, or that under keys `below` in it; an empty one when there is none."""
    value = source.get(key)
    found = value if isinstance(value, dict) else {}
    return section(found, *below) if below else found


def objects(value: JsonValue) -> list[JsonObject]:
    """The objects of a list; an empty list for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def integer(value: JsonValue) -> int | None:
    """A whole number; None for anything else, a truth value too."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: JsonValue) -> float | None:
    """A number; None for anything else, a truth value too."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count_text(value: JsonValue) -> str:
    """`12,345`."""
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def decimal_text(value: JsonValue) -> str:
    """`1.23`, and from 10 on `12.3`."""
    if not isinstance(value, int | float):
        return UNKNOWN
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def percent_text(value: JsonValue) -> str:
    """`12.3%` for a rate of 1."""
    return f"{value:.1%}" if isinstance(value, int | float) else UNKNOWN


def signed_text(value: JsonValue) -> str:
    """`+0.123` for a score."""
    return f"{value:+.3f}" if isinstance(value, int | float) else UNKNOWN


def points_text(value: JsonValue) -> str:
    """`+12.0` for a difference of 0.12, in percentage points."""
    return f"{100 * value:+.1f}" if isinstance(value, int | float) else UNKNOWN


def interval_text(interval: JsonValue, text: Callable[[JsonValue], str] = percent_text) -> str:
    """`10.0% – 20.0%`, each end as `text` writes it."""
    return " – ".join(map(text, interval)) if isinstance(interval, list) else UNKNOWN


def rate_words(record: JsonObject) -> str:
    """`52 % (42–62)`: a rate in whole percent and its interval, for a sentence."""
    found, interval = number(record.get("rate")), record.get("interval")
    if found is None:
        return UNKNOWN
    ends_ = [number(end) for end in interval] if isinstance(interval, list) else []
    span = "–".join(f"{100 * end:.0f}" for end in ends_ if end is not None)
    return f"{100 * found:.0f} %{f' ({span})' if span else ''}"


def rate_texts(record: JsonObject) -> tuple[str, str]:
    """The cells under RATE_HEADS."""
    return percent_text(record.get("rate")), interval_text(record.get("interval"))


COPIED: Final = "placeholder"
"""The cause of a reply that copies its form."""
DEFAULTS_NOTED: Final = 0.05
"""A side that took its default on a larger part of its turns says so beside its row."""
DEFAULTS_HEAD: Final = "defaults"
DEFAULTS_NOTE: Final = (
    f"Defaults: turns that ended with the default act, because no reply to them could be used. Above "
    f"{DEFAULTS_NOTED:.0%} the result is in part that of the default act."
)


def default_shares(counts: JsonObject, of: str = "definition") -> dict[str, float]:
    """By agent definition or model, the part of its turns that ended with the default act, from a summary."""
    counted = section(counts, f"turns_by_{of}")
    taken = {name: section(counted, name) for name in counted}
    return {
        name: (integer(found.get("defaults")) or 0) / turns
        for name, found in taken.items()
        if (turns := integer(found.get("turns")))
    }


def is_noted(share: float | None) -> bool:
    """Whether a side took its default so often that it has to be said."""
    return share is not None and share > DEFAULTS_NOTED


def with_defaults(label: str, share: float | None) -> str:
    """`c (defaults 71%)`, where that has to be said."""
    return f"{label} (defaults {share:.0%})" if share is not None and is_noted(share) else label


def with_defaults_column(table: Table, shares: Sequence[Sequence[float | None]], place: int) -> Table:
    """The table with a column of numbers at `place`, where one of its rows has to say how often it took its default.

    A row has a share for each of those that it compares.
    """
    if not any(is_noted(share) for row in shares for share in row):
        return table
    at = len(table.words) + place
    cells = (" : ".join(map(percent_text, row)) for row in shares)
    rows = [(*row[:at], cell, *row[at:]) for row, cell in zip(table.rows, cells, strict=True)]
    return table._replace(numbers=(*table.numbers[:place], DEFAULTS_HEAD, *table.numbers[place:]), rows=rows)
