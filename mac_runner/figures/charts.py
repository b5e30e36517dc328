"""How figures look, and their shapes as Vega-Lite: forests, lines, survival curves, bars, histograms and heat maps.

Each shape is made of the rows of a figure and returns a spec with its data inside. Text and lines have the colour of
the page (`currentColor`), so one figure suits a light page, a dark page and paper. The colours are those of Okabe and
Ito, which colour-blind readers can distinguish; a shape or a dash says the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import altair

from mac_runner.figures.model import Value, number_text
from mac_runner.printable import counted
from mac_runner.types import JsonObject

Rows: TypeAlias = Sequence[Mapping[str, Value]]
Unit: TypeAlias = Literal["rate", "number", "score", "difference"]
"""Rates are shown in percent, differences of rates in percentage points, scores with their sign."""
Across: TypeAlias = Literal["whole", "number", "logarithm"]
"""An axis of whole numbers, each with its tick, or of any."""
Chart: TypeAlias = Any
"""A chart of altair, whose classes are made of the schema."""

INK: Final = "currentColor"
FONT: Final = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
WIDTH: Final = 520
"""Of the plot in pixels; with labels a figure fits the text of an A4 page."""
FOREST_WIDTH: Final = 370
"""Of the plot of a forest, which has labels and numbers on both sides."""
ROW: Final = 22
"""The height of a row of a forest plot, in pixels."""
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
SHAPES: Final = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
"""One fewer than the colours, and so are the dashes: names that share a colour differ in these."""
DASHES: Final = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (4, 4), (10, 2))
NAMED_COLOURS: Final[Mapping[str, str]] = {
    "town": "#009e73",
    "mafia": "#d55e00",
    "neutral": "#0072b2",
    "honest": "#0072b2",
    "lie": "#d55e00",
    "unclear": "#8c8c8c",
}
"""What has the same colour in every figure."""
_TEXT: Final[JsonObject] = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
_CONFIG: Final[JsonObject] = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        **_TEXT,
        "titleFontWeight": "normal",
        "domainColor": INK,
        "tickColor": INK,
        "domainOpacity": 0.4,
        "tickOpacity": 0.4,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "labelLimit": 300,
        "titlePadding": 10,
    },
    "legend": {
        **_TEXT,
        "titleFontWeight": "normal",
        "orient": "top",
        "symbolStrokeWidth": 2,
        "symbolOpacity": 1,
        "columnPadding": 36,
        "labelLimit": 300,
    },
    "header": {**_TEXT, "labelFontWeight": "bold", "titleFontWeight": "normal"},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
}

_TICKS_MAX: Final = 30
"""With more whole numbers on an axis not all of them are written."""
_TICKS: Final = 6
_SHARES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_LETTER: Final = 7
"""About the width of a letter, in pixels."""
_SYMBOL: Final = 60
"""The width of a symbol of a legend, with the room beside it."""
_COLUMN: Final = 60
"""The greatest width of a column, in pixels."""
_PANELS: Final = 4
"""Panels in a row."""
_CELL: Final = 26
_WORDS: Final = 76
"""The width of a cell of a heat map that holds a count and a share."""
_LABELS: Final[Mapping[str, str]] = {
    "rate": "format(datum.value, '.0%')",
    "number": "format(datum.value, abs(datum.value) >= 1e6 ? '.3~s' : ',.6~g')",
    "score": "format(datum.value, datum.value == 0 ? '.0f' : '+.6~g')",
    "difference": "format(100 * datum.value, abs(datum.value) < 1e-9 ? '.0f' : '+.6~g')",
}
"""How the values of an axis are written."""


def colours_of(names: Sequence[str]) -> list[str]:
    """A colour for each name; names beyond the palette repeat it, and differ by shape and label."""
    free = [colour for colour in COLOURS if colour not in {NAMED_COLOURS.get(name) for name in names}] or [*COLOURS]
    found, place = list[str](), 0
    for name in names:
        if name in NAMED_COLOURS:
            found.append(NAMED_COLOURS[name])
        else:
            found.append(free[place % len(free)])
            place += 1
    return found


def shapes_of(names: Sequence[str]) -> list[str]:
    """A shape for each name."""
    return [SHAPES[place % len(SHAPES)] for place in range(len(names))]


def dashes_of(names: Sequence[str]) -> list[list[int]]:
    """A dash for each name."""
    return [[*DASHES[place % len(DASHES)]] for place in range(len(names))]


def forest(
    rows: Rows,
    *,
    title: str,
    units: str,
    unit: Unit = "rate",
    label: str = "label",
    value: str = "value",
    group: str = "series",
    clusters: str = "clusters",
    reference: float | None = None,
) -> JsonObject:
    """A point with its interval for each row, a line for each label; the numbers stand beside them.

    Groups of one label are drawn below each other. Intervals go by `units`, of which a row has as many as `clusters`
    says. `reference` is a dashed line, such as no difference.
    """
    points = [
        {
            **_point(row, value, group),
            "label": str(row.get(label, "")),
            "words": _words(row, value, clusters, unit, units),
        }
        for row in rows
    ]
    names, labels = _each(points, "series"), _each(points, "label")
    lines = max(len(labels), len({(point["label"], point["series"]) for point in points}))
    y = altair.Y("label:N", sort=labels, title=None, axis=altair.Axis(ticks=False, domain=False, labelPadding=12))
    is_nested = lines > len(labels)
    offset: dict[str, Any] = {"yOffset": altair.YOffset("series:N", sort=names)} if is_nested else {}
    axis, scale = axis_of(unit, [0.0 if reference is None else reference, *_ends(points)])
    x = altair.X("value:Q", title=title, scale=scale, axis=axis)
    base = altair.Chart().encode(y=y, **offset)
    intervals = base.mark_rule(strokeWidth=2).encode(x=altair.X("lo:Q", title=title), x2="hi:Q", color=_colour(names))
    marks = base.mark_point(size=70, filled=True, opacity=1).encode(x=x, color=_colour(names), shape=_shape(names))
    words = base.mark_text(align="left", baseline="middle", dx=12).encode(
        x=altair.value(FOREST_WIDTH), text="words:N", color=altair.value(INK)
    )
    layers = [intervals, marks, words]
    if reference is not None:
        line = altair.Chart(altair.InlineData(values=[{"at": reference}]))
        layers.insert(0, line.mark_rule(strokeDash=[4, 4], opacity=0.6).encode(x=altair.X("at:Q", title=title)))
    height = altair.Step(17 * len(names) + 8, **{"for": "position"}) if is_nested else ROW * max(2, lines)
    return _layered(layers, points, width=FOREST_WIDTH, height=height)


def over_time(
    rows: Rows,
    *,
    title: str,
    x_title: str,
    x: str = "x",
    value: str = "value",
    unit: Unit = "rate",
    group: str = "series",
    across: Across = "whole",
    is_stepped: bool = False,
    last: str = "",
    reference: Rows = (),
) -> JsonObject:
    """A line for each group, with intervals as bars at its points; one in steps has a band, and its dash.

    `last` is what the axis says in place of its last number. `reference` has rows to compare with, such as chance,
    drawn as a dashed line.
    """
    points = [{**row, **_point(row, value, group), "x": _number(row[x]) or 0.0} for row in rows]
    names = _each(points, "series")
    at = sorted({point["x"] for point in points} | {_number(row[x]) or 0.0 for row in reference})
    if not is_stepped:
        # Points of several groups stand side by side.
        beside = {name: 0.06 * (place - (len(names) - 1) / 2) for place, name in enumerate(names)}
        points = [{**point, "x": point["x"] + beside[str(point["series"])]} for point in points]
    axis, scale = axis_of(unit, [0.0, *_ends(points)])
    horizontal = _across(across, at, x_title, last, room=0.0 if is_stepped else 0.25)
    y = altair.Y("value:Q", title=title, scale=scale, axis=axis)
    low = altair.Y("lo:Q", title=title)
    if is_stepped:
        legend = _legend(names, symbolType="stroke", symbolSize=400) if len(names) > 1 else None
        shown = altair.Scale(domain=names, range=colours_of(names))
        dashes = altair.Scale(domain=names, range=dashes_of(names))
        base = altair.Chart().encode(
            x=horizontal, color=altair.Color("series:N", scale=shown, legend=legend, sort=None)
        )
        band = base.mark_area(opacity=0.15, interpolate="step-after").encode(y=low, y2="hi:Q")
        line = base.mark_line(interpolate="step-after", strokeWidth=2).encode(
            y=y, strokeDash=altair.StrokeDash("series:N", scale=dashes, legend=legend, sort=None)
        )
        layers = [band, line] if any(point["lo"] is not None for point in points) else [line]
    else:
        base = altair.Chart().encode(x=horizontal, color=_colour(names))
        layers = [
            base.mark_rule(strokeWidth=1.5).encode(y=low, y2="hi:Q"),
            base.mark_line(strokeWidth=2).encode(y=y),
            base.mark_point(size=60, filled=True, opacity=1).encode(y=y, shape=_shape(names)),
        ]
    if reference:
        drawn = [{**_point(row, value, group), "x": _number(row[x]) or 0.0} for row in reference]
        dotted = altair.Chart(_data(drawn)).mark_line(strokeDash=[2, 3], strokeWidth=1.5, color=INK)
        named = altair.Chart(_data(drawn[-1:])).mark_text(align="left", dx=6)
        layers += [dotted.encode(x=horizontal, y=y), named.encode(x=horizontal, y=y, text="series:N")]
    return _layered(layers, points, width=WIDTH, height=220)


def panels(rows: Rows, *, x_title: str, title: str) -> JsonObject:
    """A small curve in steps with its band for each label, coloured by series."""
    points = [{**_point(row), "x": row["x"], "label": row["label"]} for row in rows]
    names, labels = _each(points, "series"), _each(points, "label")
    x = altair.X("x:Q", title=x_title, axis=altair.Axis(tickMinStep=1, format="d", tickCount=5))
    y = altair.Y("value:Q", title=title, scale=altair.Scale(domain=[0, 1]), axis=altair.Axis(format=".0%", tickCount=3))
    base = altair.Chart().encode(x=x, color=_colour(names))
    band = base.mark_area(opacity=0.2, interpolate="step-after").encode(y=altair.Y("lo:Q", title=title), y2="hi:Q")
    line = base.mark_line(interpolate="step-after", strokeWidth=2).encode(y=y)
    layered = altair.layer(band, line, data=_data(points)).properties(width=WIDTH // _PANELS - 12, height=90)
    facet = altair.Facet("label:N", sort=labels, title=None)
    return _finished(layered.facet(facet=facet, columns=min(_PANELS, len(labels))))


def shares(rows: Rows, *, title: str) -> JsonObject:
    """Bars of one length, divided into parts; a row has `label`, `part`, `share` and the text `words` beside the bar.

    The share is written in each part that has room for it, so colour is not needed to read it.
    """
    labels, parts = _each(rows, "label"), _each(rows, "part")
    y = altair.Y("label:N", sort=labels, title=None, axis=altair.Axis(ticks=False, domain=False, labelPadding=8))
    base = altair.Chart().encode(y=y, order=altair.Order("order:Q"))
    axis, scale = axis_of("rate", ())
    x = altair.X("share:Q", stack="zero", title=title, axis=axis, scale=scale)
    bars = base.mark_bar(height={"band": 0.7}).encode(x=x, color=_colour(parts, field="part"))
    middle = altair.X("share:Q", stack="zero", bandPosition=0.5, title=title)
    inside = (
        base.mark_text(color="white", fontSize=11)
        .encode(x=middle, text=altair.Text("share:Q", format=".0%"), detail="part:N")
        .transform_filter(altair.datum.share >= 0.07)
    )
    beside = base.mark_text(align="left", dx=8).encode(x=altair.value(WIDTH), text="words:N", color=altair.value(INK))
    beside = beside.transform_filter(altair.datum.order == 0)
    return _layered([bars, inside, beside], _ordered(rows, parts), width=WIDTH, height=max(2, len(labels)) * 28)


def columns(rows: Rows, *, x_title: str, title: str, legend: str) -> JsonObject:
    """Counts by a whole number, stacked; a row has `x`, `part` and `count`."""
    parts = _each(rows, "part")
    bars = altair.Chart().mark_bar(width={"band": 0.85}, stroke="white", strokeWidth=0.5)
    drawn = bars.encode(
        x=altair.X("x:O", title=x_title, axis=altair.Axis(labelAngle=0)),
        y=altair.Y("count:Q", title=title, axis=_counts_axis(rows)),
        color=_colour(parts, legend, field="part"),
        order=altair.Order("order:Q"),
    )
    width = min(WIDTH, _COLUMN * len({row["x"] for row in rows}))
    return _layered([drawn], _ordered(rows, parts), width=width, height=220)


def bars(rows: Rows, *, label: str, value: str, title: str, group: str = "") -> JsonObject:
    """Horizontal bars in the order of the rows, stacked by `group`; a number stands at the end of each."""
    totals = dict[str, float]()
    for row in rows:
        totals[str(row[label])] = totals.get(str(row[label]), 0.0) + (_number(row[value]) or 0.0)
    y = altair.Y(f"{label}:N", sort=[*totals], title=None, axis=altair.Axis(ticks=False, domain=False))
    axis, scale = axis_of("number", [0.0, *totals.values()])
    x = altair.X(f"{value}:Q", title=title, stack="zero", axis=axis, scale=scale)
    shown = _colour(_each(rows, group), field=group) if group else altair.value(COLOURS[0])
    drawn = altair.Chart().mark_bar(stroke="white", strokeWidth=0.6).encode(x=x, y=y, color=shown)
    ends = altair.Chart().mark_text(align="left", dx=6)
    summed = ends.encode(y=y, x=f"sum({value}):Q", text=altair.Text(f"sum({value}):Q", format=",.4~g"))
    return _layered([drawn, summed], rows, width=WIDTH, height=ROW * max(2, len(totals)))


def histogram(rows: Rows, *, title: str, counted: str) -> JsonObject:
    """Counts of classes; a row has `from`, `to` and `count`."""
    axis, scale = axis_of("number", [_number(row[key]) or 0.0 for row in rows for key in ("from", "to")])
    drawn = altair.Chart().mark_bar(color=COLOURS[0], stroke="white", strokeWidth=0.5)
    drawn = drawn.encode(
        x=altair.X("from:Q", title=title, scale=scale, axis=axis),
        x2="to:Q",
        y=altair.Y("count:Q", title=counted, axis=_counts_axis(rows)),
        y2=altair.Y2Datum(0),
    )
    return _layered([drawn], rows, width=WIDTH, height=170)


def heat(
    rows: Rows,
    *,
    across: str,
    down: str,
    titles: tuple[str, str],
    value: str = "value",
    is_score: bool = False,
    is_sorted: bool = False,
) -> JsonObject:
    """A cell for each row, coloured by a share, or a score from −1 to 1; its `text` is written in it.

    A comma ends a line in the names of columns.
    """
    columns, names = _each(rows, across), _each(rows, down)
    if is_sorted:
        columns, names = sorted(columns), sorted(names)
    widest = max((len(part) for column in columns for part in column.split(", ")), default=1)
    over = altair.Axis(
        orient="top",
        labelAngle=0,
        ticks=False,
        domain=False,
        labelExpr="split(datum.label, ', ')",
        labelLineHeight=14,
        labelPadding=4 + 14 * (max(column.count(", ") for column in columns)),
    )
    beside = altair.Axis(ticks=False, domain=False, labelPadding=6, titlePadding=18)
    base = altair.Chart().encode(
        x=altair.X(f"{across}:N", sort=columns, title=titles[0] or None, axis=over),
        y=altair.Y(f"{down}:N", sort=names, title=titles[1] or None, axis=beside),
    )
    scale = altair.Scale(scheme="blueorange" if is_score else "blues", domain=[-1, 1] if is_score else [0, 1])
    colours = altair.Color(f"{value}:Q", scale=scale, legend=None)
    dark = 0.72 if is_score else 0.55
    squares = base.mark_rect(stroke="white").encode(color=colours)
    # A cell without a number has the ground of the page.
    ink = {
        "condition": [
            {"test": f"datum['{value}'] === null", "value": INK},
            {"test": f"abs(datum['{value}']) > {dark}", "value": "white"},
        ],
        "value": "black",
    }
    words = base.mark_text().encode(text="text:N", color=altair.ColorValue.from_dict(ink))
    width = max(_WORDS, 8 * widest + 10)
    return _layered([squares, words], rows, width=width * len(columns), height=_CELL * len(names))


def axis_of(unit: Unit, values: Iterable[float]) -> tuple[Chart, Chart]:
    """An axis for values, and its scale. It ends at ticks, whose labels stand apart."""
    ticks = [*_SHARES] if unit == "rate" else ticks_of(values)
    axis = altair.Axis(values=ticks, labelExpr=_LABELS[unit], labelFlush=False)
    return axis, altair.Scale(domain=[ticks[0], ticks[-1]], nice=False)


def ticks_of(values: Iterable[float]) -> list[float]:
    """Some round numbers, the first and the last beyond all values."""
    found = [*values] or [0.0]
    least, most = min(found), max(found)
    raw = ((most - least) or max(abs(most), 1.0)) / _TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(size * unit for size in (1, 2, 5, 10) if size * unit >= raw * (1 - 1e-9))
    first = math.floor(least / step + 1e-9)
    last = max(first + 1, math.ceil(most / step - 1e-9))
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _across(across: Across, at: Sequence[float], title: str, last: str, room: float) -> Chart:
    """The horizontal axis of lines with points at these places, and `room` on both sides."""
    if across != "whole":
        axis = altair.Axis(format=",.6~g", tickCount=_TICKS, labelFlush=False)
        scale = altair.Scale(type="log") if across == "logarithm" else altair.Scale(nice=False)
        return altair.X("x:Q", title=title, axis=axis, scale=scale)
    whole = [*range(int(at[0]), int(at[-1]) + 1)]
    written = (
        f"datum.value == {whole[-1]} ? '{last}' : format(datum.value, 'd')" if last else "format(datum.value, 'd')"
    )
    axis = altair.Axis(values=whole[:: 1 + len(whole) // _TICKS_MAX], labelExpr=written, labelFlush=False)
    scale = altair.Scale(domain=[at[0] - room, at[-1] + room], nice=False)
    return altair.X("x:Q", title=title, axis=axis, scale=scale)


def _counts_axis(rows: Rows) -> Chart:
    """An axis of counts, which has whole numbers alone."""
    highest = max((_number(row["count"]) or 0.0 for row in rows), default=0.0)
    few = {"values": [*range(int(highest) + 1)]} if highest <= _TICKS else {"tickMinStep": 1, "tickCount": _TICKS}
    return altair.Axis(labelExpr=_LABELS["number"], **few)


def _legend(names: Sequence[str], title: str | None = None, **more: Any) -> Chart:
    """A legend of these names, in as many rows as it takes to be no wider than a plot."""
    fit = max(1, WIDTH // (_SYMBOL + _LETTER * max(map(len, names), default=0)))
    return altair.Legend(title=title, columns=fit if len(names) > fit else altair.Undefined, **more)


def _colour(names: Sequence[str], title: str | None = None, field: str = "series") -> Chart:
    """A colour for each name; the legend is left out for one that has no title."""
    legend = _legend(names, title) if len(names) > 1 or title else None
    scale = altair.Scale(domain=[*names], range=colours_of(names))
    return altair.Color(f"{field}:N", scale=scale, legend=legend, sort=None)


def _shape(names: Sequence[str]) -> Chart:
    scale = altair.Scale(domain=[*names], range=shapes_of(names))
    return altair.Shape("series:N", scale=scale, legend=_legend(names) if len(names) > 1 else None, sort=None)


def _layered(layers: Sequence[Chart], rows: Rows, **size: Any) -> JsonObject:
    return _finished(altair.layer(*layers, data=_data(rows)).properties(**size))


def _finished(chart: Chart) -> JsonObject:
    """A chart with the configuration of all figures, as Vega-Lite."""
    spec: JsonObject = chart.to_dict()
    return {**spec, "config": {**_CONFIG}}


def _data(rows: Rows) -> Chart:
    return altair.InlineData(values=[dict(row) for row in rows])


def _ordered(rows: Rows, parts: Sequence[str]) -> Rows:
    return [{**row, "order": parts.index(str(row["part"]))} for row in rows]


def _each(rows: Rows, key: str) -> list[str]:
    return [*dict.fromkeys(str(row[key]) for row in rows)]


def _point(row: Mapping[str, Value], value: str = "value", group: str = "series") -> dict[str, Any]:
    """What is drawn of a row: its group, its value, and both ends of its interval where it has one."""
    lo, hi = _number(row.get("lo")), _number(row.get("hi"))
    ends = (None, None) if lo is None or hi is None else (lo, hi)
    return {"series": str(row.get(group, "")), "value": _number(row.get(value)), "lo": ends[0], "hi": ends[1]}


def _ends(points: Rows) -> list[float]:
    return [float(point[key] or 0) for point in points for key in ("value", "lo", "hi")]


def _words(row: Mapping[str, Value], value: str, clusters: str, unit: Unit, units: str) -> str:
    point, n = _point(row, value), int(_number(row.get("n")) or 0)
    if point["value"] is None:
        return "no case"
    of = int(_number(row.get(clusters)) or n)
    ends = "" if point["lo"] is None else f" ({_text(point['lo'], unit)} to {_text(point['hi'], unit)})"
    cases = f"{n:,} in {counted(of, units)}" if n != of else counted(of, units)
    points = " points" if unit == "difference" else ""
    return f"{_text(point['value'], unit)}{points}{ends}, {cases}"


def _text(value: float, unit: Unit) -> str:
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


def _number(value: Value) -> float | None:
    return None if isinstance(value, str | None) else float(value)
