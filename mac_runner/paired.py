"""Conversations compared in pairs: the section `paired` of `comparisons.json`, and its table for readers.

Conversations about one question are a pair, or those of one deal. Each figure is a ratio over the conversations of an
arm, such as a combination of a grid. What the conversations of one question come to is kept together: a question is the
cluster. Where all conversations are about one question, as with a single topic, those with the same number are paired.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from mac_runner.compared import CLUSTERS_MIN, Comparison, Kind, compare, how_paired, with_q
from mac_runner.intervals import Interval
from mac_runner.measures import Measure, ResultsSpec
from mac_runner.printable import counted
from mac_runner.results import UNKNOWN, Declared, PlayedCombination, Table, count_text, parsed, with_defaults_column
from mac_runner.structs import as_json
from mac_runner.types import JsonObject, JsonValue

KEY: Final = "paired"
ROWS_SHOWN_MAX: Final = 100
"""How many differences are printed; `comparisons.json` has all of them."""
_Q_MAX: Final = 0.05
Unit: TypeAlias = Literal["rate", "score", "mean"]


class PairedRow(Comparison, frozen=True, kw_only=True):
    """How the first of two differs from the second in one figure, over the clusters that both have.

    `difference` is the first's value less the second's.
    """

    figure: str
    first: str
    """In words, as is the second."""
    second: str = ""
    """Empty for the baseline."""
    given: str = ""
    """What both have in common."""
    combinations: tuple[tuple[str, ...], tuple[str, ...]]
    unit: Unit = "rate"
    left_out: int = 0
    """Clusters that one of the two lacks; of games also those that both lack."""
    defaults: tuple[float | None, float | None] = (None, None)
    """The part of the turns of each that ended with the default act."""

    def text(self, value: float, sign: str = "") -> str:
        """A value: points of a rate, a score as it is."""
        return f"{100 * value:{sign}.1f}" if self.unit == "rate" else f"{value:{sign}.3f}"

    def difference_text(self, points: str = "") -> str:
        """`+12.0 (+3.1 to +20.4)`."""
        return f"{self.text(self.difference, '+')}{points}{_span(self.interval, lambda end: self.text(end, '+'))}"


class Paired(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The section of `comparisons.json`. `rows` is None where nothing could be computed; the primary comes first."""

    of: str
    """The kind of what is compared: `game`, `discussion`."""
    unit: str
    """What is paired, such as `question`."""
    is_of_one: bool = False
    """Whether conversations are paired because all are about one question."""
    baseline: str = ""
    """The combination that all others are compared with; empty where any two are compared."""
    values: dict[str, Any] = {}
    """Those of the baseline, once it has begun."""
    primary: str | None = None
    not_compared: int = 0
    """Pairs of combinations that are left out, because there are too many."""
    rows: tuple[PairedRow, ...] | None

    def section(self) -> JsonObject:
        """As `comparisons.json` has it."""
        return {KEY: as_json(self)}

    def families_in_words(self) -> str:
        """Over how many comparisons each p was adjusted."""
        rows = self.rows or ()
        primary = sum(row.figure == self.primary for row in rows)
        of_others = "all other outcomes together" if primary else "all outcomes"
        others = f"{counted(len(rows) - primary, 'comparisons')} of {of_others}"
        return f"{counted(primary, 'comparisons')} of the primary outcome, and {others}" if primary else others


def paired_of(compared: JsonObject, of: str = "") -> Paired | None:
    """The section, from `comparisons.json`; None where there is none, or it is of another kind than `of`."""
    paired = parsed(Paired, compared[KEY], f"comparisons.json, {KEY}") if KEY in compared else None
    return paired if paired is None or of in ("", paired.of) else None


def paired_row(found: Comparison, *, unit: Unit = "rate", **of: Any) -> PairedRow:
    """The row of a comparison, which is from the second to the first."""

    def kept(value: float) -> float:
        # Means have any size.
        return float(f"{value:.6g}") if unit == "mean" else round(value, 4)

    def short(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.3g}")

    odds = found.odds_interval
    return PairedRow(
        n=found.n,
        cases=found.cases[::-1],
        unit=unit,
        values=(kept(found.values[1]), kept(found.values[0])),
        difference=kept(found.difference),
        interval=None if found.interval is None else Interval(*map(kept, found.interval)),
        ahead=None if found.ahead is None else found.ahead[::-1],
        test=found.test,
        p=short(found.p),
        q=short(found.q),
        cohens_h=None if found.cohens_h is None else round(found.cohens_h, 4),
        odds_ratio=short(found.odds_ratio),
        odds_interval=None if odds is None else Interval(*(float(f"{end:.3g}") for end in odds)),
        is_odds_corrected=found.is_odds_corrected,
        **of,
    )


class ComparedFigure(NamedTuple):
    """A figure that is compared with the baseline's, and what it is called in a sentence."""

    kind: Kind
    words: str


