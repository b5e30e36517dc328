"""The plots of every run and of discussions: those of `charts` from rows, and bars, steps, histograms and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import altair

from mac_runner.figures import charts
from mac_runner.figures.charts import Chart, axis_of, colour, counts_axis, data_of, finished
from mac_runner.figures.estimates import Estimate
from mac_runner.figures.model import Value
from mac_runner.figures.theme import COLOURS, INK, ROW, WIDTH
from mac_runner.intervals import Interval
from mac_runner.types import JsonObject

Rows: TypeAlias = Sequence[Mapping[str, Value]]
Axis: TypeAlias = Literal["rate", "number"]

_ROUNDS_MAX: Final = 30
_CELL: Final = 26
_WORDS: Final = 76
"""The width of a cell of a heat map that holds a count and a share."""


def estimates_of(
    rows: Rows, label: str, *, value: str = "value", group: str = "", x: str = "", units: str = "clusters"
) -> list[Estimate]:
    """Rows that have a `value`, the ends `lo` and `hi` of its interval, and `n` cases in so many units."""
    return [
        Estimate(
            label=str(row.get(label, "")),
            value=_number(row.get(value)),
            interval=_interval(row),
            n=int(_number(row.get("n")) or 0),
            units=int(_number(row.get(units)) or _number(row.get("n")) or 0),
            series=str(row[group]) if group else "",
            x=_number(row.get(x)) or 0.0,
        )
        for row in rows
    ]


def forest(
    rows: Rows,
    *,
    label: str,
    value: str = "value",
    unit: charts.Unit,
    title: str,
    units: str,
    clusters: str = "clusters",
    group: str = "",
    reference: float | None = None,
) -> JsonObject:
    """A point with its interval for each row; `units` are what intervals go by."""
    estimates = estimates_of(rows, label, value=value, group=group, units=clusters)
    return charts.forest(estimates, title=title, unit=unit, units=units, reference=reference)


def by_round(
    rows: Rows, *, title: str, unit: charts.Unit, group: str = "", x_title: str = "round", last: str = ""
) -> JsonObject:
    """A line over the rounds with an interval at each point, one for each group; groups stand side by side.

    `last` is what the axis says in place of the last round.
    """
    names = [*dict.fromkeys(str(row[group]) for row in rows)] if group else [""]
    rounds = sorted({int(_number(row["round"]) or 0) for row in rows})
    beside = {name: 0.06 * (place - (len(names) - 1) / 2) for place, name in enumerate(names)}
    placed = [
        {**row, "group": name, "at": (_number(row["round"]) or 0) + beside[name]}
        for row in rows
        for name in [str(row[group]) if group else ""]
    ]
    written: dict[str, Any] = {"format": "d"}
    if last:
        written = {"labelExpr": f"datum.value == {rounds[-1]} ? '{last}' : format(datum.value, 'd')"}
    x = altair.X(
        "at:Q",
        title=x_title,
        axis=altair.Axis(values=rounds[:: 1 + len(rounds) // _ROUNDS_MAX], labelFlush=False, **written),
        scale=altair.Scale(domain=[rounds[0] - 0.25, rounds[-1] + 0.25], nice=False),
    )
    axis, scale = axis_of(unit, [0.0, *(_number(row.get(key)) or 0.0 for row in rows for key in ("value", "lo", "hi"))])
    y = altair.Y("value:Q", title=title, axis=axis, scale=scale)
    base = altair.Chart().encode(x=x, color=colour(names, field="group"))
    ends = base.mark_rule(strokeWidth=1.5).encode(y=altair.Y("lo:Q", title=title, scale=scale), y2="hi:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y)
    points = base.mark_point(size=60, filled=True, opacity=1).encode(y=y, shape=charts.shape(names, field="group"))
    return finished(altair.layer(ends, line, points, data=data_of(placed)).properties(width=WIDTH, height=220))


def steps(
    rows: Rows,
    *,
    x: str,
    y: str,
    titles: tuple[str, str],
    group: str,
    unit: Axis = "number",
    is_log: bool = False,
) -> JsonObject:
    """A line in steps over a number, one for each group."""
    names = [*dict.fromkeys(str(row[group]) for row in rows)]
    axis, scale = axis_of(unit, [0.0, *(_number(row.get(y)) or 0.0 for row in rows)])
    across = altair.X(
        f"{x}:Q",
        title=titles[0],
        scale=altair.Scale(type="log") if is_log else altair.Scale(nice=False),
        axis=altair.Axis(format=",.6~g", tickCount=6, labelFlush=False),
    )
    shown = colour(names, field=group)
    shown.legend = charts.line_legend(names)
    chart = (
        altair.Chart(data_of(rows))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=across,
            y=altair.Y(f"{y}:Q", title=titles[1], axis=axis, scale=scale),
            color=shown,
            strokeDash=charts.dash(names, field=group),
        )
    )
    return finished(chart.properties(width=WIDTH, height=200))


def bars(rows: Rows, *, label: str, value: str, title: str, group: str = "") -> JsonObject:
    """Horizontal bars in the order of the rows, stacked by `group`; a number stands at the end of each."""
    labels = [*dict.fromkeys(str(row[label]) for row in rows)]
    y = altair.Y(f"{label}:N", sort=labels, title=None, axis=altair.Axis(ticks=False, domain=False))
    totals_of: dict[str, float] = {}
    for row in rows:
        totals_of[str(row[label])] = totals_of.get(str(row[label]), 0.0) + (_number(row[value]) or 0.0)
    axis, scale = axis_of("number", [0.0, *totals_of.values()])
    x = altair.X(f"{value}:Q", title=title, stack="zero", axis=axis, scale=scale)
    names = [*dict.fromkeys(str(row[group]) for row in rows)] if group else [""]
    shown: Chart = altair.value(COLOURS[0])
    if group:
        shown = colour(names, field=group)
    drawn = altair.Chart().mark_bar(stroke="white", strokeWidth=0.6).encode(x=x, y=y, color=shown)
    totals = (
        altair.Chart()
        .mark_text(align="left", dx=6)
        .encode(y=y, x=altair.X(f"sum({value}):Q"), text=altair.Text(f"sum({value}):Q", format=",.4~g"))
    )
    chart = altair.layer(drawn, totals, data=data_of(rows))
    return finished(chart.properties(width=WIDTH, height=ROW * max(2, len(labels))))


def histogram(rows: Rows, *, lo: str, hi: str, count: str, title: str, counted: str) -> JsonObject:
    """Counts of classes whose ends are in the rows."""
    axis, scale = axis_of("number", [_number(row[key]) or 0.0 for row in rows for key in (lo, hi)])
    chart = (
        altair.Chart(data_of(rows))
        .mark_bar(color=COLOURS[0], stroke="white", strokeWidth=0.5)
        .encode(
            x=altair.X(f"{lo}:Q", title=title, scale=scale, axis=axis),
            x2=f"{hi}:Q",
            y=altair.Y(f"{count}:Q", title=counted, axis=counts_axis(row[count] for row in rows)),
            y2=altair.Y2Datum(0),
        )
    )
    return finished(chart.properties(width=WIDTH, height=170))


def heat(
    rows: Rows,
    *,
    across: str,
    down: str,
    value: str,
    text: str,
    titles: tuple[str, str],
    is_score: bool = False,
    is_sorted: bool = False,
) -> JsonObject:
    """A cell for each row, coloured by a share, or a score from −1 to 1; its number is written in it.

    A comma ends a line in the names of columns.
    """
    columns = [*dict.fromkeys(str(row[across]) for row in rows)]
    names = [*dict.fromkeys(str(row[down]) for row in rows)]
    if is_sorted:
        columns, names = sorted(columns), sorted(names)
    widest = max((len(part) for column in columns for part in column.split(", ")), default=1)
    limits = [-1, 1] if is_score else [0, 1]
    is_dark = f"abs(datum['{value}']) > {0.72 if is_score else 0.55}"
    x = altair.X(
        f"{across}:N",
        sort=columns,
        title=titles[0] or None,
        axis=altair.Axis(
            orient="top",
            labelAngle=0,
            ticks=False,
            domain=False,
            labelExpr="split(datum.label, ', ')",
            labelLineHeight=14,
            labelPadding=4 + 14 * (max(column.count(", ") for column in columns)),
        ),
    )
    y = altair.Y(
        f"{down}:N",
        sort=names,
        title=titles[1] or None,
        axis=altair.Axis(ticks=False, domain=False, labelPadding=6, titlePadding=18),
    )
    base = altair.Chart().encode(x=x, y=y)
    colours = altair.Color(
        f"{value}:Q", scale=altair.Scale(scheme="blueorange" if is_score else "blues", domain=limits), legend=None
    )
    squares = base.mark_rect(stroke="white").encode(color=colours)
    # A cell without a number has the ground of the page.
    ink = {
        "condition": [{"test": f"datum['{value}'] === null", "value": INK}, {"test": is_dark, "value": "white"}],
        "value": "black",
    }
    words = base.mark_text().encode(text=f"{text}:N", color=altair.ColorValue.from_dict(ink))
    width = max(_WORDS, 8 * widest + 10)
    chart = altair.layer(squares, words, data=data_of(rows))
    return finished(chart.properties(width=width * len(columns), height=_CELL * len(names)))


def _number(value: Value) -> float | None:
    return None if isinstance(value, str | None) else float(value)


def _interval(row: Mapping[str, Value]) -> Interval | None:
    lo, hi = _number(row.get("lo")), _number(row.get("hi"))
    return None if lo is None or hi is None else Interval(lo, hi)
