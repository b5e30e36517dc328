"""Figures as SVG: Vega-Lite drawn without a browser, the same bytes for the same figure.

Nothing is fetched, and what models or authors wrote reaches the picture as text alone.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final

from mac_runner.figures.model import Figure
from mac_runner.printable import printable
from mac_runner.types import JsonObject, JsonValue

_ID: Final = re.compile(r'(?<= id=")[^"]*(?=")')
_USE: Final = re.compile(r'(?<=url\(#)[^)]*(?=\))|(?<=href="#)[^"]*(?=")')
_ROOT: Final = re.compile(r"<svg\b[^>]*>")
_SIZE: Final = re.compile(r' (width|height|viewBox)="([^"<>]*)"')
_PADDING: Final[JsonObject] = {"left": 40, "right": 48, "top": 5, "bottom": 5}
"""Room for texts that a browser sets in a wider font than they were measured in."""


def svg_of(figure: Figure) -> str:
    """The picture of a figure, to be put into a page; empty for a table. Its ids begin with that of the figure."""
    if figure.spec is None:
        return ""
    import vl_convert

    spec = spec_of(figure)
    assert spec is not None, "the figure has one"
    drawn: str = vl_convert.vegalite_to_svg({"padding": _PADDING, **spec}, allowed_base_urls=[], show_warnings=False)
    return _embedded(drawn, figure.id, figure.title)


def shown(value: JsonValue) -> JsonValue:
    """A value whose texts are printable: no control character and no mark that turns the reading direction."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(key): shown(inner) for key, inner in value.items()}
        case list() | tuple():
            return [shown(inner) for inner in value]
        case _:
            return value


def _embedded(svg: str, prefix: str, title: str) -> str:
    """The SVG with ids of its own: those that are drawn count on from figure to figure."""
    found = dict.fromkeys(_ID.findall(svg))
    names = {name: f"{prefix}-{number}" for number, name in enumerate(found)}
    renamed = _ID.sub(lambda match: names[match[0]], svg)
    renamed = _USE.sub(lambda match: names.get(match[0], match[0]), renamed)
    root = _ROOT.search(renamed)
    assert root is not None, "it is an SVG"
    sizes = " ".join(f'{name}="{value}"' for name, value in _SIZE.findall(root[0]))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {sizes} role="img" aria-label="{escape(printable(title))}">'
    return f"{head}{renamed[root.end() :]}"


def spec_of(figure: Figure) -> JsonObject | None:
    """The Vega-Lite of a figure as a page prints it."""
    found = None if figure.spec is None else shown(figure.spec)
    return found if isinstance(found, dict) else None
