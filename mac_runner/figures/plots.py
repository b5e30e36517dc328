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
Unit: TypeAlias = Literal["rate", "points", "score", "count", "number"]
"""Points are a difference of rates of 1, shown in percent with a sign."""

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH: Final = 540
INK: Final = "#1d2021"
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
NAMED_COLOURS: Final[Mapping[str, str]] = {
    "town": "#2a9461",
    "mafia": "#d1660f",
    "neutral": "#1f77b4",
    "honest": "#1f77b4",
    "lie": "#d1660f",
    "unclear": "#7f7f7f",
}
"""Groups that have the same colour in every figure, whichever others are in it."""
SHAPES: Final[list[JsonValue]] = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke"]
DASHES: Final[list[JsonValue]] = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3], [10, 4]]
_FORMATS: Final[Mapping[str, str]] = {"rate": ".0%", "score": "+.2f", "count": ",d", "number": "~s"}
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
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": "#d5d9dc",
        "domainColor": "#5b6166",
        "tickColor": "#5b6166",
    },
    "legend": {
        "symbolOpacity": 1,
        "symbolStrokeWidth": 2,
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
    if unit == "points":
        return {"title": title, "labelExpr": "format(100 * datum.value, '+.0f')", **more}
    return {"title": title, "format": _FORMATS[unit], **more}


def grouping(rows: Rows, group: str) -> JsonObject:
    """The channel of a group: its names in the order of the rows, each with its colour."""
    names = [*dict.fromkeys(str(row.get(group)) for row in rows)]
    channel: JsonObject = {"field": group, "type": "nominal", "sort": None, "title": None}
    taken = {NAMED_COLOURS[name] for name in names if name in NAMED_COLOURS}
    free = [colour for colour in COLOURS if colour not in taken] or COLOURS
    others = [name for name in names if name not in NAMED_COLOURS]
    colours: dict[str, JsonValue] = {name: free[place % len(free)] for place, name in enumerate(others)}
    channel["scale"] = {"domain": [*names], "range": [colours.get(name, NAMED_COLOURS.get(name)) for name in names]}
    if len(names) == 1:
        channel["legend"] = None
    return channel


def without_colours(channel: JsonObject) -> JsonObject:
    """The same channel for shapes, which have a range of their own."""
    scale = channel["scale"]
    assert isinstance(scale, dict), "a grouping has one"
    return {**channel, "scale": {"domain": scale["domain"], "range": SHAPES}}


def forest(
    rows: Rows,
    *,
    label: str,
    value: str,
    unit: Unit,
    title: str,
    group: str = "",
    reference: float | None = None,
    words: str = "",
    is_nested: bool = True,
) -> JsonObject:
    """A point with its interval (`lo` to `hi`) for each row, in their order; a line at `reference`.

    With `group` each label has a point for each group, beside each other unless `is_nested` is false: then a label has
    one group. `words` is a text of each row, written at its right.
    """
    domain: JsonObject = {"domain": [0, 1]} if unit == "rate" else {"zero": False}
    y: JsonObject = {"field": label, "type": "nominal", "sort": None, "title": None}
    x: JsonObject = {"field": value, "type": "quantitative", "axis": axis(unit, title), "scale": domain}
    ends: JsonObject = {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}, "y": y}
    points: JsonObject = {"x": x, "y": y}
    place: JsonObject = {"y": y}
    height = _ROW_PX
    if group:
        colour = grouping(rows, group)
        ends |= {"color": colour}
        points |= {"color": colour, "shape": without_colours(colour)}
    if group and is_nested:
        offset: JsonObject = {"field": group, "type": "nominal", "sort": None}
        ends, points, place = ({**each, "yOffset": offset} for each in (ends, points, place))
        height = 14 * len({row.get(group) for row in rows}) + 8
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
    if words:
        layers.append(_beside(words, place))
    if reference is not None:
        line: JsonObject = {"type": "rule", "strokeDash": [4, 3], "color": "#7f7f7f"}
        layers.insert(
            0, {"data": {"values": [{"at": reference}]}, "mark": line, "encoding": {"x": {**x, "field": "at"}}}
        )
    return chart(rows, layer=layers, height={"step": height, "for": "position"})


