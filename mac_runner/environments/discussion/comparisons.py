"""Combinations of a grid of discussions compared with a declared baseline, over the questions that both were asked.

Each figure of a combination is a ratio over its discussions, as in the summary. What the discussions of one question
come to is kept together: a question is the cluster. Where all discussions are of one question, as with a single topic,
those with the same number are paired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from mac_runner.compared import (
    CLUSTERS_MIN,
    RESAMPLES,
    Comparison,
    Kind,
    Test,
    compare,
    how_paired,
    with_q,
)
from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.environments.discussion.outcome import DiscussionResult
from mac_runner.intervals import Interval
from mac_runner.printable import counted
from mac_runner.results import UNKNOWN, Declared, Difference, PlayedCombination, Table, count_text, parsed
from mac_runner.structs import encode
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
ROWS_SHOWN_MAX: Final = 100
"""How many differences are printed; `comparisons.json` and the table of the grid hold all of them."""
_Q_MAX: Final = 0.05
UNDECLARED: Final = (
    "The combinations are not compared: declare the one they are compared with as `report.baseline`, by its values "
    "or its "
    "directory's name, and the figure that the study is about as `report.primary`."
)
_Ends: TypeAlias = tuple[float, float]


class PairedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a combination against the baseline's."""

    combination: str
    values: dict[str, Any]
    """Those in which it differs from the baseline."""
    questions: int
    left_out: int
    """Questions that only one of the two discussed."""
    cases: tuple[int, int]
    baseline: float
    found: float
    difference: float
    interval: _Ends | None
    ahead: tuple[int, int]
    test: Test
    p: float | None
    q: float | None = None
    cohens_h: float | None
    odds_ratio: float | None
    odds_interval: _Ends | None
    is_odds_corrected: bool


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of all combinations against the baseline's."""

    figure: str
    is_primary: bool
    unit: Literal["rate", "score"]
    combinations: tuple[PairedRow, ...]


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """The section of `comparisons.json`. `figures` is None where nothing could be computed; the primary comes first."""

    baseline: str
    primary: str | None
    paired_by: Literal["discussion"] | UnsetType = UNSET
    values: dict[str, Any] | UnsetType = UNSET
    """Those of the baseline, once it has begun."""
    families: tuple[int, int] | UnsetType = UNSET
    """Over how many comparisons each p was adjusted: of the primary outcome, and of all others."""
    resamples: int | UnsetType = UNSET
    figures: tuple[PairedFigure, ...] | None = None

    @property
    def unit(self) -> str:
        """What is paired: `question` or `discussion`."""
        return self.paired_by or "question"

    @property
    def rows(self) -> list[tuple[PairedFigure, PairedRow]]:
        """The rows of all figures."""
        return [(figure, row) for figure in self.figures or () for row in figure.combinations]

    def families_in_words(self) -> str:
        """Over how many comparisons each p was adjusted."""
        primary, others = self.families or (0, 0)
        of_others = (
            f"{counted(others, 'comparisons')} of {'all other outcomes together' if primary else 'all outcomes'}"
        )
        return f"{counted(primary, 'comparisons')} of the primary outcome, and {of_others}" if primary else of_others


def paired_of(compared: JsonObject) -> Paired | None:
    """The section, from `comparisons.json`; None where there is none."""
    return parsed(Paired, compared[KEY], f"comparisons.json, {KEY}") if KEY in compared else None


_Sums: TypeAlias = dict[str, dict[str, tuple[int, int]]]
"""For each figure, by question or by discussion, the sum and the cases."""


@dataclass(slots=True)
class _Cell:
    """What is kept of a combination."""

    slug: str
    values: Mapping[str, JsonValue]
    sums: _Sums = field(default_factory=lambda: {name: {} for name in COMPARED})
    units: set[str] = field(default_factory=set)
    """Its questions, also those of which no figure has a case."""
    alone: _Cell | None = None
    """The same by number of the discussion, as long as all are of one question."""

    @classmethod
    def of(cls, played: PlayedCombination) -> _Cell:
        cell = cls(played.slug, played.values, alone=cls(played.slug, played.values))
        for number, outcome, where in played.outcomes:
            result = parsed(DiscussionResult, outcome, where)
            found = dict(_cases(result))
            # Without a name of its own, a question is that of the discussion with the same number.
            cell.add(result.question_id or f"#{number}", found)
            if len(cell.units) > 1:
                cell.alone = None
            elif cell.alone is not None:
                cell.alone.add(str(number), found)
        return cell

    def add(self, unit: str, found: Mapping[str, tuple[int, int]]) -> None:
        self.units.add(unit)
        for name, (total, cases) in found.items():
            before = self.sums[name].get(unit, (0, 0))
            self.sums[name][unit] = before[0] + total, before[1] + cases


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
    paired = Paired(baseline=declared.baseline, primary=declared.primary)
    if has_stats:
        paired = _paired(paired, [_Cell.of(each) for each in played])
    return {KEY: cast("JsonObject", json.loads(encode(paired)))}