def compared_figures(measures: Iterable[Measure]) -> dict[str, ComparedFigure]:
    """Every figure of measures that is compared with a baseline's, by its name."""
    return {
        shown.name: ComparedFigure(kind, shown.words)
        for measure in measures
        for keys, kind in measure.compared.items()
        if (shown := measure.in_grid(keys)) is not None
    }


def compare_with_baseline(
    played: Sequence[PlayedCombination], declared: Declared | None, kind: str, spec: ResultsSpec, *, has_stats: bool
) -> JsonObject:
    """The section of `comparisons.json` about the measures of one kind; empty without a baseline, or with it alone."""
    if declared is None or len(played) < 2:
        return {}
    paired = Paired(of=kind, unit="question", baseline=declared.baseline, primary=declared.primary, rows=None)
    if not has_stats:
        return paired.section()
    arms = [_Arm.of(each, spec) for each in played]
    has_questions = any(arm.has_questions for arm in arms)
    is_of_one = has_questions and len({question for arm in arms for question in arm.clusters}) == 1
    if is_of_one or not has_questions:
        paired = msgspec.structs.replace(paired, unit=spec.noun.removesuffix("s"), is_of_one=is_of_one)
    if is_of_one:
        arms = [arm.alone or arm for arm in arms]
    if (baseline := next((arm for arm in arms if arm.slug == declared.baseline), None)) is None:
        return msgspec.structs.replace(paired, rows=()).section()
    figures, others = compared_figures(spec.measures), [arm for arm in arms if arm is not baseline]
    found = {
        (name, arm): compare(baseline.sums[name], arm.sums[name], kind=figure.kind, has_effects=True)
        for name, figure in figures.items()
        for arm in others
    }
    families = [
        {key: one for key, one in found.items() if (key[0] == paired.primary) is is_primary}
        for is_primary in (True, False)
    ]
    rows = tuple(
        paired_row(
            one,
            figure=name,
            unit="rate" if figures[name].kind == "share" else "score",
            first=in_words({key: each for key, each in arm.values.items() if baseline.differs(key, each)}),
            combinations=((arm.slug,), (baseline.slug,)),
            left_out=len(baseline.clusters ^ arm.clusters),
        )
        for family in families
        for (name, arm), one in with_q(family).items()
    )
    return msgspec.structs.replace(paired, values=dict(baseline.values), rows=rows).section()


@dataclass(slots=True, eq=False)
class _Arm:
    """What is kept of a combination."""

    slug: str
    values: Mapping[str, JsonValue]
    sums: defaultdict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """For each figure, by cluster, the sum and the cases."""
    clusters: set[str] = field(default_factory=set)
    """Those too of which no figure has a case."""
    has_questions: bool = False
    alone: _Arm | None = None
    """The same by number of the conversation, as long as all are about one question."""

    @classmethod
    def of(cls, played: PlayedCombination, spec: ResultsSpec) -> _Arm:
        measures = [measure for measure in spec.measures if measure.compared]
        arm = cls(played.slug, played.values, alone=cls(played.slug, played.values))
        for number, outcome, where in played.outcomes:
            result, question = spec.read(outcome, where)
            found = [
                (shown.name, measure.pair(keys, counts))
                for measure in measures
                for keys, counts in measure.cases(result)
                if keys in measure.compared and (shown := measure.in_grid((*map(str, keys),))) is not None
            ]
            arm.has_questions |= question is not None
            # Without a name of its own, a question is that of the conversation with the same number.
            arm.add(question or f"#{number}", found)
            if len(arm.clusters) > 1:
                arm.alone = None
            elif arm.alone is not None:
                arm.alone.add(str(number), found)
        return arm

    def add(self, cluster: str, found: Iterable[tuple[str, tuple[int, int]]]) -> None:
        self.clusters.add(cluster)
        for name, (total, cases) in found:
            before = self.sums[name].get(cluster, (0, 0))
            self.sums[name][cluster] = before[0] + total, before[1] + cases

    def differs(self, key: str, value: JsonValue) -> bool:
        """Whether it has another value, or none. A truth value is no number."""
        own = self.values.get(key)
        return key not in self.values or value != own or isinstance(value, bool) != isinstance(own, bool)


def paired_tables(compared: JsonObject, of: str, *, head: str = "figure", note: str = "") -> Iterator[Table | str]:
    """The table, the primary outcome first, and notes on how to read it."""
    paired = paired_of(compared, of)
    if paired is None or paired.rows is None:
        return
    if not paired.rows:
        if paired.baseline:
            yield "No combination has questions in common with the baseline, or the baseline has not begun."
        return
    shown = paired.rows[:ROWS_SHOWN_MAX]
    words = {
        head: [f"{row.figure} *" if row.figure == paired.primary else row.figure for row in shown],
        "first": [row.first for row in shown],
        "second": [row.second for row in shown],
        "given": [row.given for row in shown],
    }
    numbers = {name: [text(row) for row in shown] for name, text in _NUMBERS.items()}
    heads = [[name for name, cells in part.items() if {*cells} - _SAYS_NOTHING] for part in (words, numbers)]
    title = f"paired differences (n {paired.unit}s, each played by both)"
    if paired.baseline:
        title = f"differences from the baseline, {in_words(paired.values)} (n {paired.unit}s)"
    cells = {**words, **numbers}
    rows = [*zip(*(cells[name] for part in heads for name in part), strict=True)]
    table = Table(title, (*heads[0],), (*heads[1],), rows)
    yield with_defaults_column(table, [row.defaults for row in shown], len(table.numbers))
    yield "\n".join(filter(None, [note, *_notes(paired, paired.rows)]))