def _beside(words: str, place: JsonObject) -> JsonObject:
    """The text of each row, at the right of the plot."""
    mark: JsonObject = {"type": "text", "align": "left", "baseline": "middle", "dx": 8, "color": INK, "fontSize": 11}
    return {"mark": mark, "encoding": {**place, "x": {"value": WIDTH}, "text": {"field": words, "type": "nominal"}}}


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
    reference: str = "",
) -> JsonObject:
    """Lines over a number, one for each `group`; a band is drawn from `lo` to `hi`.

    `reference` is a second value of each row, such as that of chance, drawn as thin dotted lines.
    """
    along = axis(x_unit, titles[0], **({"tickMinStep": 1} if x_unit == "count" else {}))
    across: JsonObject = {"field": x, "type": "quantitative", "axis": along}
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
    colour = grouping(rows, group)
    if group:
        dashes: JsonObject = {"domain": [*dict.fromkeys(str(row.get(group)) for row in rows)], "range": DASHES}
        if not has_points:
            # Shapes or dashes tell lines apart without colour; the legend shows which.
            legend: JsonObject = {"symbolType": "stroke", "symbolSize": 400}
            colour |= {} if "legend" in colour else {"legend": legend}
            kinds = {"strokeDash": {**colour, "scale": dashes}}
        kinds["color"] = colour
    mark: JsonObject = {"type": "line", "strokeWidth": 2, **({} if group else {"color": COLOURS[0]})}
    if is_step:
        mark["interpolate"] = "step-after"
    layers: list[JsonValue] = [{"mark": mark, "encoding": {"x": across, "y": up, **kinds}}]
    if has_points:
        shaped: JsonObject = {"color": colour, "shape": without_colours(colour)} if group else {}
        point: JsonObject = {"type": "point", "filled": True, "size": 55, "opacity": 1}
        point |= {} if group else {"color": COLOURS[0]}
        layers.append({"mark": point, "encoding": {"x": across, "y": up, **shaped}})
    if has_band:
        band: JsonObject = {"x": across, "y": {**up, "field": "lo"}, "y2": {"field": "hi"}}
        area: JsonObject = {"type": "errorbar", "ticks": True} if has_points else {"type": "area", "opacity": 0.18}
        area |= {} if group else {"color": COLOURS[0]}
        area |= {"interpolate": "step-after"} if is_step and not has_points else {}
        layers.insert(0, {"mark": area, "encoding": band | ({"color": kinds["color"]} if group else {})})
    if reference:
        thin: JsonObject = {"type": "line", "strokeWidth": 1.5, "strokeDash": [2, 3], "color": INK}
        detail: JsonObject = {"detail": {"field": group, "type": "nominal"}} if group else {}
        layers.append({"mark": thin, "encoding": {"x": across, "y": {**up, "field": reference}, **detail}})
    return chart(rows, layer=layers, height=220)


def panels(
    rows: Rows, *, x: str, y: str, titles: tuple[str, str], panel: str, group: str, across: int = 4
) -> JsonObject:
    """A small curve in steps for each `panel`, with its band from `lo` to `hi`, coloured by `group`; rates."""
    along = axis("number", titles[0], tickMinStep=1, tickCount=5)
    here: JsonObject = {"field": x, "type": "quantitative", "axis": along}
    up: JsonObject = {"field": y, "type": "quantitative", "axis": axis("rate", titles[1], tickCount=3)}
    up["scale"] = {"domain": [0, 1]}
    colour = grouping(rows, group)
    step: JsonObject = {"interpolate": "step-after"}
    band: JsonObject = {"x": here, "y": {**up, "field": "lo"}, "y2": {"field": "hi"}, "color": colour}
    layers: list[JsonValue] = [
        {"mark": {"type": "area", "opacity": 0.2, **step}, "encoding": band},
        {"mark": {"type": "line", "strokeWidth": 2, **step}, "encoding": {"x": here, "y": up, "color": colour}},
    ]
    found = chart(rows)
    del found["width"]
    return {
        **found,
        "facet": {"field": panel, "type": "nominal", "sort": None, "title": None},
        "columns": min(across, len({row.get(panel) for row in rows})),
        "spec": {"layer": layers, "width": WIDTH // across, "height": 90},
    }


def shares(rows: Rows, *, label: str, part: str, share: str, title: str, words: str = "") -> JsonObject:
    """Bars of one length divided into parts, in the order of the rows; the share stands in each part with room for it.

    `words` is a text of each label, written at its right.
    """
    y: JsonObject = {"field": label, "type": "nominal", "sort": None, "title": None}
    order = {name: place for place, name in enumerate(dict.fromkeys(str(row.get(part)) for row in rows))}
    placed = [{**row, "place": order[str(row.get(part))]} for row in rows]
    x: JsonObject = {"field": share, "type": "quantitative", "stack": "zero", "axis": axis("rate", title)}
    x["scale"] = {"domain": [0, 1]}
    inner: JsonObject = {"field": "place", "type": "quantitative"}
    written: JsonObject = {
        "y": y,
        "x": {**x, "bandPosition": 0.5},
        "order": inner,
        "detail": {"field": part, "type": "nominal"},
        "text": {"field": share, "type": "quantitative", "format": ".0%"},
        "opacity": {"condition": {"test": f"datum['{share}'] >= 0.07", "value": 1}, "value": 0},
    }
    bar: JsonObject = {"type": "bar", "stroke": "#ffffff", "strokeWidth": 0.6}
    layers: list[JsonValue] = [
        {"mark": bar, "encoding": {"y": y, "x": x, "order": inner, "color": grouping(rows, part)}},
        {"mark": {"type": "text", "color": "#ffffff"}, "encoding": written},
    ]
    if words:
        layers.append({**_beside(words, {"y": y}), "transform": [{"filter": "datum.place === 0"}]})
    return chart(placed, layer=layers, height={"step": 28})


def columns(rows: Rows, *, x: str, count: str, group: str, titles: tuple[str, str], legend: str) -> JsonObject:
    """Counts by a whole number as upright bars, stacked by `group`."""
    encoding: JsonObject = {
        "x": {"field": x, "type": "ordinal", "axis": {"title": titles[0], "labelAngle": 0}},
        "y": {"field": count, "type": "quantitative", "axis": axis("count", titles[1], tickMinStep=1)},
        "color": {**grouping(rows, group), "title": legend},
    }
    return chart(rows, mark={"type": "bar", "stroke": "#ffffff", "strokeWidth": 0.6}, encoding=encoding, height=200)


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
