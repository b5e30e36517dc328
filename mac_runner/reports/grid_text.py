"""The table over a grid for a terminal: one row per combination, its values and its headline rates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mac_runner.limits import REPORT_GRID_ROWS_MAX
from mac_runner.printable import printable
from mac_runner.reports.grid import Figure, GridRow, figure_names, figures_of
from mac_runner.reports.text import MODEL_HEADS, UNKNOWN, drawn, model_cells, show
from mac_runner.types import JsonObject, JsonValue

_WIDTH_MAX = 4_000
_CONTEXTS = ("ambiguous", "disambiguated")
_LEFT_TO_FILES = {"accuracy.final", *(f"bias.{kind}.{context}" for kind in ("first", "final") for context in _CONTEXTS)}


def write_grid(summary: JsonObject, rows: Sequence[GridRow], stream: TextIO) -> None:
    """Print the tables of a grid on `stream`, in colour and to its width where it is a terminal."""
    show(lambda width, has_style: render_grid(summary, rows, width=width, has_style=has_style), stream)


def render_grid(
    summary: JsonObject, rows: Sequence[GridRow], *, width: int | None = None, has_style: bool = False
) -> str:
    """The tables as text of at most `width` columns, without any escape sequence unless `has_style`."""
    parts = [_results(summary, rows), *_notes(summary, rows), *_engines(summary)]
    return drawn(parts, width=_WIDTH_MAX if width is None else width, has_style=has_style)


def _results(summary: JsonObject, rows: Sequence[GridRow]) -> RenderableType:
    table = _table(f"grid {printable(str(summary.get('grid')))}")
    shown = rows[:REPORT_GRID_ROWS_MAX]
    figures = [{} if row.summary is None else _headlines(row.summary) for row in shown]
    values = list(dict.fromkeys(name for row in shown for name in row.values))
    units = figure_names(figures)
    is_alike = bool(units) and all(len({figure.n for figure in found.values()}) <= 1 for found in figures)
    for name in _short(values):
        table.add_column(Text(printable(name)), overflow="fold")
    heads = [f"{name} %" if unit == "rate" else name for name, unit in units.items()]
    for name in ("ended", "failed", *(("n",) if is_alike else ()), *heads):
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    for row, found in zip(shown, figures, strict=True):
        cells = [_value(row.values[name]) if name in row.values else UNKNOWN for name in values]
        cells += _ended(row.summary)
        if is_alike:
            cells.append(next((f"{figure.n:,}" for figure in found.values()), UNKNOWN))
        cells += [_told(found.get(name), has_n=not is_alike) for name in units]
        table.add_row(*map(Text, cells))
    return table


def _headlines(summary: JsonObject) -> dict[str, Figure]:
    """The figures there is room for: those of the whole group, and how right its members were at first."""
    return {name: figure for name, figure in figures_of(summary).items() if name not in _LEFT_TO_FILES}


def _short(names: Sequence[str]) -> list[str]:
    """The last part of each dotted path, as far as that tells them apart."""
    ends = [name.rsplit(".", 1)[-1] for name in names]
    return [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]


def _notes(summary: JsonObject, rows: Sequence[GridRow]) -> Iterator[RenderableType]:
    notes = ["Figures with their 95% interval, each on n cases."]
    if len(rows) > REPORT_GRID_ROWS_MAX:
        notes.append(f"{len(rows) - REPORT_GRID_ROWS_MAX} more combinations: grid.csv has all of them.")
    parts = summary.get("parts")
    if isinstance(parts, list) and len(parts) > 1:
        notes += [_part(part) for part in parts if isinstance(part, dict)]
    left_out = summary.get("left_out")
    if isinstance(left_out, list) and left_out:
        notes.append(f"{len(left_out)} combinations of earlier are not asked for any more and stay as they are.")
    yield Text("\n".join(notes))


def _part(part: JsonObject) -> str:
    combinations = part.get("combinations")
    count = len(combinations) if isinstance(combinations, list) else 0
    return f"{count} combinations came with session {part.get('session')}, {part.get('started_at')}."


def _engines(summary: JsonObject) -> Iterator[RenderableType]:
    models = summary.get("models")
    if not isinstance(models, dict) or not models:
        return
    table = _table("engines, over all combinations")
    table.add_column("engine", overflow="fold")
    for name in MODEL_HEADS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, model in models.items():
        table.add_row(Text(printable(name)), *map(Text, model_cells(model if isinstance(model, dict) else {})))
    yield table


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )


def _ended(summary: JsonObject | None) -> tuple[str, str]:
    conversations = None if summary is None else summary.get("conversations")
    if not isinstance(conversations, dict):
        return UNKNOWN, UNKNOWN
    finished, failed = conversations.get("finished"), conversations.get("failed")
    ended = finished + failed if isinstance(finished, int) and isinstance(failed, int) else None
    return f"{_integer(ended)}/{_integer(conversations.get('planned'))}", _integer(failed)


def _told(figure: Figure | None, *, has_n: bool) -> str:
    """A rate in percent, `41.0 (31.9–50.8)`, or a score as it is, `0.12 (-0.03–0.27)`."""
    if figure is None or figure.value is None or figure.lo is None or figure.hi is None:
        return UNKNOWN
    scale, digits = (100, 1) if figure.unit == "rate" else (1, 2)
    value, lo, hi = (f"{scale * end:.{digits}f}" for end in (figure.value, figure.lo, figure.hi))
    interval = f"{value} ({lo}–{hi})" if not lo.startswith("-") else f"{value} ({lo} to {hi})"
    return f"{interval}, n {figure.n:,}" if has_n else interval


def _value(value: JsonValue) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _integer(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN
