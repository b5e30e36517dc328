"""The shapes of figures as Vega-Lite: forests, lines over time, survival curves and stacked bars.

Each returns a spec with its data inside. What it shows is in the rows of the figure too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import altair

from mac_runner.figures.estimates import Estimate
from mac_runner.figures.model import Value, number_text
from mac_runner.figures.theme import FOREST_WIDTH, INK, ROW, WIDTH, colours_of, config, dashes_of, shapes_of
from mac_runner.printable import counted
from mac_runner.types import JsonObject

Unit: TypeAlias = Literal["rate", "number", "score", "difference"]
"""Rates are shown in percent, differences of rates in percentage points, scores with their sign."""
Chart: TypeAlias = Any
"""A chart of altair, whose classes are made of the schema."""

_TICKS_MAX: Final = 30
"""With more whole numbers on an axis not all of them are written."""
_TICKS: Final = 6
_SHARES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_ENDS: Final = ("value", "lo", "hi")
_LETTER: Final = 7
"""About the width of a letter, in pixels."""
_SYMBOL: Final = 60
"""The width of a symbol of a legend, with the room beside it."""
_COLUMN: Final = 60
"""The greatest width of a column, in pixels."""
_LABELS: Final[Mapping[str, str]] = {
    "rate": "format(datum.value, '.0%')",
    "number": "format(datum.value, abs(datum.value) >= 1e6 ? '.3~s' : ',.6~g')",
    "score": "format(datum.value, datum.value == 0 ? '.0f' : '+.6~g')",
    "difference": "format(100 * datum.value, abs(datum.value) < 1e-9 ? '.0f' : '+.6~g')",
}
"""How the values of an axis are written."""


def finished(chart: Chart) -> JsonObject:
    """A chart with the configuration of all figures, as Vega-Lite."""
    spec: JsonObject = chart.to_dict()
    spec["config"] = config()
    return spec


def data_of(rows: Sequence[Mapping[str, Value]]) -> Chart:
    """Rows as the data of a chart."""
    return altair.InlineData(values=[dict(row) for row in rows])


def series_of(estimates: Sequence[Estimate]) -> list[str]:
    """The names of the series, in order of appearance."""
    return [*dict.fromkeys(one.series for one in estimates)]


def legend_of(names: Sequence[str], title: str | None = None, **more: Any) -> Chart:
    """A legend of these names, in as many rows as it takes to be no wider than a plot."""
    fit = max(1, WIDTH // (_SYMBOL + _LETTER * max(map(len, names), default=0)))
    return altair.Legend(title=title, columns=fit if len(names) > fit else altair.Undefined, **more)


def line_legend(names: Sequence[str]) -> Chart | None:
    """The legend of lines with dashes; None for one line."""
    return legend_of(names, symbolType="stroke", symbolSize=400) if len(names) > 1 else None


def colour(names: Sequence[str], title: str | None = None, field: str = "series") -> Chart:
    """A colour for each series; the legend is left out for one that has no title."""
    legend = legend_of(names, title) if len(names) > 1 or title else None
    scale = altair.Scale(domain=[*names], range=colours_of(names))
    return altair.Color(f"{field}:N", scale=scale, legend=legend, sort=None)


def shape(names: Sequence[str], title: str | None = None, field: str = "series") -> Chart:
    """A shape for each series."""
    legend = legend_of(names, title) if len(names) > 1 else None
    scale = altair.Scale(domain=[*names], range=shapes_of(names))
    return altair.Shape(f"{field}:N", scale=scale, legend=legend, sort=None)


def dash(names: Sequence[str], legend: Chart | None = None, field: str = "series") -> Chart:
    """A dash for each series; in the legend only where that is given."""
    scale = altair.Scale(domain=[*names], range=dashes_of(names))
    return altair.StrokeDash(f"{field}:N", scale=scale, legend=legend, sort=None)


def forest(
    estimates: Sequence[Estimate], *, title: str, unit: Unit = "rate", units: str, reference: float | None = None
) -> JsonObject:
    """Estimates with their intervals, a row for each label; the numbers stand beside them.

    Series of one label are drawn below each other. `reference` is a dashed line, such as no difference.
    """
    names, labels = series_of(estimates), [*dict.fromkeys(one.label for one in estimates)]
    rows = [_forest_row(one, unit, units) for one in estimates]
    lines = max(len(labels), len({(one.label, one.series) for one in estimates}))
    y = altair.Y("label:N", sort=labels, title=None, axis=altair.Axis(ticks=False, domain=False, labelPadding=12))
    is_nested = lines > len(labels)
    offset: dict[str, Any] = {"yOffset": altair.YOffset("series:N", sort=names)} if is_nested else {}
    ends = [0.0 if reference is None else reference, *(float(row[key] or 0) for row in rows for key in _ENDS)]
    axis, scale = axis_of(unit, ends)
    x = altair.X("value:Q", title=title, scale=scale, axis=axis)
    base = altair.Chart().encode(y=y, **offset)
    intervals = base.mark_rule(strokeWidth=2).encode(x=altair.X("lo:Q", title=title), x2="hi:Q", color=colour(names))
    points = base.mark_point(size=70, filled=True, opacity=1).encode(x=x, color=colour(names), shape=shape(names))
    words = base.mark_text(align="left", baseline="middle", dx=12).encode(
        x=altair.value(FOREST_WIDTH), text="words:N", color=altair.value(INK)
    )
    layers = [intervals, points, words]
    if reference is not None:
        line = altair.Chart(altair.InlineData(values=[{"at": reference}]))
        layers.insert(0, line.mark_rule(strokeDash=[4, 4], opacity=0.6).encode(x=altair.X("at:Q", title=title)))
    height = altair.Step(17 * len(names) + 8, **{"for": "position"}) if is_nested else ROW * max(2, lines)
    return finished(altair.layer(*layers, data=data_of(rows)).properties(width=FOREST_WIDTH, height=height))


def axis_of(unit: Unit, values: Iterable[float]) -> tuple[Chart, Chart]:
    """An axis for values, and its scale. It ends at ticks, whose labels stand apart."""
    ticks = [*_SHARES] if unit == "rate" else ticks_of(values)
    axis = altair.Axis(values=ticks, labelExpr=_LABELS[unit], labelFlush=False)
    return axis, altair.Scale(domain=[ticks[0], ticks[-1]], nice=False)


def ticks_of(values: Iterable[float], count: int = _TICKS) -> list[float]:
    """About so many round numbers, the first and the last beyond all values."""
    found = [*values] or [0.0]
    least, most = min(found), max(found)
    raw = (most - least) / count or max(abs(most), 1.0) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(size * unit for size in (1, 2, 5, 10) if size * unit >= raw * (1 - 1e-9))
    first = math.floor(least / step + 1e-9)
    last = max(first + 1, math.ceil(most / step - 1e-9))
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _forest_row(one: Estimate, unit: Unit, units: str) -> dict[str, Value]:
    return {**_shown(one), "words": _in_words(one, unit, units)}


def _in_words(one: Estimate, unit: Unit, units: str) -> str:
    if one.value is None:
        return "no case"
    ends = "" if one.interval is None else f" ({_number(one.interval.lo, unit)} to {_number(one.interval.hi, unit)})"
    cases = f"{one.n:,} in {counted(one.units, units)}" if one.n != one.units else counted(one.units, units)
    points = " points" if unit == "difference" else ""
    return f"{_number(one.value, unit)}{points}{ends}, {cases}"


def _number(value: float, unit: Unit) -> str:
    match unit:
        case "rate":
            return f"{value:.0%}"
        case "difference":
            return _signed(100 * value, 0)
        case "score":
            return _signed(value, 2)
        case "number":
            return number_text(value).replace("-", "−")


def _signed(value: float, digits: int) -> str:
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}".replace("-", "−") if rounded else "0"


def over_time(
    estimates: Sequence[Estimate],
    *,
    x_title: str,
    title: str,
    unit: Unit = "rate",
    is_survival: bool = False,
    reference: Sequence[Estimate] = (),
) -> JsonObject:
    """Estimates over time, one line with a band for each series; a survival curve goes down in steps.

    `reference` are estimates to compare with, such as chance, drawn as a dashed line without a band.
    """
    names, rows = series_of(estimates), [_time_row(one) for one in estimates]
    times = sorted({int(one.x) for one in (*estimates, *reference)})
    whole = {"values": [*range(times[0], times[-1] + 1)]} if times[-1] - times[0] < _TICKS_MAX else {"tickMinStep": 1}
    padding = 0 if is_survival else 12
    x = altair.X(
        "x:Q",
        title=x_title,
        axis=altair.Axis(format="d", **whole),
        scale=altair.Scale(nice=False, zero=False, padding=padding),
    )
    axis, scale = axis_of(unit, [0.0, *(float(row[key] or 0) for row in rows for key in _ENDS)])
    y = altair.Y("value:Q", title=title, scale=scale, axis=axis)
    layers = _steps(names, x, y, title) if is_survival else _points(names, x, y, title)
    if reference:
        data = data_of([_time_row(one) for one in reference])
        dotted = altair.Chart(data).mark_line(strokeDash=[2, 3], strokeWidth=1.5, color=INK).encode(x=x, y=y)
        last = data_of([_time_row(reference[-1])])
        named = altair.Chart(last).mark_text(align="left", dx=6).encode(x=x, y=y, text="series:N")
        layers += [dotted, named]
    return finished(altair.layer(*layers, data=data_of(rows)).properties(width=WIDTH, height=240))


def _steps(names: Sequence[str], x: Chart, y: Chart, title: str) -> list[Chart]:
    """A line in steps with its band for each series; the dashes are in the legend too."""
    legend = line_legend(names)
    shown = altair.Color(
        "series:N", scale=altair.Scale(domain=[*names], range=colours_of(names)), legend=legend, sort=None
    )
    base = altair.Chart().encode(x=x, color=shown)
    low = altair.Y("lo:Q", title=title)
    band = base.mark_area(opacity=0.15, interpolate="step-after").encode(y=low, y2="hi:Q")
    return [band, base.mark_line(interpolate="step-after", strokeWidth=2).encode(y=y, strokeDash=dash(names, legend))]


def _points(names: Sequence[str], x: Chart, y: Chart, title: str) -> list[Chart]:
    """Points with their intervals, joined by a line; each series has its shape."""
    base = altair.Chart().encode(x=x, color=colour(names))
    ends = base.mark_rule(strokeWidth=1.5).encode(y=altair.Y("lo:Q", title=title), y2="hi:Q")
    points = base.mark_point(size=60, filled=True, opacity=1).encode(y=y, shape=shape(names))
    return [ends, base.mark_line(strokeWidth=2).encode(y=y), points]


def _time_row(one: Estimate) -> dict[str, Value]:
    return {"x": one.x, **_shown(one)}


def _shown(one: Estimate) -> dict[str, Value]:
    lo, hi = (None, None) if one.interval is None else one.interval
    return {"label": one.label, "series": one.series, "value": one.value, "lo": lo, "hi": hi}


def shares(
    rows: Sequence[Mapping[str, Value]], *, parts: Sequence[str], title: str, labels: Sequence[str]
) -> JsonObject:
    """Bars of one length, divided into parts; a row has `label`, `part`, `share` and the text `words` beside the bar.

    The share is written in each part that has room for it, so colour is not needed to read it.
    """
    order = {part: place for place, part in enumerate(parts)}
    kept = [{**row, "order": order[str(row["part"])]} for row in rows]
    base = altair.Chart().encode(
        y=altair.Y("label:N", sort=[*labels], title=None, axis=altair.Axis(ticks=False, domain=False, labelPadding=8)),
        order=altair.Order("order:Q"),
    )
    x = altair.X("share:Q", stack="zero", title=title, axis=(ends := axis_of("rate", ()))[0], scale=ends[1])
    bars = base.mark_bar(height={"band": 0.7}).encode(x=x, color=colour(parts, field="part"))
    middle = altair.X("share:Q", stack="zero", bandPosition=0.5, title=title)
    inside = (
        base.mark_text(color="white", fontSize=11)
        .encode(x=middle, text=altair.Text("share:Q", format=".0%"), detail="part:N")
        .transform_filter(altair.datum.share >= 0.07)
    )
    beside = base.mark_text(align="left", dx=8).encode(x=altair.value(WIDTH), text="words:N", color=altair.value(INK))
    beside = beside.transform_filter(altair.datum.order == 0)
    chart = altair.layer(bars, inside, beside, data=data_of(kept))
    return finished(chart.properties(width=WIDTH, height=max(2, len(labels)) * 28))


def columns(
    rows: Sequence[Mapping[str, Value]], *, x_title: str, title: str, parts: Sequence[str], legend: str | None = None
) -> JsonObject:
    """Counts by a whole number, stacked; a row has `x`, `part` and `count`."""
    order = {part: place for place, part in enumerate(parts)}
    kept = [{**row, "order": order[str(row["part"])]} for row in rows]
    chart = (
        altair.Chart(data_of(kept))
        .mark_bar(width={"band": 0.85}, stroke="white", strokeWidth=0.5)
        .encode(
            x=altair.X("x:O", title=x_title, axis=altair.Axis(labelAngle=0)),
            y=altair.Y("count:Q", title=title, axis=counts_axis(row["count"] for row in rows)),
            color=colour(parts, legend, field="part"),
            order=altair.Order("order:Q"),
        )
    )
    width = min(WIDTH, _COLUMN * len({row["x"] for row in rows}))
    return finished(chart.properties(width=width, height=220))


def counts_axis(counts: Iterable[Value]) -> Chart:
    """An axis of counts, which has whole numbers alone."""
    highest = max((float(count or 0) for count in counts), default=0.0)
    few = {"values": [*range(int(highest) + 1)]} if highest <= _TICKS else {"tickMinStep": 1, "tickCount": _TICKS}
    return altair.Axis(labelExpr=_LABELS["number"], **few)


def panels(
    estimates: Sequence[Estimate], *, x_title: str, title: str, per_row: int = 4, is_survival: bool = True
) -> JsonObject:
    """A small curve with its band for each label, coloured by series."""
    names, labels = series_of(estimates), [*dict.fromkeys(one.label for one in estimates)]
    rows = [_time_row(one) for one in estimates]
    x = altair.X("x:Q", title=x_title, axis=altair.Axis(tickMinStep=1, format="d", tickCount=5))
    y = altair.Y("value:Q", title=title, scale=altair.Scale(domain=[0, 1]), axis=altair.Axis(format=".0%", tickCount=3))
    interpolate: Literal["step-after", "linear"] = "step-after" if is_survival else "linear"
    base = altair.Chart()
    band = base.mark_area(opacity=0.2, interpolate=interpolate).encode(
        x=x, y=altair.Y("lo:Q", title=title), y2="hi:Q", color=colour(names)
    )
    line = base.mark_line(interpolate=interpolate, strokeWidth=2).encode(x=x, y=y, color=colour(names))
    facet = altair.Facet("label:N", sort=labels, title=None)
    layered = altair.layer(band, line, data=data_of(rows)).properties(width=WIDTH // per_row - 12, height=90)
    return finished(layered.facet(facet=facet, columns=min(per_row, len(labels))))
