"""How all figures look: sizes, fonts, colours and shapes.

Text and lines have the colour of the page (`currentColor`), so one figure suits a light page, a dark page and paper.
The colours are those of Okabe and Ito, which colour-blind readers can distinguish; a shape or a dash says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mac_runner.types import JsonObject, JsonValue

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


def config() -> JsonObject:
    """The configuration that every spec has."""
    text: dict[str, JsonValue] = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
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
            **text,
            "titleFontWeight": "normal",
            "orient": "top",
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "columnPadding": 36,
            "labelLimit": 300,
        },
        "header": {**text, "labelFontWeight": "bold", "titleFontWeight": "normal"},
        "text": {"color": INK, "fontSize": 12},
        "rule": {"color": INK},
    }
