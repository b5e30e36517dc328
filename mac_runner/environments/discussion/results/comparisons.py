"""Combinations of a grid of discussions compared with a declared baseline, over the questions that both were asked.

Each figure of a combination is a ratio over its discussions, as in the summary. What the discussions of one question
come to is kept together: a question is the unit that is resampled. Where a figure is one truth value for each
discussion, and no question was discussed twice, the two discussions of a question are a pair. Where all discussions are
of one question, as with a single topic, those with the same number are paired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mac_runner import paired
from mac_runner.comparisons import RESAMPLES, mcnemar
from mac_runner.environments.discussion.results.outcome import KINDS, DiscussionResult, added
from mac_runner.environments.discussion.results.stances import STANCES, answers_of, stance_of
from mac_runner.intervals import Interval
from mac_runner.results import Declared, PlayedCombination, ends, parsed
from mac_runner.types import JsonObject, JsonValue

KEY: Final = "paired"
"""The section of `comparisons.json`."""
COMPARED: Final[Mapping[str, paired.Kind]] = {
    **{f"accuracy.{kind}": "share" for kind in KINDS},
    **{f"bias.{kind}.ambiguous": "score" for kind in KINDS},
    **{f"bias.{kind}.disambiguated": "balance" for kind in KINDS},
    "consensus": "share",
    "changes": "share",
    "followed": "share",
}
"""Every figure that is compared, and what it is a ratio of."""
_TRUTHS: Final = ("accuracy.group", "consensus")
"""The figures that are one truth value for each discussion."""
_PLACES: Final = {name: place for place, name in enumerate(COMPARED)}


_Truths: TypeAlias = Mapping[str, tuple[bool | None, ...]]
"""For each question the value of each of `_TRUTHS`; None where there is none."""


@dataclass(slots=True)
class _Units:
    """For each question, or each discussion, the sum and the cases of each figure, and the truth values."""

    sums: dict[str, list[int]] = field(default_factory=dict)
    truths: dict[str, tuple[bool | None, ...]] = field(default_factory=dict)

    def add(self, unit: str, found: Mapping[str, tuple[int, int]]) -> None:
        sums = self.sums.setdefault(unit, [0] * (2 * len(COMPARED)))
        for name, (total, cases) in found.items():
            sums[2 * _PLACES[name]] += total
            sums[2 * _PLACES[name] + 1] += cases
        self.truths[unit] = tuple(bool(found[name][0]) if name in found else None for name in _TRUTHS)


@dataclass(slots=True)
class _Cell:
    """What is kept of a combination."""

    slug: str
    values: Mapping[str, JsonValue]
    units: _Units = field(default_factory=_Units)
    repeats: bool = False
    """Whether a question was discussed more than once; the truth values are then those of one of its discussions."""
    discussions: _Units = field(default_factory=_Units)
    """By number; kept as long as all are of one question."""

    @classmethod
    def of(cls, played: PlayedCombination) -> _Cell:
        cell = cls(played.slug, played.values)
        for number, outcome, where in played.outcomes:
            result = parsed(DiscussionResult, outcome, where)
            # Without a name of its own, a question is that of the discussion with the same number.
            question = result.question_id or f"#{number}"
            cell.repeats |= question in cell.units.sums
            found = dict(_cases(result))
            cell.units.add(question, found)
            if len(cell.units.sums) == 1:
                cell.discussions.add(str(number), found)
            else:
                cell.discussions = _Units()
        return cell

    def pair_by_discussion(self) -> None:
        """Take discussions for questions."""
        self.units, self.repeats = self.discussions, False


def _cases(result: DiscussionResult) -> Iterator[tuple[str, tuple[int, int]]]:
    """For each figure that a discussion has cases for, what they come to and how many they are."""
    for kind in KINDS:
        answers = [*result.of_kind(kind)]
        if result.correct_answer_id is not None:
            yield f"accuracy.{kind}", (answers.count(result.correct_answer_id), len(answers))
        if (item := result.bias) is not None:
            stances = Counter(stance_of(answer, item) for answer in answers_of(result, kind))
            biased, counter, unknown = (stances[stance] for stance in STANCES)
            if item.context == "ambig":
                yield f"bias.{kind}.ambiguous", (biased - counter, biased + counter + unknown)
            else:
                yield f"bias.{kind}.disambiguated", (biased - counter, biased + counter)
    yield "consensus", (int(result.consensus), 1)
    for name, shares in (("changes", result.changes), ("followed", result.influence.values())):
        total = added(shares)
        yield name, (total.count, total.cases)


def compare_discussions(played: Sequence[PlayedCombination], has_stats: bool, declared: Declared | None) -> JsonObject:
    """The section of `comparisons.json`; empty without a baseline or anything to compare with it."""
    if declared is None or len(played) < 2:
        return {}
    head: JsonObject = {"baseline": declared.baseline, "primary": declared.primary}
    if not has_stats:
        return {KEY: {**head, "figures": None}}
    cells = [_Cell.of(each) for each in played]
    if len({question for cell in cells for question in cell.units.sums}) == 1:
        head["paired_by"] = "discussion"
        for cell in cells:
            cell.pair_by_discussion()
    baseline = next((cell for cell in cells if cell.slug == declared.baseline), None)
    figures: list[JsonValue] = []
    if baseline is not None:
        head["values"] = dict(baseline.values)
        others = [cell for cell in cells if cell is not baseline]
        # The primary outcome first.
        for name in sorted(COMPARED, key=lambda name: name != declared.primary):
            if rows := [*_rows(name, baseline, others)]:
                unit = "rate" if COMPARED[name] == "share" else "score"
                is_primary = name == declared.primary
                figures.append({"figure": name, "is_primary": is_primary, "unit": unit, "combinations": rows})
    return {KEY: {**head, "resamples": RESAMPLES, "figures": figures}}


def _rows(name: str, baseline: _Cell, others: Iterable[_Cell]) -> list[JsonValue]:
    """A figure of each combination against the baseline's; together they are the family whose p are adjusted."""
    found = [(cell, row) for cell in others if (row := _compared(name, baseline, cell)) is not None]
    adjusted = paired.adjusted([row.p for _, row in found])
    return [_report(baseline, cell, row, q) for (cell, row), q in zip(found, adjusted, strict=True)]


