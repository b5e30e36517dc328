"""The figure of differences: how runs differ from the baseline, over what both share or as independent ones.

Rows of numbers with intervals, what has to be said of them, and rates with failed conversations counted as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from mac_runner.compared import (
    CLUSTERS_MIN,
    RESAMPLES,
    Comparison,
    compare,
    compare_apart,
    compare_means,
    how_apart,
    how_paired,
    with_q,
)
from mac_runner.figures.charts import Unit, forest
from mac_runner.figures.model import ColumnKind, DataColumn, Figure, Method, Section, Study, Value, interval_columns
from mac_runner.intervals import ClusteredRate, Interval
from mac_runner.paired import PairedRow, compare_with_baseline, compared_figures, paired_of, paired_row
from mac_runner.printable import counted
from mac_runner.registry import results_specs
from mac_runner.reports.grid import played_combination
from mac_runner.results import Declared, with_defaults

UNITS_MIN: Final = 5
"""With fewer units an interval is not given."""
UNITS_FEW: Final = 15
"""With fewer units an interval may be too narrow."""
_FINISHED: Final = "finished"
_LOST: Final = "failed ones counted too"


def estimate(
    label: str, value: float | None, interval: Interval | None, n: int, clusters: int, series: str = "", x: float = 0
) -> dict[str, Value]:
    """The row of a rate, a mean or a difference on `n` cases of so many clusters, such as players of games."""
    lo, hi = (None, None) if interval is None else interval
    row: dict[str, Value] = {"x": x, "label": label, "series": series, "n": n, "clusters": clusters}
    return {**row, "value": value, "lo": lo, "hi": hi}


def of_rate(label: str, rate: ClusteredRate, *, series: str = "") -> dict[str, Value]:
    """The row of a rate over clusters; with too few of them it has no interval."""
    interval = rate.interval if rate.games >= UNITS_MIN else None
    return estimate(label, rate.wins / rate.n if rate.n else None, interval, rate.n, rate.games, series)


def rate_columns(value: str, kind: ColumnKind, cases: str) -> tuple[DataColumn, ...]:
    """The columns of numbers of such rows, and of rows of measures."""
    return (
        DataColumn(name="n", title=cases, kind="count"),
        DataColumn(name="clusters", title="clusters", kind="count"),
        DataColumn(name="value", title=value, kind=kind),
        *interval_columns(kind),
    )


def interval_notes(rows: Iterable[Mapping[str, Value]], units: str) -> Iterator[str]:
    """What has to be said of the intervals of a figure."""
    found = [int(row["clusters"] or 0) for row in rows if row["value"] is not None]
    if any(n < UNITS_MIN for n in found):
        yield f"With fewer than {UNITS_MIN} {units} there is no interval: too few {units}."
    if any(UNITS_MIN <= n < UNITS_FEW for n in found):
        yield f"With fewer than {UNITS_FEW} {units} an interval may be too narrow."


def failure_notes(failed: int, finished: int, units: str) -> tuple[str, ...]:
    """That some conversations are not in a figure; nothing where none failed."""
    if not failed:
        return ()
    share = failed / (failed + finished)
    return (f"{failed:,} of {failed + finished:,} {units} failed ({share:.1%}) and have no result.",)


def rate_method(unit: str, n: int) -> Method:
    """How the intervals of `of_rate` are made."""
    return Method(
        statement=(
            f"Intervals of rates are Wilson score intervals over the effective number of cases: the cases of one "
            f"{unit} depend on each other, so their number is divided by the design effect (Korn and Graubard 1998)."
        ),
        unit=unit,
        n=n,
        interval="Wilson score over effective cases, 95 %",
    )


class WithFailed(NamedTuple):
    """A rate over the finished conversations, and the cases that failed ones would have had."""

    label: str
    run: str
    rate: ClusteredRate
    failed: int
    cases: int = 1
    """Of one conversation."""


def failures_figure(
    rates: Sequence[WithFailed], *, name: str, title: str, lost: str, failed: int, finished: int, units: str
) -> Figure | None:
    """Each rate twice: over finished conversations, and with the failed ones as `lost`. None where none failed."""
    has_runs = len({one.run for one in rates}) > 1
    rows = [
        of_rate(f"{one.label}, {one.run}" if has_runs else one.label, rate, series=series)
        for one in rates
        if one.failed and one.rate.n
        for series, rate in ((_FINISHED, one.rate), (_LOST, _counted_as_lost(one)))
    ]
    if not rows:
        return None
    return Figure(
        id=name,
        title=title,
        caption=f"Each rate over finished {units}, and with each failed one counted as {lost}. Lines are 95 % "
        f"intervals over {units}.",
        n=finished + failed,
        unit=units,
        columns=(
            DataColumn(name="label", title="result"),
            DataColumn(name="series", title="counting"),
            *rate_columns("rate", "rate", "cases"),
        ),
        rows=tuple(rows),
        spec=forest(rows, title="rate", units=units),
        methods=(rate_method(units.removesuffix("s"), finished + failed),),
        notes=(*failure_notes(failed, finished, units), *interval_notes(rows, units)),
    )


def _counted_as_lost(one: WithFailed) -> ClusteredRate:
    found = replace(one.rate)
    for _ in range(one.failed):
        found.add(0, one.cases)
    return found


_AXES: Final[Mapping[str, tuple[Unit, str]]] = {
    "rate": ("difference", "difference in percentage points"),
    "score": ("score", "difference of scores"),
}
"""How differences are drawn. Means have sizes of their own, so they share no axis."""


Cases: TypeAlias = dict[Any, tuple[float, int]]
"""By cluster, the sum and the cases."""


class Values(NamedTuple):
    """What the conversations of a run have under one name."""

    cases: Cases
    is_rate: bool = True

    def add(self, cluster: Any, total: float, cases: int) -> None:
        """Add the cases of one conversation."""
        if cases:
            before = self.cases.get(cluster, (0, 0))
            self.cases[cluster] = (before[0] + total, before[1] + cases)

    def rates(self) -> dict[Any, tuple[int, int]]:
        """The cases of truth values."""
        return {cluster: (int(total), n) for cluster, (total, n) in self.cases.items()}

    def clustered(self) -> ClusteredRate:
        """The rate, by cluster."""
        rate = ClusteredRate()
        for total, n in self.rates().values():
            rate.add(total, n)
        return rate


def differences(
    runs: Mapping[str, Mapping[str, Values]],
    baseline: str,
    names: Sequence[str],
    defaults: Callable[[str, str], float | None] = lambda _run, _name: None,
) -> list[PairedRow]:
    """How the values of each run differ from the baseline's, in one family: over the clusters that both have, if any.

    Clusters that two runs share have one name in both. `defaults` says how often a run took its default.
    """
    base = runs[baseline]
    found = {
        (name, run): _compared(base[name], values[name])
        for run, values in runs.items()
        if run != baseline
        for name in names
        if name in base and name in values
    }
    return [
        paired_row(
            one,
            figure=name,
            first=run,
            second=baseline,
            combinations=((run,), (baseline,)),
            defaults=(defaults(run, name), defaults(baseline, name)),
            unit="rate" if base[name].is_rate and runs[run][name].is_rate else "mean",
        )
        for (name, run), one in with_q(found).items()
    ]


def _compared(first: Values, second: Values) -> Comparison | None:
    if first.is_rate and second.is_rate:
        return compare(first.rates(), second.rates()) or compare_apart(first.clustered(), second.clustered())
    return compare_means(first.cases, second.cases, is_paired=not first.cases.keys().isdisjoint(second.cases))


def difference_figure(
    rows: Sequence[PairedRow],
    *,
    name: str,
    title: str,
    caption: str,
    by: Sequence[str],
    cluster: str,
    family: str,
    words: Mapping[str, str] | None = None,
    is_primary: bool = False,
) -> Iterator[Figure]:
    """The figure of differences of one unit; none without any.

    `by` are its columns of words, `outcome` and `run`: the labels, then the series. `words` are those of outcomes.
    `family` says over how many comparisons p was adjusted.
    """
    if not rows:
        return
    unit = rows[0].unit
    cells = [_row(row, words or {}) for row in rows]
    kind: ColumnKind = "number" if unit == "mean" else "score"
    optional = (
        DataColumn(name="h", title="Cohen's h", kind="number"),
        DataColumn(name="odds", title="odds ratio", kind="number"),
        *interval_columns("number", "odds_"),
    )
    yield Figure(
        id=name,
        title=title,
        caption=f"{caption} Lines are 95 % intervals; the dashed line is no difference.",
        n=max(row.n for row in rows),
        unit=f"{cluster}s",
        columns=(
            *(DataColumn(name=each, title=each) for each in by),
            DataColumn(name="n", title=f"{cluster}s", kind="count"),
            DataColumn(name="difference", title="difference", kind=kind),
            *interval_columns(kind),
            DataColumn(name="p", title="p", kind="number"),
            DataColumn(name="q", title="q", kind="number"),
            *(optional if any(row.cohens_h is not None for row in rows) else ()),
            DataColumn(name="compared", title="compared"),
        ),
        rows=tuple(cells),
        spec=forest(
            cells,
            label=by[0],
            value="difference",
            unit=_AXES[unit][0],
            title=_AXES[unit][1],
            units=f"{cluster}s",
            group=by[1] if len(by) > 1 else "",
            clusters="n",
            reference=0.0,
        )
        if unit in _AXES
        else None,
        methods=tuple(_methods(rows, cluster, f"Benjamini and Hochberg (q) over {family}")),
        notes=tuple(_notes(rows, cluster)),
        is_primary=is_primary,
    )


def _row(row: PairedRow, words: Mapping[str, str]) -> dict[str, Value]:
    ((run,), _) = row.combinations
    # With a handful of clusters the interval says nothing.
    lo, hi = row.interval if row.interval is not None and row.n >= UNITS_MIN else (None, None)
    odds_lo, odds_hi = row.odds_interval or (None, None)
    return {
        "outcome": words.get(row.figure, row.figure),
        "run": with_defaults(run, row.defaults[0]),
        "n": row.n,
        "difference": row.difference,
        "lo": lo,
        "hi": hi,
        "p": row.p,
        "q": row.q,
        "h": row.cohens_h,
        "odds": row.odds_ratio,
        "odds_lo": odds_lo,
        "odds_hi": odds_hi,
        "compared": "unpaired" if row.ahead is None else "paired",
    }


def _methods(rows: Sequence[PairedRow], cluster: str, correction: str) -> Iterator[Method]:
    paired, apart = ([row for row in rows if (row.ahead is None) is is_apart] for is_apart in (False, True))
    if paired:
        tests = {row.test for row in paired}
        yield Method(
            statement=f"Runs that share {cluster}s are compared {cluster} by {cluster}. Interval and p are of one "
            f"test: {how_paired(cluster, tests)}",
            unit=cluster,
            n=max(row.n for row in paired),
            interval="of the test, 95 %",
            resamples=RESAMPLES if "bootstrap" in tests else 0,
            correction=correction,
        )
    if apart:
        yield Method(
            statement=f"Runs without shared {cluster}s are compared as independent samples, by "
            f"{how_apart({row.test for row in apart})}",
            unit=cluster,
            n=max(row.n for row in apart),
            interval="of the test, 95 %",
            correction=correction,
        )


def _notes(rows: Sequence[PairedRow], cluster: str) -> Iterator[str]:
    if any(row.ahead is None for row in rows):
        yield f"Runs that share no {cluster} are not paired: what chance gave each is a part of the difference."
    if (fewest := min(row.n for row in rows)) < CLUSTERS_MIN:
        few = counted(fewest, f"{cluster}s")
        yield f"Some have {few} only: with fewer than {CLUSTERS_MIN}, intervals are too narrow and p too small."


def paired_sections(study: Study, kind: str) -> tuple[Section, ...]:
    """The chapter of how runs differ from the baseline, over what both were asked; none without compared figures."""
    figures = tuple(_paired_figures(study, kind))
    return (Section(id="differences", title="Differences from the baseline", figures=figures),) if figures else ()


def _paired_figures(study: Study, kind: str) -> Iterator[Figure]:
    """The primary outcome first. Of two runs one figure for all rates and one for all scores; else one for each."""
    baseline, spec = study.reference.name, results_specs()[kind]
    played = [
        played_combination(data.name, data.values, data.count("planned"), kind, data.read_rows()) for data in study.runs
    ]
    paired = paired_of(compare_with_baseline(played, Declared(baseline, study.primary), kind, spec, has_stats=True))
    if paired is None:
        return
    words = {name: figure.words or name for name, figure in compared_figures(spec.measures).items()}
    draw = partial(difference_figure, words=words, cluster=paired.unit, family=f"the {paired.families_in_words()}")
    rows = paired.rows or ()
    if len(study.runs) == 2:
        other = next(run.name for run in study.runs if run.name != baseline)
        for unit, what in (("rate", "rates"), ("score", "scores")):
            yield from draw(
                [row for row in rows if row.unit == unit],
                name=f"difference-{what}",
                title=f"In which {what} does {other} differ from {baseline}?",
                caption=f"{other} less {baseline}, over the {paired.unit}s of both.",
                by=["outcome"],
            )
        return
    for figure in dict.fromkeys(row.figure for row in rows):
        found = [row for row in rows if row.figure == figure]
        title = f"In which runs does the {words[figure]} differ from the baseline's?"
        if found[0].unit == "rate":
            title = f"Which runs have more or fewer {words[figure]} than the baseline?"
        yield from draw(
            found,
            name=f"difference-{figure.replace('.', '-')}",
            title=title,
            caption=f"Difference from {baseline}, over the {paired.unit}s of both.",
            by=["run"],
            is_primary=figure == paired.primary,
        )
