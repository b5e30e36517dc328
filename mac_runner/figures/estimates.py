"""Rows of numbers with intervals, what has to be said of them, and rates with failed conversations counted as lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mac_runner.figures.charts import forest
from mac_runner.figures.model import ColumnKind, DataColumn, Figure, Method, Value, interval_columns
from mac_runner.intervals import ClusteredRate, Interval

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
