"""The report as one HTML page without JavaScript: pictures, the numbers behind them, and how they were made.

The page fetches nothing and runs nothing: its policy allows the one stylesheet that is in it. All texts are escaped, so
what a model or an author wrote is shown and never obeyed. Pictures are Vega-Lite drawn without a browser, the same
bytes for the same figure; texts reach them as text alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from html import escape
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from mac_runner.figures.model import MADE_BY, DataColumn, Figure, Method, Section, Value, number_text
from mac_runner.flat import json_text
from mac_runner.printable import counted, printable
from mac_runner.types import JsonObject, JsonValue

REPORT_FORMAT: Final = 1
ROWS_MAX: Final = 500
"""So many rows of a figure are printed as a table; `--json` has all."""
UNKNOWN: Final = "–"
_COLUMNS_MAX: Final = 7
_TURNED_ROWS_MAX: Final = 4

_ID: Final = re.compile(r'(?<= id=")[^"]*(?=")')
_USE: Final = re.compile(r'(?<=url\(#)[^)]*(?=\))|(?<=href="#)[^"]*(?=")')
_ROOT: Final = re.compile(r"<svg\b[^>]*>")
_SIZE: Final = re.compile(r' (width|height|viewBox)="([^"<>]*)"')
_PADDING: Final[JsonObject] = {"left": 40, "right": 48, "top": 5, "bottom": 5}
"""Room for texts that a browser sets in a wider font than they were measured in."""


class Line(NamedTuple):
    """A name and what is said of it, at the head of the report."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the page shows."""

    title: str
    description: str
    state: str
    """How far the run is, such as `as of …: 40 of 100 conversations have ended`."""
    facts: tuple[Line, ...]
    sections: tuple[Section, ...]
    experiments: tuple[Line, ...]
    """What they are called, and their YAML as it was recorded."""
    versions: tuple[Line, ...]
    commands: tuple[Line, ...] = ()
    """How to look at the conversations."""
    viewer: str = ""
    """The address of the published run, for links; empty for none."""


class _Cell(NamedTuple):
    text: str
    is_number: bool
    links: tuple[Line, ...] = ()
    """In place of the text: numbers of conversations, and where they are."""


class _Table(NamedTuple):
    heads: tuple[_Cell, ...]
    rows: tuple[tuple[_Cell, ...], ...]


def report_html(report: Report) -> str:
    """The page."""
    pages = _pages()
    assert pages.loader is not None, "it was given one"
    style = pages.loader.get_source(pages, "report.css")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    sections = [
        {"id": section.id, "title": section.title, "notes": section.notes, "figures": drawn}
        for section in report.sections
        if (drawn := [_drawn(figure, report.viewer) for figure in section.figures]) or section.notes
    ]
    return pages.get_template("report.html.j2").render(
        made_by=MADE_BY,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        report=report,
        sections=sections,
        methods=map(_kept, _methods(report)),
    )


def report_json(report: Report) -> JsonObject:
    """The numbers of all figures, for programs; not how they are drawn."""
    return {
        "made_by": MADE_BY,
        "format": REPORT_FORMAT,
        "title": report.title,
        "state": report.state,
        "facts": dict(report.facts),
        "sections": [
            {
                "id": section.id,
                "title": section.title,
                "notes": [*section.notes],
                "figures": [
                    {key: value for key, value in asdict(replace(figure, spec=None)).items() if key != "spec"}
                    for figure in section.figures
                ],
            }
            for section in report.sections
        ],
        "methods": [*_methods(report)],
        "versions": dict(report.versions),
    }


def _drawn(figure: Figure, viewer: str) -> dict[str, Any]:
    """A figure as the template prints it, with the number of cases where the caption does not say it."""
    spec = _spec(figure)
    says_n = f"{figure.n:,} " in figure.caption
    return {
        "figure": figure,
        "svg": svg_of(figure),
        "caption": _kept(figure.caption if says_n else f"{figure.caption} n = {counted(figure.n, figure.unit)}."),
        "table": _table(figure, viewer),
        "hidden": max(0, len(figure.rows) - ROWS_MAX),
        "spec": json_text(spec) if spec else "",
    }


def _kept(text: str) -> str:
    """The text with numbers on the line of what belongs to them."""
    return text.replace(" %", "\u00a0%").replace("n = ", "n\u00a0=\u00a0")


def _table(figure: Figure, viewer: str) -> _Table:
    """The numbers as a table, without empty columns; one of a few rows and many columns is turned to fit on paper."""
    columns = [one for one in figure.columns if any(row.get(one.name) not in (None, "") for row in figure.rows)]
    titles = (f"{column.title} ({column.unit})" if column.unit else column.title for column in columns)
    heads = [_Cell(title, _is_number(column)) for title, column in zip(titles, columns, strict=True)]
    rows = [
        [
            _Cell(cell_text(column, row.get(column.name)), _is_number(column), _links(column, row, viewer))
            for column in columns
        ]
        for row in figure.rows[:ROWS_MAX]
    ]
    if len(heads) > _COLUMNS_MAX and len(rows) <= _TURNED_ROWS_MAX:
        names = [_Cell(row[0].text, True) for row in rows]
        turned = [[_Cell(head.text, False), *(row[place] for row in rows)] for place, head in enumerate(heads)]
        return _Table((_Cell(heads[0].text, False), *names), tuple(map(tuple, turned[1:])))
    return _Table(tuple(heads), tuple(map(tuple, rows)))


