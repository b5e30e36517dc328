"""Kinds of charts as Vega-Lite: forests, bars, lines, histograms and heat maps, each with its data inside.

They are plain data and need no package. All have the same fonts, sizes and colours; a group is told apart by its shape
or its label too, so that a print without colour says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from mac_runner.figures.model import Value
from mac_runner.types import JsonObject, JsonValue

Rows: TypeAlias = Sequence[Mapping[str, Value]]
Unit: TypeAlias = Literal["rate", "score", "count", "number"]

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH: Final = 540
COLOURS: Final[list[JsonValue]] = [
    "#1f77b4",
    "#d1660f",
    "#2a9461",
    "#b5559b",
    "#8a7b00",
    "#5b8fd6",
    "#a14a3b",
    "#7f7f7f",
]
"""Distinct for the colour-blind, and on white as on black."""
SHAPES: Final[list[JsonValue]] = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke"]
DASHES: Final[list[JsonValue]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4]]
_FORMATS: Final[Mapping[Unit, str]] = {"rate": ".0%", "score": "+.2f", "count": ",d", "number": "~s"}
_ROW_PX: Final = 22

CONFIG: Final[JsonObject] = {
    "background": "transparent",
    "font": "system-ui, DejaVu Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 260,
        "titleLimit": 460,
        "labelColor": "#1d2021",
        "titleColor": "#1d2021",
        "gridColor": "#d5d9dc",
        "domainColor": "#5b6166",
        "tickColor": "#5b6166",
    },
    "legend": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
        "orient": "bottom",
        "columns": 4,
        "symbolSize": 90,
    },
    "header": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 260},
    "range": {"category": COLOURS, "symbol": SHAPES},
    "title": {"fontSize": 13, "anchor": "start", "fontWeight": "normal"},
}


def chart(rows: Rows, **parts: JsonValue) -> JsonObject:
    """A chart of `rows`, which are put into it."""
    values: list[JsonValue] = [dict(row) for row in rows]
    return {"$schema": SCHEMA, "config": CONFIG, "data": {"values": values}, "width": WIDTH, **parts}


def axis(unit: Unit, title: str, **more: JsonValue) -> JsonObject:
    """How an axis of numbers is labelled."""
    return {"title": title, "format": _FORMATS[unit], **more}


def forest(
    rows: Rows,
    *,
    label: str,
    value: str,
    unit: Unit,
    title: str,
    group: str = "",
    reference: float | None = None,
) -> JsonObject:
    """A point with its interval (`lo` to `hi`) for each row, in their order; a line at `reference`.

    With `group` each label has a point for each group, beside each other.
    """
    domain: JsonObject = {"domain": [0, 1]} if unit == "rate" else {"zero": False}
    y: JsonObject = {"field": label, "type": "nominal", "sort": None, "title": None}
    x: JsonObject = {"field": value, "type": "quantitative", "axis": axis(unit, title), "scale": domain}
    ends: JsonObject = {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}, "y": y}
    points: JsonObject = {"x": x, "y": y}
    height = _ROW_PX
    if group:
        colour: JsonObject = {"field": group, "type": "nominal", "sort": None, "title": None}
        offset: JsonObject = {"field": group, "type": "nominal", "sort": None}
        ends |= {"color": colour, "yOffset": offset}
        points |= {"color": colour, "shape": colour, "yOffset": offset}
        height = 12 * max(1, len({row.get(group) for row in rows})) + 8
    layers: list[JsonValue] = [
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": ends},
        {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1}, "encoding": points},
    ]
    if not group:
        for layer in layers:
            assert isinstance(layer, dict)
            mark = layer["mark"]
            assert isinstance(mark, dict)
            mark["color"] = COLOURS[0]
    if reference is not None:
        line: JsonObject = {"type": "rule", "strokeDash": [4, 3], "color": "#7f7f7f"}
        layers.insert(
            0, {"data": {"values": [{"at": reference}]}, "mark": line, "encoding": {"x": {**x, "field": "at"}}}
        )
    return chart(rows, layer=layers, height={"step": height})


def bars(
    rows: Rows, *, label: str, value: str, unit: Unit, title: str, group: str = "", is_stacked: bool = True
) -> JsonObject:
    """Horizontal bars in the order of the rows, stacked or beside each other by `group`."""
    encoding: JsonObject = {
        "y": {"field": label, "type": "nominal", "sort": None, "title": None},
        "x": {"field": value, "type": "quantitative", "axis": axis(unit, title), "stack": "zero"},
    }
    step = _ROW_PX
    if group:
        encoding["color"] = {"field": group, "type": "nominal", "sort": None, "title": None}
        if not is_stacked:
            encoding["yOffset"] = {"field": group, "type": "nominal", "sort": None}
            encoding["x"] = {"field": value, "type": "quantitative", "axis": axis(unit, title)}
            step = 12 * len({row.get(group) for row in rows}) + 8
    mark: JsonObject = {"type": "bar"} if group else {"type": "bar", "color": COLOURS[0]}
    # An edge between stacked parts, so that they can be counted without colour.
    mark |= {"stroke": "#ffffff", "strokeWidth": 0.6} if group else {}
    return chart(rows, mark=mark, encoding=encoding, height={"step": step})


def lines(
    rows: Rows,
    *,
    x: str,
    y: str,
    unit: Unit,
    titles: tuple[str, str],
    group: str = "",
    has_points: bool = False,
    has_band: bool = False,
    x_unit: Unit = "number",
    is_step: bool = False,
    is_log: bool = False,
    ticks: int | None = None,
    domain: tuple[float, float] | None = None,
) -> JsonObject:
    """Lines over a number, one for each `group`; a band is drawn from `lo` to `hi`."""
    across: JsonObject = {"field": x, "type": "quantitative", "axis": axis(x_unit, titles[0])}
    if ticks is not None:
        whole: list[JsonValue] = [*range(1, ticks + 1)] if ticks <= 30 else []
        across["axis"] = axis(x_unit, titles[0], **({"values": whole} if whole else {"tickMinStep": 1}))
        across["scale"] = {"zero": False, "padding": 12}
    if is_log:
        across["scale"] = {"type": "log"}
        across["axis"] = axis(x_unit, titles[0], tickCount=6)
    up: JsonObject = {"field": y, "type": "quantitative", "axis": axis(unit, titles[1])}
    up["scale"] = {"domain": [*domain]} if domain else {"zero": True}
    kinds: JsonObject = {}
    if group:
        colour: JsonObject = {"field": group, "type": "nominal", "sort": None, "title": None}
        kinds = {"color": colour, "strokeDash": {**colour, "scale": {"range": DASHES}}}
    mark: JsonObject = {"type": "line", "strokeWidth": 2, **({} if group else {"color": COLOURS[0]})}
    if is_step:
        mark["interpolate"] = "step-after"
    layers: list[JsonValue] = [{"mark": mark, "encoding": {"x": across, "y": up, **kinds}}]
    if has_points:
        shaped: JsonObject = {"color": kinds["color"], "shape": kinds["color"]} if group else {}
        point: JsonObject = {"type": "point", "filled": True, "size": 55, "opacity": 1}
        point |= {} if group else {"color": COLOURS[0]}
        layers.append({"mark": point, "encoding": {"x": across, "y": up, **shaped}})
    if has_band:
        band: JsonObject = {"x": across, "y": {**up, "field": "lo"}, "y2": {"field": "hi"}}
        area: JsonObject = {"type": "errorbar", "ticks": True} if has_points else {"type": "area", "opacity": 0.18}
        area |= {} if group else {"color": COLOURS[0]}
        layers.insert(0, {"mark": area, "encoding": band | ({"color": kinds["color"]} if group else {})})
    return chart(rows, layer=layers, height=220)


def histogram(
    rows: Rows, *, lo: str, hi: str, count: str, title: str, unit: Unit = "number", group: str = ""
) -> JsonObject:
    """Counts of classes whose ends are in the rows; with `group` a row of bars for each."""
    encoding: JsonObject = {
        "x": {"field": lo, "type": "quantitative", "axis": axis(unit, title), "scale": {"zero": False, "nice": False}},
        "x2": {"field": hi},
        "y": {"field": count, "type": "quantitative", "axis": axis("number", "conversations", tickMinStep=1)},
        "y2": {"datum": 0},
    }
    if group:
        encoding["row"] = {"field": group, "type": "nominal", "sort": None, "title": None, "header": {"labelAngle": 0}}
    mark: JsonObject = {"type": "bar", "color": COLOURS[0], "binSpacing": 0, "stroke": "#ffffff", "strokeWidth": 0.5}
    return chart(rows, mark=mark, encoding=encoding, height=110 if group else 180)


def heat(
    rows: Rows,
    *,
    across: str,
    down: str,
    value: str,
    text: str,
    titles: tuple[str, str],
    limits: tuple[float, float],
    scheme: str = "blueorange",
    is_split: bool = False,
) -> JsonObject:
    """A square for each row, coloured between `limits` and with its number written in it.

    With `is_split` a comma ends a line in the names of columns.
    """
    labels: JsonObject = {"labelAngle": 0, "orient": "top"}
    labels |= {"labelExpr": "split(datum.label, ', ')"} if is_split else {}
    place: JsonObject = {
        "x": {
            "field": across,
            "type": "nominal",
            "sort": None,
            "title": titles[0] or None,
            "axis": labels,
        },
        "y": {"field": down, "type": "nominal", "sort": None, "title": titles[1] or None},
    }
    colour: JsonObject = {
        "field": value,
        "type": "quantitative",
        "title": None,
        "scale": {"scheme": scheme, "domain": [*limits]},
        "legend": None,
    }
    middle = (limits[0] + limits[1]) / 2
    reach = (limits[1] - limits[0]) / 2
    is_dark = f"abs(datum['{value}'] - {middle}) > {0.62 * reach}"
    if scheme != "blueorange":
        is_dark = f"datum['{value}'] > {limits[0] + 0.6 * (limits[1] - limits[0])}"
    layers: list[JsonValue] = [
        {"mark": {"type": "rect", "stroke": "#ffffff"}, "encoding": {**place, "color": colour}},
        {
            "mark": {"type": "text", "fontSize": 12},
            "encoding": {
                **place,
                "text": {"field": text, "type": "nominal"},
                "color": {"condition": {"test": is_dark, "value": "#ffffff"}, "value": "#000000"},
            },
        },
    ]
    columns = max(1, len({row.get(across) for row in rows}))
    return chart(rows, layer=layers, width={"step": min(110, max(46, WIDTH // columns))}, height={"step": 26})
