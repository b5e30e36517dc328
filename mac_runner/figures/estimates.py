"""Numbers with intervals as figures show them: one estimate for each row, in words where there is no interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mac_runner.figures.model import ColumnKind, DataColumn, Method, Value, interval_columns
from mac_runner.intervals import ClusteredRate, Interval
from mac_runner.results import number
from mac_runner.types import JsonValue

UNITS_MIN: Final = 5
"""With fewer units an interval is not given."""
UNITS_FEW: Final = 15
"""With fewer units an interval may be too narrow."""


class Estimate(NamedTuple):
    """A rate, a mean or a difference on `n` cases of `units` units, such as players of games."""

    label: str
    value: float | None
    interval: Interval | None
    n: int
    units: int
    series: str = ""
    x: float = 0
    """Where it stands on a time axis."""


def of_rate(label: str, rate: ClusteredRate, *, series: str = "", x: float = 0) -> Estimate:
    """A rate over clusters; with too few of them it has no interval."""
    value = rate.wins / rate.n if rate.n else None
    interval = rate.interval if rate.games >= UNITS_MIN else None
    return Estimate(label, value, interval, rate.n, rate.games, series, x)


def estimate_columns(
    label: str, *, series: str = "", x: str = "", value: str, kind: ColumnKind = "rate", n: str = "", units: str
) -> tuple[DataColumn, ...]:
    """The columns of the rows of `estimate_rows`; what has no title is not printed."""
    named = (
        DataColumn(name="x", title=x, kind="count"),
        DataColumn(name="label", title=label),
        DataColumn(name="series", title=series),
        DataColumn(name="value", title=value, kind=kind),
        *interval_columns(kind),
        DataColumn(name="n", title=n, kind="count"),
        DataColumn(name="units", title=units, kind="count"),
    )
    return tuple(column for column in named if column.title)


def estimate_rows(estimates: Iterable[Estimate]) -> tuple[dict[str, Value], ...]:
    """Estimates as rows."""
    return tuple(map(_row, estimates))


def _row(one: Estimate) -> dict[str, Value]:
    lo, hi = (None, None) if one.interval is None else one.interval
    row: dict[str, Value] = {"x": one.x, "label": one.label, "series": one.series, "value": one.value}
    return {**row, "lo": lo, "hi": hi, "n": one.n, "units": one.units}


def ends_of(interval: JsonValue) -> tuple[float | None, float | None]:
    """The ends of an interval as a summary has it; None twice where it has none."""
    if isinstance(interval, list) and len(interval) == 2:
        return number(interval[0]), number(interval[1])
    return None, None


def interval_notes(estimates: Sequence[Estimate], units: str) -> tuple[str, ...]:
    """What has to be said of the intervals of a figure."""
    found = [one for one in estimates if one.value is not None]
    notes = list[str]()
    if any(one.units < UNITS_MIN for one in found):
        notes.append(f"With fewer than {UNITS_MIN} {units} there is no interval: too few {units}.")
    if any(UNITS_MIN <= one.units < UNITS_FEW for one in found):
        notes.append(f"With fewer than {UNITS_FEW} {units} an interval may be too narrow.")
    return tuple(notes)


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
