"""Measures counted over games: by agent definition and faction, by model and faction, by role and definition.

The faction is that of the role dealt, as for wins.
The counts of a cell are added up for each game; its cases come and go together, so intervals are by game.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import msgspec

from mac_runner.environments.town_of_salem.results.games import PlayerResult, faction_dealt
from mac_runner.environments.town_of_salem.results.measure_declarations import MEASURES, Count, Measure
from mac_runner.intervals import ClusteredMean, ClusteredRate, Interval
from mac_runner.results import clustered, clusters_of, ends, integer, parsed, section
from mac_runner.types import JsonObject


class _Seat(PlayerResult, frozen=True):
    measures: dict[str, int] = msgspec.field(default_factory=dict)


class _Game(msgspec.Struct, frozen=True):
    players: tuple[_Seat, ...]


class _Cell(NamedTuple):
    group: str
    name: str
    within: str


class MeasureResults:
    """Counts games one by one; its memory follows the number of names, days and causes."""

    def __init__(self) -> None:
        self._cells: defaultdict[_Cell, _Counted] = defaultdict(_Counted)

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished game."""
        totals: defaultdict[_Cell, _Sums] = defaultdict(_Sums)
        for seat in parsed(_Game, outcome, where).players:
            if seat.measures:
                counts = [(*_split(key), count) for key, count in seat.measures.items()]
                side = faction_dealt(seat)
                totals[_Cell("by_definition", seat.definition, side)].add(counts)
                totals[_Cell("by_model", seat.model, side)].add(counts)
                totals[_Cell("by_role", seat.role, seat.definition)].add(counts)
        for cell, total in totals.items():
            # Roles by the day are too few to say anything.
            self._cells[cell].add(total, has_parts=cell.group != "by_role")

    def report(self) -> JsonObject:
        """`measures`, names in alphabetical order; nothing where no game was measured."""
        report: JsonObject = {}
        for cell, counted in sorted(self._cells.items()):
            group = report.setdefault(cell.group, {})
            assert isinstance(group, dict)
            name = group.setdefault(cell.name, {})
            assert isinstance(name, dict)
            name[cell.within] = counted.report()
        return {"measures": report} if report else {}


def default_shares(summary: JsonObject) -> dict[tuple[str, ...], float]:
    """The part of turns that ended with the default act, by the names of rows: `definition`, its name and its side."""
    measured = section(summary, "measures")
    sums: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for group in measured:
        word = group.removeprefix("by_")
        for name, within, cell in _cells(section(measured, group)):
            found = section(cell, "defaults")
            counts = {key: integer(found.get(key)) or 0 for key in ("wins", "n")}
            # Of a role, the cells are those of its definitions.
            keys = [(word, name), *([(word, name, within)] if word != "role" else [])]
            for key in [*keys, *([("faction", within)] if word == "definition" else [])]:
                sums[key].update(counts)
    return {key: counts["wins"] / counts["n"] for key, counts in sums.items() if counts["n"]}


def _cells(names: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    for name in names:
        parts = section(names, name)
        yield from ((name, within, section(parts, within)) for within in parts)


class _Sums:
    """The counts of the seats of one cell in one game: all of them, and those of each day or cause."""

    def __init__(self) -> None:
        self.whole: dict[str, int] = {Count.SEAT: 0}
        self.parts: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def add(self, counts: list[tuple[str, str, int]]) -> None:
        """Add the counts of a seat."""
        whole = self.whole
        whole[Count.SEAT] += 1
        for name, part, count in counts:
            whole[name] = whole.get(name, 0) + count
            if part:
                found = self.parts[part]
                found[name] = found.get(name, 0) + count


_Key = tuple[int, str]
"""The place of a measure among MEASURES, and the day or cause; "" for all of them."""


class _Counted:
    """The measures of one cell."""

    def __init__(self) -> None:
        self._rates: defaultdict[_Key, ClusteredRate] = defaultdict(ClusteredRate)
        self._means: defaultdict[_Key, ClusteredMean] = defaultdict(ClusteredMean)

    def add(self, sums: _Sums, *, has_parts: bool) -> None:
        """Count what one game came to; with `has_parts` also by day and by cause."""
        for place, measure in enumerate(MEASURES):
            if of := _total(measure, sums.whole):
                self._add((place, ""), measure, sums.whole, of)
        for part, found in sums.parts.items() if has_parts else ():
            for place, measure in _PARTED:
                if measure.by == "day" and (of := _total(measure, found)):
                    self._add((place, part), measure, found, of)
                elif measure.by == "cause" and not part.isdecimal():
                    self._add((place, part), measure, found, _total(measure, sums.whole))

    def _add(self, key: _Key, measure: Measure, counts: dict[str, int], of: int) -> None:
        hits = sum(counts.get(count, 0) * weight for count, weight in measure.hits.items())
        if measure.unit == "rate":
            self._rates[key].add(hits, of)
        else:
            self._means[key].add(hits, of)

    def report(self) -> JsonObject:
        """Each measure that has cases, with those of its days or causes."""
        report: JsonObject = {}
        counted: dict[_Key, ClusteredRate | ClusteredMean] = {**self._rates, **self._means}
        for place, part in sorted(counted, key=_order):
            measure = MEASURES[place]
            sums = counted[place, part]
            shown = clustered(sums) if isinstance(sums, ClusteredRate) else _mean(sums, measure)
            if not part:
                report[measure.key] = shown
                continue
            whole = report[measure.key]
            assert isinstance(whole, dict)
            by_part = whole.setdefault(f"by_{measure.by}", {})
            assert isinstance(by_part, dict)
            by_part[part] = shown
        return report


_PARTED: Final = tuple((place, measure) for place, measure in enumerate(MEASURES) if measure.by)


@cache
def _split(key: str) -> tuple[str, str]:
    name, _, part = key.partition(".")
    return name, part


def _total(measure: Measure, counts: dict[str, int]) -> int:
    total = 0
    for count in measure.of:
        total += counts.get(count, 0)
    return total


def _order(key: _Key) -> tuple[int, int, str]:
    """By measure; days by number."""
    place, part = key
    return place, int(part) if part.isdecimal() else -1, part


def _mean(counted: ClusteredMean, measure: Measure) -> JsonObject:
    interval, total = counted.interval, int(counted.total)
    scaled = None if interval is None else Interval(interval.lo / measure.scale, interval.hi / measure.scale)
    return {
        "n": counted.n,
        "games": counted.games,
        **clusters_of(counted),
        "total": total,
        "mean": round(total / counted.n / measure.scale, 4),
        "interval": ends(scaled),
    }
