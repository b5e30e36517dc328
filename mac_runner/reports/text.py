"""The summary as tables for a terminal.

Drawn from `summary.json` alone, so a table can be printed again from a run directory at any time. Names and reasons are
shown through `printable` and never read as markup. To a file or a pipe go plain characters only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from typing import TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from mac_runner.limits import REPORT_PARTS_MAX, REPORT_RANKING_N_MIN
from mac_runner.printable import printable
from mac_runner.reports.discussions import discussion_lines, discussion_tables
from mac_runner.types import JsonObject, JsonValue

UNKNOWN = "–"
NOT_COUNTED = "not counted by the engine"
MODEL_HEADS = ("capacity", "slots", "slots used", "requests")
_WIDTH_DEFAULT = 100
_WIN_TABLES = (
    ("by_faction", "faction", 1),
    ("by_role", "role", 1),
    ("by_definition", "definition", 2),
    ("by_model", "model", 2),
)
_TOO_FEW = "*"
_WAIT_S_MIN = 0.1


def write_summary(summary: JsonObject, stream: TextIO) -> None:
    """Print the tables on `stream`, in colour and to its width where it is a terminal."""
    show(lambda width, has_style: render_summary(summary, width=width or _WIDTH_DEFAULT, has_style=has_style), stream)


def show(render: Callable[[int | None, bool], str], stream: TextIO) -> None:
    """Print on `stream` what `render` makes for its width, None for one without an end, with or without colour."""
    is_terminal = stream.isatty()
    width = _terminal_width(stream) if is_terminal else None
    stream.write(render(width, is_terminal and "NO_COLOR" not in os.environ))
    stream.flush()


def render_summary(summary: JsonObject, *, width: int = _WIDTH_DEFAULT, has_style: bool = False) -> str:
    """The tables as text of at most `width` columns, without any escape sequence unless `has_style`."""
    parts = (_run_table(summary), *_win_tables(summary), *_discussion_tables(summary), *_unusable_table(summary))
    parts = (*parts, *_models_table(summary), *_failures_table(summary), *_parts_table(summary))
    return drawn(parts, width=width, has_style=has_style)


def drawn(parts: Iterable[RenderableType], *, width: int, has_style: bool) -> str:
    """Some tables one below the other."""
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
    # Cells are padded to their column; nobody wants the blanks at the ends of lines.
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n")) + "\n"


def _run_table(summary: JsonObject) -> RenderableType:
    table = _table(printable(str(summary.get("experiment_name"))), ())
    conversations, tokens, games = (_object(summary, key) for key in ("conversations", "tokens", "games"))
    table.show_header = False
    table.add_column()
    table.add_column(overflow="fold")
    planned = _integer(conversations.get("planned"))
    _add(table, "conversations", f"{_listed(conversations, ('finished', 'failed'))}, of {planned} planned")
    if games:
        _add(table, "games", f"{_listed(games, ('won', 'draws', 'capped'))}; days {_days(games)}")
    if discussions := _object(summary, "discussions"):
        for name, value in discussion_lines(discussions):
            _add(table, name, value)
    _add(table, "turns", f"{_integer(summary.get('turns'))}; {_listed(summary, ('corrections', 'defaults'))}")
    _add(table, "tokens", _tokens(tokens, summary.get("turns")))
    for name, value in _times(summary):
        _add(table, name, value)
    if retried := _object(summary, "retried"):
        counts = _listed(retried, ("finished", "failed"))
        before = _integer(retried.get("failed_attempts"))
        _add(
            table, "tried again", f"{_integer(retried.get('conversations'))}: {counts}; {before} failed attempts before"
        )
    if repeated := _object(summary, "repeated"):
        replies, tokens = _listed(repeated, ("conversations", "replies")), _object(repeated, "tokens")
        cost = f"{replies}, {_integer(tokens.get('completion'))} completion tokens"
        _add(table, "done twice", f"{cost}: another process was at work here")
    return table


def _tokens(tokens: JsonObject, turns: JsonValue) -> str:
    """What was counted, and what was not: nothing that nobody counted is told as none."""
    uncounted, models = tokens.get("uncounted_turns"), tokens.get("uncounted_models")
    if isinstance(uncounted, int) and uncounted == turns:
        return NOT_COUNTED
    cached = _object(tokens, "timing").get("cached")
    counted = _listed({**tokens, "cached": cached}, ("prompt", "cached", "completion"))
    if isinstance(models, list):
        return f"{counted}; {', '.join(printable(str(name)) for name in models)}: {NOT_COUNTED}"
    return f"{counted}; {uncounted:,} turns were not counted" if isinstance(uncounted, int) else counted


def _times(summary: JsonObject) -> Iterable[tuple[str, str]]:
    """How long it took, and how fast it went while it was played."""
    wall_s, played_s, merged = (summary.get(key) for key in ("wall_s", "played_s", "merged_runs"))
    rates = f"{_decimal(summary.get('conversations_per_s'))} conversations/s, "
    rates += f"{_decimal(summary.get('turns_per_s'))} turns/s"
    over = f", added up over {merged} merged runs" if isinstance(merged, int) and merged else ""
    waited = ""
    if isinstance(wall_s, int | float) and isinstance(played_s, int | float) and wall_s - played_s >= _WAIT_S_MIN:
        waited = f", {_decimal(wall_s - played_s)} s of it waiting for engines"
    yield "wall time", f"{_decimal(wall_s)} s{over}{waited}"
    yield "played", f"{_decimal(played_s)} s; {rates}"


def _win_tables(summary: JsonObject) -> Iterable[RenderableType]:
    """A table for each way of counting wins that has as many names as make it worth a table."""
    wins = _object(summary, "wins")
    groups = ((_object(wins, group), name, least) for group, name, least in _WIN_TABLES)
    shown = [(rates, name) for rates, name, least in groups if len(rates) >= least]
    for rates, name in shown:
        table = _table(f"wins by {name}", (name,), ("n", "wins", "rate", "95% interval", ""))
        for key in rates:
            table.add_row(*_win_cells(key, _object(rates, key)))
        yield table
    everything = [_object(rates, key) for rates, _ in shown for key in rates]
    notes = []
    if any(_is_few(rate) for rate in everything):
        notes.append(f"{_TOO_FEW} fewer than {REPORT_RANKING_N_MIN} cases: too few to rank.")
    if any(rate.get("n") != rate.get("games") for rate in everything):
        notes.append(
            "Players of one game win and lose together: where n is more than the games, the true interval is wider."
        )
    if notes:
        yield Text("\n".join(notes))


def _win_cells(name: str, rate: JsonObject) -> list[Text]:
    interval = rate.get("interval")
    ends = [_percent(end) for end in interval] if isinstance(interval, list) else []
    cells = (
        _integer(rate.get("n")),
        _integer(rate.get("wins")),
        _percent(rate.get("rate")),
        " – ".join(ends) or UNKNOWN,
        _TOO_FEW if _is_few(rate) else "",
    )
    return [Text(printable(name)), *map(Text, cells)]


def _discussion_tables(summary: JsonObject) -> Iterable[RenderableType]:
    discussions = _object(summary, "discussions")
    for plain in discussion_tables(discussions) if discussions else ():
        table = _table(plain.title, plain.words, plain.numbers)
        for row in plain.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        yield table


def _unusable_table(summary: JsonObject) -> Iterable[RenderableType]:
    """The replies that could not be used, and why, where there were any."""
    if unusable := _object(summary, "unusable"):
        table = _table("unusable replies", ("agent", "cause"), ("count",))
        for name in unusable:
            for cause, count in _object(unusable, name).items():
                table.add_row(*map(Text, (printable(name), printable(cause.replace("_", " ")), _integer(count))))
        yield table


def _models_table(summary: JsonObject) -> Iterable[RenderableType]:
    models = _object(summary, "models")
    if not models:
        return
    table = _table("models", ("model",), MODEL_HEADS)
    for name in models:
        table.add_row(Text(printable(name)), *map(Text, model_cells(_object(models, name))))
    yield table


def model_cells(model: JsonObject) -> tuple[str, ...]:
    """What stands under MODEL_HEADS. The slots are a mean, and what is used is a part of them, not of the capacity."""
    slots = model.get("slots_mean")
    return (
        _integer(model.get("capacity")),
        f"{slots:,.1f}" if isinstance(slots, int | float) else UNKNOWN,
        _percent(model.get("slot_utilisation")),
        _integer(model.get("requests")),
    )


def _failures_table(summary: JsonObject) -> Iterable[RenderableType]:
    failures = summary.get("failures")
    if not isinstance(failures, list) or not failures:
        return
    table = _table("failures", ("reason", "first tasks"), ("count",))
    for failure in failures:
        if isinstance(failure, dict):
            task_ids = failure.get("task_ids")
            names = ", ".join(map(str, task_ids)) if isinstance(task_ids, list) else ""
            cells = (printable(str(failure.get("reason"))), printable(names), _integer(failure.get("count")))
            table.add_row(*map(Text, cells))
    yield table


def _parts_table(summary: JsonObject) -> Iterable[RenderableType]:
    """Which part came when, where there are several."""
    parts = summary.get("parts")
    if not isinstance(parts, list) or len(parts) < 2:
        return
    shown = [part for part in parts[-REPORT_PARTS_MAX:] if isinstance(part, dict)]
    has_runs = any("run" in part for part in shown)
    table = _table("parts", ("began", *(("run",) if has_runs else ()), "conversations"), ("finished", "failed"))
    for part in shown:
        run = [printable(str(part.get("run", UNKNOWN)))] if has_runs else []
        cells = (str(part.get("started_at")), *run, str(part.get("indexes")))
        table.add_row(*map(Text, cells), *(Text(_integer(part.get(key))) for key in ("finished", "failed")))
    yield table
    if len(parts) > len(shown):
        yield Text(f"and {len(parts) - len(shown)} earlier sessions: summary.json has them all.")


def _table(title: str, left: tuple[str, ...], right: tuple[str, ...] = ()) -> Table:
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add(table: Table, name: str, value: str) -> None:
    table.add_row(Text(name), Text(value))


def _listed(source: JsonObject, keys: tuple[str, ...]) -> str:
    """`3 finished, 1 failed`."""
    return ", ".join(f"{_integer(source.get(key))} {key}" for key in keys)


def _days(games: JsonObject) -> str:
    return f"{_decimal(games.get('days_mean'))} on average, {_integer(games.get('days_max'))} at most"


def _is_few(rate: JsonObject) -> bool:
    n = rate.get("n")
    return isinstance(n, int) and n < REPORT_RANKING_N_MIN


def _object(source: Mapping[str, JsonValue], key: str) -> JsonObject:
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def _integer(value: JsonValue) -> str:
    return f"{value:,}" if isinstance(value, int) else UNKNOWN


def _decimal(value: JsonValue) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _percent(value: JsonValue) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else UNKNOWN


def _terminal_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH_DEFAULT
    except (OSError, ValueError):
        return _WIDTH_DEFAULT