def _is_number(column: DataColumn) -> bool:
    """Whether a column stands to the right."""
    return column.kind not in ("word", "conversations")


def _links(column: DataColumn, row: Mapping[str, Value], viewer: str) -> tuple[Line, ...]:
    """The conversations of a cell in the published run; none without its address."""
    slug, numbers = row.get("slug"), row.get(column.name)
    if column.kind != "conversations" or not viewer or not isinstance(slug, str) or not isinstance(numbers, str):
        return ()
    place = f"{viewer.partition('#')[0]}#/{f'r/{quote(slug)}/' if slug else ''}c/"
    return tuple(Line(number, f"{place}{number}") for number in numbers.split(", ") if number.isdigit())


def cell_text(column: DataColumn, value: Value) -> str:
    """A value as a table prints it."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value)
    match column.kind:
        case "rate":
            return f"{value:.1%}"
        case "score":
            return f"{value:+.3f}"
        case "count":
            return f"{value:,.0f}"
        case _:
            return number_text(value)


def _visible(value: object) -> object:
    """What is put into the template, with each character that cannot be seen as its escape; only lines stay lines."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


@cache
def _pages() -> Environment:
    """The template and the stylesheet; what is put into the template is escaped."""
    return Environment(
        loader=PackageLoader("mac_runner.figures", "page_files"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def svg_of(figure: Figure) -> str:
    """The picture of a figure, to be put into a page; empty for a table. Its ids begin with that of the figure."""
    if not (spec := _spec(figure)):
        return ""
    import vl_convert

    svg = vl_convert.vegalite_to_svg({"padding": _PADDING, **spec}, allowed_base_urls=[], show_warnings=False)
    # Those that are drawn count on from figure to figure.
    names = {name: f"{figure.id}-{number}" for number, name in enumerate(dict.fromkeys(_ID.findall(svg)))}
    renamed = _ID.sub(lambda match: names[match[0]], svg)
    renamed = _USE.sub(lambda match: names.get(match[0], match[0]), renamed)
    root = _ROOT.search(renamed)
    assert root is not None, "it is an SVG"
    sizes = " ".join(f'{name}="{value}"' for name, value in _SIZE.findall(root[0]))
    title = escape(printable(figure.title))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {sizes} role="img" aria-label="{title}">'
    return f"{head}{renamed[root.end() :]}"


def _spec(figure: Figure) -> JsonObject:
    """The Vega-Lite of a figure as a page prints it; empty for a table."""
    return {printable(key): _shown(value) for key, value in (figure.spec or {}).items()}


def _shown(value: JsonValue) -> JsonValue:
    """A value whose texts are printable: no control character and no mark that turns the reading direction."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(key): _shown(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_shown(inner) for inner in value]
        case _:
            return value


def _methods(report: Report) -> tuple[str, ...]:
    return methods_text(method for part in report.sections for figure in part.figures for method in figure.methods)


def methods_text(methods: Iterable[Method]) -> tuple[str, ...]:
    """A paragraph for each thing that was done. What several figures did alike is said once, with the range of n."""
    alike: dict[str, list[Method]] = {}
    for method in methods:
        alike.setdefault(method.statement, []).append(method)
    return tuple(printable(_paragraph(statement, found)) for statement, found in alike.items())


def _paragraph(statement: str, methods: Sequence[Method]) -> str:
    sentence = statement if statement.endswith((".", "!", "?")) else f"{statement}."
    details = "; ".join(_details(methods))
    if not details.startswith("n ="):
        details = f"{details[:1].upper()}{details[1:]}"
    return f"{sentence} ({details}.)" if details else sentence


def _details(methods: Sequence[Method]) -> Iterator[str]:
    if counts := [method.n for method in methods if method.n is not None]:
        plural = "" if max(counts) == 1 else "s"
        units = _each(f"{method.unit or 'unit'}{plural}" for method in methods)
        numbers = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        yield f"n = {numbers} {units}"
    elif units := _each(method.unit for method in methods):
        yield f"unit: {units}"
    if intervals := _each(method.interval for method in methods):
        yield f"interval: {intervals}"
    if resamples := _each(f"{method.resamples:,}" for method in methods if method.resamples):
        yield f"{resamples} resamples"
    if corrections := _each(method.correction for method in methods):
        yield f"correction: {corrections}"


def _each(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(filter(None, words)))