_SAYS_NOTHING: Final = {"", "0", UNKNOWN}
"""The cells of a column that is left out where no row has others."""
_NUMBERS: Final[Mapping[str, Callable[[PairedRow], str]]] = {
    "n": lambda row: count_text(row.n),
    "left out": lambda row: count_text(row.left_out),
    "first : second": lambda row: " : ".join(map(row.text, row.values)),
    "difference (95% interval)": lambda row: row.difference_text(),
    "ahead": lambda row: " : ".join(map(count_text, row.ahead or ())),
    "p": lambda row: p_text(row.p),
    "q": lambda row: p_text(row.q),
    "h": lambda row: UNKNOWN if row.cohens_h is None else f"{row.cohens_h:+.3f}",
    "odds ratio (95% interval)": lambda row: _odds_text(row),
}


def _notes(paired: Paired, rows: Sequence[PairedRow]) -> Iterator[str]:
    unit, is_declared = paired.unit, bool(paired.baseline)
    if is_declared and paired.primary is None:
        yield "No primary outcome is declared (`report.primary`): all of these are exploratory."
    elif is_declared:
        lacking = "" if any(row.figure == paired.primary for row in rows) else ", of which there are no cases"
        mark = lacking or " (*)"
        yield f"Primary outcome: {paired.primary}{mark}. The other figures are secondary."
    of_one = ", as all are of one question" if paired.is_of_one else ""
    yield f"Paired by {unit}{of_one}. Interval and p of a row are of one test:"
    yield f"{how_paired(unit, {row.test for row in rows})}."
    second = "the baseline" if is_declared else "second"
    yield (
        f"Difference: first less {second}; of rates in points, of scores as they are. Ahead: {unit}s in which only "
        f"first : {second} has it, or has more of it."
    )
    if is_declared:
        yield f"q: p adjusted over {paired.families_in_words()} (Benjamini–Hochberg)."
        yield "h: Cohen's; it and odds ratios are of proportions."
    else:
        yield f"p is of one comparison alone; here are {len(rows)}."
    if any(row.is_odds_corrected for row in rows):
        yield "+: one of four counts was 0, so half a case was added to each (Haldane–Anscombe)."
    if (fewest := min(row.n for row in rows)) < CLUSTERS_MIN:
        few = counted(fewest, f"{unit}s")
        yield f"Some rows have {few} only: with fewer than {CLUSTERS_MIN}, intervals are too narrow and p too small."
    if any(row.left_out for row in rows):
        yield f"Left out: {unit}s that did not finish in both, because one failed or was not played."
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more differences: comparisons.json has all of them."
    if paired.not_compared:
        yield f"{paired.not_compared} more pairs of combinations are not compared."


def primary_words(compared: JsonObject) -> str:
    """The primary outcome in a sentence: of several combinations the one that differs most from the baseline."""
    paired = paired_of(compared)
    rows = [row for row in (paired.rows if paired else None) or () if paired and row.figure == paired.primary]
    if paired is None or not rows:
        return ""
    most = max(rows, key=lambda row: abs(row.difference))
    found = f"{most.difference_text(' points' if most.unit == 'rate' else '')}, p {p_text(most.p)}"
    largest = "largest " if len(rows) > 1 else ""
    head = f"{most.figure}: {largest}difference from the baseline {found}"
    head += f", n {counted(most.n, f'{paired.unit}s')} ({most.first})"
    if len(rows) == 1:
        return head
    differing = sum((row.q or 1.0) < _Q_MAX for row in rows)
    return f"{head}; {differing} of {len(rows)} combinations differ (q < {_Q_MAX})"


def _span(ends: Interval | None, text: Callable[[float], str]) -> str:
    return "" if ends is None else f" ({text(ends[0])} to {text(ends[1])})"


def _odds_text(row: PairedRow) -> str:
    if row.odds_ratio is None:
        return UNKNOWN
    mark = "+" if row.is_odds_corrected else ""
    return f"{row.odds_ratio:.2f}{mark}{_span(row.odds_interval, '{:.2f}'.format)}"


def p_text(value: float | None) -> str:
    """`0.012`."""
    if value is None:
        return UNKNOWN
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def in_words(values: Mapping[str, JsonValue]) -> str:
    """`identity_shown true, presence_mode hidden`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in texts.items())