def _paired(paired: Paired, cells: Sequence[_Cell]) -> Paired:
    if len({question for cell in cells for question in cell.units}) == 1:
        paired = msgspec.structs.replace(paired, paired_by="discussion")
        cells = [cell.alone or cell for cell in cells]
    paired = msgspec.structs.replace(paired, resamples=RESAMPLES, figures=())
    baseline = next((cell for cell in cells if cell.slug == paired.baseline), None)
    if baseline is None:
        return paired
    others = [cell for cell in cells if cell is not baseline]
    rows = [row for name in COMPARED for other in others if (row := _compared(name, baseline, other)) is not None]
    families = [[row for row in rows if (row[0] == paired.primary) is is_primary] for is_primary in (True, False)]
    adjusted = [
        (name, msgspec.structs.replace(row, q=None if found is None else _digits(found.q)))
        for family in families
        for (name, _, row), found in zip(family, with_q([found for _, found, _ in family]), strict=True)
    ]
    return msgspec.structs.replace(
        paired,
        values=dict(baseline.values),
        families=(len(families[0]), len(families[1])),
        figures=tuple(
            PairedFigure(
                figure=name,
                is_primary=name == paired.primary,
                unit="rate" if COMPARED[name] == "share" else "score",
                combinations=tuple(row for _, row in of_one),
            )
            for name, of_one in groupby(adjusted, lambda each: each[0])
        ),
    )


def _compared(name: str, baseline: _Cell, cell: _Cell) -> tuple[str, Comparison, PairedRow] | None:
    """A figure of a combination against the baseline's, before its p is adjusted."""
    first, second, kind = baseline.sums[name], cell.sums[name], COMPARED[name]
    if (found := compare(first, second, kind=kind, has_effects=True)) is None:
        return None
    sizes = found.effects
    odds = None if sizes is None else sizes.odds
    row = PairedRow(
        combination=cell.slug,
        values={
            key: value
            for key, value in cell.values.items()
            if key not in baseline.values or _is_other(value, baseline.values[key])
        },
        questions=found.n,
        left_out=len(baseline.units ^ cell.units),
        cases=found.cases,
        baseline=round(found.values[0], 4),
        found=round(found.values[1], 4),
        difference=round(found.difference, 4),
        interval=_rounded(found.interval, lambda end: round(end, 4)),
        ahead=found.ahead or (0, 0),
        test=found.test,
        p=_digits(found.p),
        cohens_h=None if sizes is None else round(sizes.cohens_h, 4),
        odds_ratio=None if odds is None else _digits(odds.ratio),
        odds_interval=None if odds is None else _rounded(odds.interval, _short),
        is_odds_corrected=odds is not None and odds.is_corrected,
    )
    return name, found, row


def _rounded(interval: Interval | None, rounded: Callable[[float], float]) -> _Ends | None:
    return None if interval is None else (rounded(interval.lo), rounded(interval.hi))


def _is_other(one: JsonValue, other: JsonValue) -> bool:
    return one != other or isinstance(one, bool) != isinstance(other, bool)


def _digits(value: float | None) -> float | None:
    """Three significant digits."""
    return None if value is None else _short(value)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def grid_differences(compared: JsonObject) -> dict[str, dict[str, Difference]]:
    """For each figure how each combination differs from the baseline."""
    paired = paired_of(compared)
    return {
        figure.figure: {row.combination: _difference(row) for row in figure.combinations}
        for figure in (paired.figures if paired else None) or ()
    }


def _difference(row: PairedRow) -> Difference:
    lo, hi = row.interval or (None, None)
    odds_lo, odds_hi = row.odds_interval or (None, None)
    return Difference(
        n=row.questions,
        diff=row.difference,
        diff_lo=lo,
        diff_hi=hi,
        p=row.p,
        q=row.q,
        h=row.cohens_h,
        odds=row.odds_ratio,
        odds_lo=odds_lo,
        odds_hi=odds_hi,
    )


