"""Results with failed conversations counted as lost: whether failing could change what a report says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mac_runner.figures.charts import forest
from mac_runner.figures.estimates import (
    estimate_columns,
    failure_notes,
    interval_notes,
    of_rate,
    rate_method,
)
from mac_runner.figures.model import Figure
from mac_runner.intervals import ClusteredRate

_FINISHED: Final = "finished"
_LOST: Final = "failed ones counted too"


class Counted(NamedTuple):
    """A rate over the finished conversations, and the cases that failed ones would have had."""

    label: str
    rate: ClusteredRate
    cases: int
    """Of one conversation."""
    failed: int


def failures_figure(
    counted: Sequence[Counted], *, name: str, title: str, lost: str, failed: int, finished: int, units: str
) -> Figure | None:
    """Each rate twice: over finished conversations, and with the failed ones as `lost`. None where none failed."""
    rows = [
        of_rate(one.label, rate, series=series)
        for one in counted
        if one.failed and one.rate.n
        for series, rate in ((_FINISHED, one.rate), (_LOST, counted_as_lost(one.rate, one.failed, cases=one.cases)))
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
        columns=estimate_columns("result", series="counting", value="rate", n="cases", units=units),
        rows=tuple(rows),
        spec=forest(rows, title="rate", units=units),
        methods=(rate_method(units.removesuffix("s"), finished + failed),),
        notes=(*failure_notes(failed, finished, units), *interval_notes(rows, units)),
    )


def counted_as_lost(rate: ClusteredRate, failed: int, *, cases: int) -> ClusteredRate:
    """The rate with so many failed conversations of `cases` cases each, all lost."""
    found = replace(rate)
    for _ in range(failed):
        found.add(0, cases)
    return found
