"""The summary of a run or a grid as tables for a terminal.

Drawn from `summary.json`, so a table can be printed again from a run directory at any time. Names and reasons are shown
through `printable` and never read as markup. A file or a pipe gets plain characters only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import Final, TextIO

from rich import box
from rich.console import Console, OverflowMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from mac_runner.printable import printable
from mac_runner.registry import results_specs
from mac_runner.reports.grid import ROWS_SHOWN_MAX, GridRow, declared_in, figure_names, figures_of
from mac_runner.reports.metrics import metric_tables
from mac_runner.reports.outcome_tables import outcome_tables
from mac_runner.reports.usability import noted_defaults, usability_warning, warnings
from mac_runner.results import (
    DEFAULTS_HEAD,
    UNKNOWN,
    Figure,
    Table,
    count_text,
    decimal_text,
    number,
    percent_text,
    section,
)
from mac_runner.types import JsonObject, JsonValue

NOT_COUNTED: Final = "not counted by the engine"
_FURTHER_COMBINATIONS_MAX: Final = 16
PARTS_MAX: Final = 12
"""How many sessions are printed with their part of the result."""
_WIDTH_DEFAULT: Final = 100
_WIDTH_MAX: Final = 4_000
_WAIT_S_MIN: Final = 0.1
_ENGINE_HEADS: Final = ("capacity", "slots", "slots used", "requests")


def write_summary(summary: JsonObject, stream: TextIO) -> None:
    """Print the tables of a run on `stream`, in colour and to its width where it is a terminal."""
    _write(lambda width, has_style: render_summary(summary, width=width or _WIDTH_DEFAULT, has_style=has_style), stream)


def write_grid(
    summary: JsonObject, rows: Sequence[GridRow], stream: TextIO, *, compared: JsonObject | None = None
) -> None:
    """Print the tables of a grid on `stream`, in colour and to its width where it is a terminal."""
    _write(lambda width, has_style: render_grid(summary, rows, compared, width=width, has_style=has_style), stream)


def write_tables(parts: Iterable[Table | str], stream: TextIO) -> None:
    """Print tables and notes on `stream`, in colour where it is a terminal; a wide table folds."""
    drawn = [_renderable(part, is_folded=True) for part in parts]
    _write(lambda width, has_style: _drawn(drawn, width=width or _WIDTH_DEFAULT, has_style=has_style), stream)


def render_summary(summary: JsonObject, *, width: int = _WIDTH_DEFAULT, has_style: bool = False) -> str:
    """The tables as text of at most `width` columns, without any escape sequence unless `has_style`."""
    parts: list[Table | str] = [part for spec in results_specs().values() for part in spec.tables(summary)]
    parts += [
        *outcome_tables(summary),
        *metric_tables(summary),
        *_unusable(summary),
        *_engines(summary, "models", "model"),
        *_failures(summary),
        *_parts(summary),
    ]
    return _drawn((_overview(summary), *map(_renderable, parts)), width=width, has_style=has_style)


def render_grid(
    summary: JsonObject,
    rows: Sequence[GridRow],
    compared: JsonObject | None = None,
    *,
    width: int | None = None,
    has_style: bool = False,
) -> str:
    """The tables as text of at most `width` columns, without any escape sequence unless `has_style`.

    `compared` is what `compare_combinations` found.
    """
    # Its table may be wider than any screen, so figures fold there too.
    table = _renderable(_grid_table(summary, rows), is_folded=True)
    notes = _renderable("\n".join(_grid_notes(summary, rows)))
    further: list[Table | str] = [*_further_figures(rows)]
    further += [part for spec in results_specs().values() for part in spec.comparison_tables(compared or {})]
    further += _undeclared(summary, rows)
    further += _engines(summary, "engines, over all combinations", "engine")
    return _drawn(
        (table, notes, *map(_renderable, further)), width=_WIDTH_MAX if width is None else width, has_style=has_style
    )


def _write(render: Callable[[int | None, bool], str], stream: TextIO) -> None:
    """Print what `render` makes for the width of `stream`, None where it has none, with or without colour."""
    is_terminal = stream.isatty()
    width = _terminal_width(stream) if is_terminal else None
    stream.write(render(width, is_terminal and "NO_COLOR" not in os.environ))
    stream.flush()


def _terminal_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH_DEFAULT
    except (OSError, ValueError):
        return _WIDTH_DEFAULT


def _drawn(parts: Iterable[RenderableType], *, width: int, has_style: bool) -> str:
    """The parts one below the other."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=has_style,
        color_system="standard" if has_style else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(part)
        console.print()
    # Cells are padded to their column; the blanks at the ends of lines are of no use.
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n")) + "\n"