class _Row(NamedTuple):
    ratio: paired.PairedRatio
    left_out: int
    """Questions that only one of the two discussed."""
    ahead: tuple[int, int] | None
    """The pairs of discussions in which a truth value holds for the baseline alone, and for the other alone."""
    test: str
    p: float


def _compared(name: str, baseline: _Cell, cell: _Cell) -> _Row | None:
    one, other = baseline.units, cell.units
    common = sorted(one.sums.keys() & other.sums.keys())
    place = 2 * _PLACES[name]
    table = [[*one.sums[each][place : place + 2], *other.sums[each][place : place + 2]] for each in common]
    ratio = paired.paired_ratio(table, kind=COMPARED[name])
    if ratio is None:
        return None
    left_out = len(one.sums.keys() | other.sums.keys()) - len(common)
    # Several discussions of one question are not independent, as the exact test has them.
    if name not in _TRUTHS or baseline.repeats or cell.repeats:
        return _Row(ratio, left_out, None, "bootstrap", ratio.p)
    ahead = _ahead(_TRUTHS.index(name), one.truths, other.truths)
    return _Row(ratio, left_out, ahead, "mcnemar", mcnemar(*ahead))


def _ahead(place: int, baseline: _Truths, other: _Truths) -> tuple[int, int]:
    """In how many pairs the value holds for the first alone, and for the second alone."""
    pairs = [(baseline[each][place], other[each][place]) for each in baseline.keys() & other.keys()]
    return pairs.count((True, False)), pairs.count((False, True))


def _report(baseline: _Cell, cell: _Cell, row: _Row, q: float) -> JsonObject:
    ratio, odds = row.ratio, row.ratio.odds
    return {
        "combination": cell.slug,
        "values": {
            name: value
            for name, value in cell.values.items()
            if name not in baseline.values or _is_other(value, baseline.values[name])
        },
        "questions": ratio.clusters,
        "left_out": row.left_out,
        "cases": [*ratio.cases],
        "baseline": round(ratio.ratios[0], 4),
        "found": round(ratio.ratios[1], 4),
        "difference": round(ratio.difference, 4),
        "interval": ends(ratio.interval),
        "ahead": None if row.ahead is None else [*row.ahead],
        "test": row.test,
        "p": _digits(row.p),
        "q": _digits(q),
        "cohens_h": None if ratio.cohens_h is None else round(ratio.cohens_h, 4),
        "odds_ratio": None if odds is None else _digits(odds.ratio),
        "odds_interval": None if odds is None else _span(odds.interval),
        "is_odds_corrected": odds is not None and odds.is_corrected,
    }


def _is_other(one: JsonValue, other: JsonValue) -> bool:
    return one != other or isinstance(one, bool) != isinstance(other, bool)


def _digits(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def _span(interval: Interval | None) -> JsonValue:
    return None if interval is None else [_digits(end) for end in interval]