def paired_tables(compared: JsonObject) -> Iterator[Table | str]:
    """The table, the primary outcome first, and notes on how to read it."""
    paired = paired_of(compared)
    if paired is None or paired.figures is None:
        return
    if not paired.rows:
        yield "No combination has questions in common with the baseline, or the baseline has not begun."
        return
    numbers = ("n", "baseline", "here", "difference (95% interval)", "p", "q", "h", "odds ratio (95% interval)")
    lines = [
        (f"{figure.figure}{' *' if figure.is_primary else ''}", _values(row.values), *_numbers(figure, row))
        for figure, row in paired.rows
    ]
    title = f"differences from the baseline, {_values(paired.values or {})} (n {paired.unit}s)"
    yield Table(title, ("figure", "combination"), numbers, lines[:ROWS_SHOWN_MAX])
    yield "\n".join(_notes(paired))


def primary_words(compared: JsonObject) -> str:
    """The primary outcome in a sentence: of several combinations the one that differs most from the baseline."""
    paired = paired_of(compared)
    rows = [(figure, row) for figure, row in (paired.rows if paired else ()) if figure.is_primary]
    if paired is None or not rows:
        return ""
    figure, most = max(rows, key=lambda each: abs(each[1].difference))
    text, points = (_points, " points") if figure.unit == "rate" else (_score, "")
    found = f"{text(most.difference, '+')}{points}{_span(most.interval, text, '+')}, p {_p_text(most.p)}"
    largest = "largest " if len(rows) > 1 else ""
    head = f"{figure.figure}: {largest}difference from the baseline {found}"
    head += f", n {counted(most.questions, f'{paired.unit}s')} ({_values(most.values)})"
    if len(rows) == 1:
        return head
    differing = sum((row.q or 1.0) < _Q_MAX for _, row in rows)
    return f"{head}; {differing} of {len(rows)} combinations differ (q < {_Q_MAX})"


def _notes(paired: Paired) -> Iterator[str]:
    rows = [row for _, row in paired.rows]
    if paired.primary is None:
        yield "No primary outcome is declared (`report.primary`): all of these are exploratory."
    elif any(figure.is_primary for figure, _ in paired.rows):
        yield f"Primary outcome: {paired.primary} (*). The other figures are secondary."
    else:
        yield f"Primary outcome: {paired.primary}, of which there are no cases. The other figures are secondary."
    unit, is_of_one = paired.unit, paired.unit == "discussion"
    of_one = ", as all are of one question" if is_of_one else ""
    yield f"Paired by {unit}{of_one}. Interval and p of a row are of one test:"
    yield f"{how_paired(unit, {row.test for row in rows})}."
    yield f"q: p adjusted over {paired.families_in_words()} (Benjamini–Hochberg)."
    yield "Rates and differences in points, scores as they are. h: Cohen's; it and odds ratios are of proportions."
    if any(row.is_odds_corrected for row in rows):
        yield "+: one of four counts was 0, so half a case was added to each (Haldane–Anscombe)."
    if (fewest := min(row.questions for row in rows)) < CLUSTERS_MIN:
        few = counted(fewest, f"{unit}s")
        yield f"Some rows have {few} only: with fewer than {CLUSTERS_MIN}, intervals are too narrow."
    if left_out := max(row.left_out for row in rows):
        yield f"Up to {left_out} {unit}s are left out, which only one of the two {'had' if is_of_one else 'discussed'}."
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more differences: comparisons.json and grid.csv have all of them."


def _numbers(figure: PairedFigure, row: PairedRow) -> tuple[str, ...]:
    text = _points if figure.unit == "rate" else _score
    mark = "+" if row.is_odds_corrected else ""
    return (
        count_text(row.questions),
        text(row.baseline, ""),
        text(row.found, ""),
        f"{text(row.difference, '+')}{_span(row.interval, text, '+')}",
        _p_text(row.p),
        _p_text(row.q),
        UNKNOWN if row.cohens_h is None else _score(row.cohens_h, "+"),
        UNKNOWN if row.odds_ratio is None else f"{_ratio(row.odds_ratio)}{mark}{_span(row.odds_interval, _ratio)}",
    )


def _span(ends: _Ends | None, text: Callable[[float, str], str], sign: str = "") -> str:
    return "" if ends is None else f" ({text(ends[0], sign)} to {text(ends[1], sign)})"


def _points(value: float, sign: str) -> str:
    """`12.0` for a rate of 0.12."""
    return f"{100 * value:{sign}.1f}"


def _score(value: float, sign: str) -> str:
    return f"{value:{sign}.3f}"


def _ratio(value: float, _sign: str = "") -> str:
    return f"{value:.2f}"


def _p_text(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _values(values: Mapping[str, JsonValue]) -> str:
    """`identity_shown true, presence_mode hidden`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in texts.items())