def _renderable(part: Table | str, *, is_folded: bool = False) -> RenderableType:
    if isinstance(part, str):
        return Text("\n".join(map(printable, part.split("\n"))))
    table = _rich_table(part.title)
    for name in part.words:
        table.add_column(Text(printable(name)), overflow="fold")
    overflow: OverflowMethod = "fold" if is_folded else "ellipsis"
    for name in part.numbers:
        table.add_column(Text(printable(name)), justify="right", overflow=overflow, no_wrap=not is_folded)
    for row in part.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _rich_table(title: str) -> RichTable:
    shown = Text(printable(title), style="bold")
    return RichTable(title=shown, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _overview(summary: JsonObject) -> RenderableType:
    table = _rich_table(str(summary.get("experiment_name")))
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in _overview_lines(summary):
        table.add_row(Text(printable(name)), Text(printable(value)))
    return table


def _overview_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    conversations = section(summary, "conversations")
    planned = count_text(conversations.get("planned"))
    yield "conversations", f"{_listed(conversations, ('finished', 'failed'))}, of {planned} planned"
    if fork := section(summary, "fork"):
        by_arm = section(fork, "arms")
        arms = (f"{name} {count_text(section(by_arm, name).get('ended'))}" for name in by_arm)
        yield "fork", f"conversations forked: {count_text(fork.get('of'))}; ended by arm: {', '.join(arms)}"
        if fork.get("off_policy"):
            yield "off-policy", "every number: replies were kept for other prompts, or written by hand"
    for spec in results_specs().values():
        yield from spec.lines(summary)
    yield "turns", f"{count_text(summary.get('turns'))}; {_listed(summary, ('corrections', 'defaults'))}"
    for warning in warnings(summary):
        yield "warning", warning
    yield "tokens", _tokens(section(summary, "tokens"), summary.get("turns"))
    yield from _times(summary)
    if retried := section(summary, "retried"):
        counts = f"{count_text(retried.get('conversations'))}: {_listed(retried, ('finished', 'failed'))}"
        yield "tried again", f"{counts}; {count_text(retried.get('failed_attempts'))} failed attempts before"
    if repeated := section(summary, "repeated"):
        completion = count_text(section(repeated, "tokens").get("completion"))
        cost = f"{_listed(repeated, ('conversations', 'replies'))}, {completion} completion tokens"
        yield "done twice", f"{cost}: another process was at work here"


def _listed(source: JsonObject, keys: Iterable[str]) -> str:
    """`3 finished, 1 failed`."""
    return ", ".join(f"{count_text(source.get(key))} {key}" for key in keys)


def _tokens(tokens: JsonObject, turns: JsonValue) -> str:
    """What was counted, and whose tokens were not."""
    uncounted, models = tokens.get("uncounted_turns"), tokens.get("uncounted_models")
    if isinstance(uncounted, int) and uncounted == turns:
        return NOT_COUNTED
    cached = section(tokens, "timing").get("cached")
    counted = _listed({**tokens, "cached": cached}, ("prompt", "cached", "completion"))
    if isinstance(models, list):
        return f"{counted}; {', '.join(map(str, models))}: {NOT_COUNTED}"
    return f"{counted}; {uncounted:,} turns were not counted" if isinstance(uncounted, int) else counted


def _times(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """How long it took, and how fast it went while it was played."""
    wall_s, played_s, merged = (summary.get(key) for key in ("wall_s", "played_s", "merged_runs"))
    over = f", added up over {merged} merged runs" if isinstance(merged, int) and merged else ""
    waited = ""
    if isinstance(wall_s, int | float) and isinstance(played_s, int | float) and wall_s - played_s >= _WAIT_S_MIN:
        waited = f", {decimal_text(wall_s - played_s)} s of it waiting for engines"
    yield "wall time", f"{decimal_text(wall_s)} s{over}{waited}"
    conversations, turns = (decimal_text(summary.get(f"{each}_per_s")) for each in ("conversations", "turns"))
    yield "played", f"{decimal_text(played_s)} s; {conversations} conversations/s, {turns} turns/s"


def _unusable(summary: JsonObject) -> Iterator[Table]:
    """The replies that could not be used, and why, where there were any."""
    if unusable := section(summary, "unusable"):
        rows = [
            (name, cause.replace("_", " "), count_text(count))
            for name in unusable
            for cause, count in section(unusable, name).items()
        ]
        yield Table("unusable replies", ("agent", "cause"), ("count",), rows)


def _engines(summary: JsonObject, title: str, head: str) -> Iterator[Table | str]:
    """What each engine did. The slots are a mean, and what is used is a part of them, not of the capacity."""
    models = section(summary, "models")
    # A combination of a grid has no account of the engines.
    if engines := {name: section(models, name) for name in models if "requests" in section(models, name)}:
        # Where no engine is held to anything, as with scripted players, there is nothing to distinguish.
        has_forms = any(model.get("constrained_decoding", "none") != "none" for model in engines.values())
        heads = (head, "replies") if has_forms else (head,)
        rows = [(name, *([_form(model)] if has_forms else []), *_engine(model)) for name, model in engines.items()]
        yield Table(title, heads, _ENGINE_HEADS, rows)
        played_s = number(summary.get("played_s"))
        took = [(name, _request_s(model, played_s)) for name, model in engines.items()]
        if known := [f"{name} {decimal_text(seconds)}" for name, seconds in took if seconds is not None]:
            yield f"Seconds that a request took: {', '.join(known)}."


def _request_s(model: JsonObject, played_s: float | None) -> float | None:
    """The time that slots were busy, for each request."""
    slots, used, requests = (number(model.get(key)) for key in ("slots_mean", "slot_utilisation", "requests"))
    if slots is None or used is None or played_s is None or not requests:
        return None
    return slots * used * played_s / requests


def _form(model: JsonObject) -> str:
    """The form of a model's replies, and what holds them to it."""
    decoding, form = model.get("constrained_decoding", UNKNOWN), model.get("reply_form")
    held = "free" if decoding == "none" else f"held to {decoding}"
    return held if form is None else f"{form}, {held}"


def _engine(model: JsonObject) -> tuple[str, ...]:
    slots = model.get("slots_mean")
    mean = f"{slots:,.1f}" if isinstance(slots, int | float) else UNKNOWN
    used = percent_text(model.get("slot_utilisation"))
    return (count_text(model.get("capacity")), mean, used, count_text(model.get("requests")))


def _failures(summary: JsonObject) -> Iterator[Table]:
    if failures := _objects(summary, "failures"):
        rows = [
            (str(failure.get("reason")), _names(failure.get("task_ids")), count_text(failure.get("count")))
            for failure in failures
        ]
        yield Table("failures", ("reason", "first tasks"), ("count",), rows)


def _names(task_ids: JsonValue) -> str:
    return ", ".join(map(str, task_ids)) if isinstance(task_ids, list) else ""


def _parts(summary: JsonObject) -> Iterator[Table | str]:
    """Which part came when, where there are several."""
    parts = _objects(summary, "parts")
    if len(parts) < 2:
        return
    shown = parts[-PARTS_MAX:]
    runs = ("run",) if any("run" in part for part in shown) else ()
    rows = [
        (
            str(part.get("started_at")),
            *(str(part.get(key, UNKNOWN)) for key in runs),
            str(part.get("indexes")),
            *(count_text(part.get(key)) for key in ("finished", "failed")),
        )
        for part in shown
    ]
    yield Table("parts", ("began", *runs, "conversations"), ("finished", "failed"), rows)
    if len(parts) > len(shown):
        yield f"and {len(parts) - len(shown)} earlier sessions: summary.json has them all."


def _undeclared(summary: JsonObject, rows: Sequence[GridRow]) -> Iterator[str]:
    """How to declare a baseline, where there are combinations to compare and none is declared."""
    if declared_in(summary) is not None:
        return
    for spec in results_specs().values():
        count = sum(row.summary is not None and bool(spec.figures(row.summary)) for row in rows)
        if spec.undeclared and count > 1:
            yield spec.undeclared


def _objects(source: JsonObject, key: str) -> list[JsonObject]:
    value = source.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _grid_table(summary: JsonObject, rows: Sequence[GridRow]) -> Table:
    """One row per combination: its values and the figures that there is room for."""
    shown = rows[:ROWS_SHOWN_MAX]
    figures = [_headlines(row.summary) for row in shown]
    values = list(dict.fromkeys(name for row in shown for name in row.values))
    units = figure_names(figures)
    # Where all figures of each row are on equally many cases, one column says how many.
    is_alike = bool(units) and all(len({figure.n for figure in found.values()}) <= 1 for found in figures)
    lines = []
    for row, found in zip(shown, figures, strict=True):
        cells = [value_text(row.values[name]) if name in row.values else UNKNOWN for name in values]
        n = next((f"{figure.n:,}" for figure in found.values()), UNKNOWN)
        cells += [*_ended(row.summary), *((n,) if is_alike else ())]
        lines.append((*cells, *(figure_text(found.get(name), has_n=not is_alike) for name in units)))
    heads = [f"{name} %" if unit == "rate" else name for name, unit in units.items()]
    if any(noted := [noted_defaults(row.summary or {}) for row in shown]):
        heads.append(DEFAULTS_HEAD)
        lines = [(*line, each) for line, each in zip(lines, noted, strict=True)]
    numbers = ("ended", "failed", *(("n",) if is_alike else ()), *heads)
    return Table(f"grid {summary.get('grid')}", (*_short(values),), numbers, lines)


def _further_figures(rows: Sequence[GridRow]) -> Iterator[Table]:
    """A row for each further figure that is printed, a column for each combination, by its number in the table above.

    Without intervals, which the files have. Only of grids that fit.
    """
    figures = [{} if row.summary is None else figures_of(row.summary) for row in rows]
    names = sorted({name for found in figures for name, one in found.items() if one.is_printed})
    if names and len(rows) <= _FURTHER_COMBINATIONS_MAX:
        units = figure_names(figures)
        lines = [
            (f"{name} %" if units[name] == "rate" else name, *(_bare(found.get(name)) for found in figures))
            for name in names
        ]
        numbers = tuple(str(number) for number in range(1, len(rows) + 1))
        yield Table("further figures of the combinations, in their order above", ("figure",), numbers, lines)


def _bare(figure: Figure | None) -> str:
    """A figure without its interval."""
    if figure is None or figure.value is None:
        return UNKNOWN
    return f"{100 * figure.value:.1f}" if figure.unit == "rate" else f"{figure.value:.2f}"


def _headlines(summary: JsonObject | None) -> dict[str, Figure]:
    figures = {} if summary is None else figures_of(summary)
    return {name: figure for name, figure in figures.items() if figure.is_headline}


def _short(names: Sequence[str]) -> list[str]:
    """The last part of each dotted path, or all of it where two end alike."""
    ends = [name.rsplit(".", 1)[-1] for name in names]
    return [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]


def value_text(value: JsonValue) -> str:
    """What a combination has of a value that the grid varies."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ended(summary: JsonObject | None) -> tuple[str, str]:
    conversations = section(summary or {}, "conversations")
    if not conversations:
        return UNKNOWN, UNKNOWN
    finished, failed = conversations.get("finished"), conversations.get("failed")
    ended = finished + failed if isinstance(finished, int) and isinstance(failed, int) else None
    return f"{count_text(ended)}/{count_text(conversations.get('planned'))}", count_text(failed)


def figure_text(figure: Figure | None, *, has_n: bool, has_unit: bool = False) -> str:
    """A rate in percent, `41.0 (31.9–50.8)`, or a score as it is, `0.12 (-0.03 to 0.27)`.

    `has_unit` puts a percent sign behind a rate.
    """
    if figure is None or figure.value is None or figure.lo is None or figure.hi is None:
        return UNKNOWN
    scale, digits = (100, 1) if figure.unit == "rate" else (1, 2)
    value, lo, hi = (f"{scale * end:.{digits}f}" for end in (figure.value, figure.lo, figure.hi))
    value += " %" if has_unit and figure.unit == "rate" else ""
    interval = f"{value} ({lo}–{hi})" if not lo.startswith("-") else f"{value} ({lo} to {hi})"
    return f"{interval}, n {figure.n:,}" if has_n else interval


def _grid_notes(summary: JsonObject, rows: Sequence[GridRow]) -> Iterator[str]:
    yield "Figures with their 95% interval, each on n cases."
    warnings = [(row.slug, usability_warning(row.summary)) for row in rows if row.summary is not None]
    yield from (f"{slug}: warning: {warning}." for slug, warning in warnings[:ROWS_SHOWN_MAX] if warning)
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more combinations: grid.csv has all of them."
    parts = _objects(summary, "parts")
    for part in parts if len(parts) > 1 else ():
        combinations = part.get("combinations")
        count = len(combinations) if isinstance(combinations, list) else 0
        yield f"{count} combinations came with session {part.get('session')}, {part.get('started_at')}."
    left_out = summary.get("left_out")
    if isinstance(left_out, list) and left_out:
        yield f"{len(left_out)} combinations of earlier are not asked for any more and stay as they are."
