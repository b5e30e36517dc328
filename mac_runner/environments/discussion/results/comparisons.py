"""Combinations of a grid of discussions compared with a declared baseline, over the questions that both were asked.

Each figure of a combination is a ratio over its discussions, as in the summary. What the discussions of one question
come to is kept together: a question is the cluster. Where all discussions are of one question, as with a single topic,
those with the same number are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from mac_runner.compared import RESAMPLES, Comparison, Effects, Kind, compare, effects, with_q
from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.environments.discussion.results.outcome import DiscussionResult
from mac_runner.intervals import Interval
from mac_runner.printable import counted
from mac_runner.results import Declared, PlayedCombination, ends, integer, parsed
from mac_runner.types import JsonObject, JsonValue

KEY: Final = "paired"
"""The section of `comparisons.json`."""
COMPARED: Final[Mapping[str, Kind]] = {
    shown.name: kind
    for measure in sorted(MEASURES, key=lambda measure: not measure.names)
    for keys, kind in measure.compared.items()
    if (shown := measure.in_grid(keys)) is not None
}
"""Every figure that is compared, and what it is a ratio of."""


@dataclass(slots=True)
class _Units:
    """For each question, or each discussion, the sum and the cases of each figure."""

    sums: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: {name: {} for name in COMPARED})
    names: set[str] = field(default_factory=set)

    def add(self, unit: str, found: Mapping[str, tuple[int, int]]) -> None:
        self.names.add(unit)
        for name, (total, cases) in found.items():
            before = self.sums[name].get(unit, (0, 0))
            self.sums[name][unit] = before[0] + total, before[1] + cases


@dataclass(slots=True)
class _Cell:
    """What is kept of a combination."""

    slug: str
    values: Mapping[str, JsonValue]
    units: _Units = field(default_factory=_Units)
    discussions: _Units = field(default_factory=_Units)
    """By number; kept as long as all are of one question."""

    @classmethod
    def of(cls, played: PlayedCombination) -> _Cell:
        cell = cls(played.slug, played.values)
        for number, outcome, where in played.outcomes:
            result = parsed(DiscussionResult, outcome, where)
            # Without a name of its own, a question is that of the discussion with the same number.
            question = result.question_id or f"#{number}"
            found = dict(_cases(result))
            cell.units.add(question, found)
            if len(cell.units.names) == 1:
                cell.discussions.add(str(number), found)
            else:
                cell.discussions = _Units()
        return cell

    def pair_by_discussion(self) -> None:
        """Take discussions for questions."""
        self.units = self.discussions


def _cases(result: DiscussionResult) -> Iterator[tuple[str, tuple[int, int]]]:
    """For each figure that a discussion has cases for, what they come to and how many they are."""
    for measure in (measure for measure in MEASURES if measure.compared):
        for keys, counts in measure.cases(result):
            if keys in measure.compared and (shown := measure.in_grid((*map(str, keys),))) is not None:
                yield shown.name, measure.pair(keys, counts)


def compare_discussions(played: Sequence[PlayedCombination], has_stats: bool, declared: Declared | None) -> JsonObject:
    """The section of `comparisons.json`; empty without a baseline or anything to compare with it."""
    if declared is None or len(played) < 2:
        return {}
    head: JsonObject = {"baseline": declared.baseline, "primary": declared.primary}
    if not has_stats:
        return {KEY: {**head, "figures": None}}
    cells = [_Cell.of(each) for each in played]
    if len({question for cell in cells for question in cell.units.names}) == 1:
        head["paired_by"] = "discussion"
        for cell in cells:
            cell.pair_by_discussion()
    baseline = next((cell for cell in cells if cell.slug == declared.baseline), None)
    figures: list[JsonValue] = []
    if baseline is not None:
        head["values"] = dict(baseline.values)
        others = [cell for cell in cells if cell is not baseline]
        rows = [row for name in COMPARED for other in others if (row := _compared(name, baseline, other)) is not None]
        families = [
            [row for row in rows if (row.name == declared.primary) is is_primary] for is_primary in (True, False)
        ]
        head["families"] = [len(family) for family in families]
        # The primary outcome first.
        for name, of_one in groupby((row for family in families for row in _with_q(family)), lambda row: row.name):
            unit = "rate" if COMPARED[name] == "share" else "score"
            reports = [_report(baseline, row) for row in of_one]
            figures.append(
                {"figure": name, "is_primary": name == declared.primary, "unit": unit, "combinations": [*reports]}
            )
    return {KEY: {**head, "resamples": RESAMPLES, "figures": figures}}


class _Row(NamedTuple):
    """A figure of a combination against the baseline's."""

    name: str
    cell: _Cell
    found: Comparison
    effects: Effects | None
    left_out: int
    """Questions that only one of the two discussed."""


def _compared(name: str, baseline: _Cell, cell: _Cell) -> _Row | None:
    first, second, kind = baseline.units.sums[name], cell.units.sums[name], COMPARED[name]
    if (found := compare(first, second, kind=kind)) is None:
        return None
    left_out = len(baseline.units.names ^ cell.units.names)
    return _Row(name, cell, found, effects(first, second, kind=kind), left_out)


def _with_q(family: Sequence[_Row]) -> Iterator[_Row]:
    """Rows whose p are adjusted for each other."""
    for row, found in zip(family, with_q([row.found for row in family]), strict=True):
        assert found is not None, "none is missing in a family of rows"
        yield row._replace(found=found)


def _report(baseline: _Cell, row: _Row) -> JsonObject:
    found, odds = row.found, None if row.effects is None else row.effects.odds
    return {
        "combination": row.cell.slug,
        "values": {
            name: value
            for name, value in row.cell.values.items()
            if name not in baseline.values or _is_other(value, baseline.values[name])
        },
        "questions": found.n,
        "left_out": row.left_out,
        "cases": [*found.cases],
        "baseline": round(found.values[0], 4),
        "found": round(found.values[1], 4),
        "difference": round(found.difference, 4),
        "interval": ends(found.interval),
        "ahead": [*(found.ahead or ())],
        "test": found.test,
        "p": _digits(found.p),
        "q": _digits(found.q),
        "cohens_h": None if row.effects is None else round(row.effects.cohens_h, 4),
        "odds_ratio": None if odds is None else _digits(odds.ratio),
        "odds_interval": None if odds is None else _span(odds.interval),
        "is_odds_corrected": odds is not None and odds.is_corrected,
    }


def families_in_words(found: JsonObject) -> str:
    """Over how many comparisons each p was adjusted, from the section of `comparisons.json`."""
    counts = found.get("families")
    primary, others = (integer(count) or 0 for count in counts) if isinstance(counts, list) else (0, 0)
    of_others = f"{counted(others, 'comparisons')} of {'all other outcomes together' if primary else 'all outcomes'}"
    return f"{counted(primary, 'comparisons')} of the primary outcome, and {of_others}" if primary else of_others


def _is_other(one: JsonValue, other: JsonValue) -> bool:
    return one != other or isinstance(one, bool) != isinstance(other, bool)


def _digits(value: float | None) -> float | None:
    """Three significant digits."""
    return None if value is None else float(f"{value:.3g}")


def _span(interval: Interval | None) -> JsonValue:
    return None if interval is None else [_digits(end) for end in interval]
