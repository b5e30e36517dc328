"""The live picture: a frame laid out for a terminal of a given size.

::

    tos_100games · vllm                                         elapsed 0:04:10
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  45% ETA 0:05:02
    finished 45/100 (written 43) · failed 0 · open 32
    llama31_8b ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 254/256 91% used
    turns 4.56k, 99.1/s · tokens 1.20M in (45% cached), 345k out, 34.5k/s
    READY 89 (waiting for a slot)         │ BLOCKED 12 (waiting for others)
    [tos_42] r1 spkr_000 (llama31_8b)     │ [tos_42] r1 mod_001 after spkr_000 (llama31_8b)

Pure: from a frame to something rich can print, never more than the terminal's height. Every name goes through
`printable` and into `Text`, so nothing in it is read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mac_runner.limits import STATUS_MODELS_MAX, STATUS_ROWS_MAX
from mac_runner.printable import printable
from mac_runner.status import wording
from mac_runner.status.frame import ModelSlots, StatusFrame, TurnRow

# Two lists of turns side by side need this much; below it they stand one above the other.
_SIDE_BY_SIDE_COLUMNS_MIN = 72
# The cursor rests on the line below the picture.
_CURSOR_LINES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    heading: str
    rows: tuple[TurnRow, ...]


def picture(frame: StatusFrame, *, width: int, height: int) -> RenderableType:
    """The frame as at most `height - 1` lines of at most `width` columns."""
    reading = frame.reading
    models = _models(reading.models, width)
    head = [_title(frame), _progress(frame), _counts(frame), models, *_rates(frame, width)]
    lines_left = height - _CURSOR_LINES - (len(head) - 1 + models.row_count)
    pools = (
        _Pool(heading=f"READY {reading.ready} (waiting for a slot)", rows=reading.ready_rows),
        _Pool(heading=wording.pending(reading), rows=reading.pending_rows),
    )
    if width >= _SIDE_BY_SIDE_COLUMNS_MIN:
        return Group(*head, *_side_by_side(pools, lines_left, (width - 3) // 2))
    return Group(*head, *_stacked(pools, lines_left, width))


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _title(frame: StatusFrame) -> RenderableType:
    reading = frame.reading
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    name = _line(printable(reading.experiment_name), "bold").append(f" · {printable(reading.profile)}", "not bold")
    grid.add_row(name, Text(f"elapsed {wording.duration(reading.elapsed_s)}"))
    return grid


def _progress(frame: StatusFrame) -> RenderableType:
    reading = frame.reading
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=max(1, reading.planned), completed=reading.ended)
    part = reading.ended / reading.planned if reading.planned else 1.0
    grid.add_row(bar, Text(f"{wording.share(part):>4} ETA {wording.duration(frame.eta_s)}"))
    return grid


def _counts(frame: StatusFrame) -> Text:
    reading = frame.reading
    text = _line(wording.finished(reading))
    text.append(f" · failed {reading.failed}", "bold red" if reading.failed else "")
    text.append(f" · open {reading.open}")
    if reading.resumed_with:
        text.append(f" · resumed with {reading.resumed_with}")
    return text


def _models(models: Sequence[ModelSlots], width: int) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(8, width // 3))
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    listed = models if len(models) <= STATUS_MODELS_MAX else models[: STATUS_MODELS_MAX - 1]
    for model in listed:
        bar = ProgressBar(total=max(1, model.slots), completed=model.in_flight, finished_style="bar.complete")
        used = "" if model.utilisation is None else f"{wording.share(model.utilisation)} used"
        grid.add_row(_line(printable(model.name)), bar, Text(f"{model.in_flight}/{model.slots}"), Text(used))
    if len(listed) < len(models):
        rest = models[len(listed) :]
        slots = f"{sum(model.in_flight for model in rest)}/{sum(model.slots for model in rest)}"
        grid.add_row(_line(f"… {len(rest)} more"), Text(""), Text(slots), Text(""))
    return grid


def _rates(frame: StatusFrame, width: int) -> list[Text]:
    of_turns = f"turns {wording.quantity(frame.reading.turns)}, {wording.quantity(frame.turns_per_s)}/s"
    of_tokens = wording.tokens(frame)
    one_line = f"{of_turns} · {of_tokens}"
    return [_line(one_line)] if len(one_line) <= width else [_line(of_turns), _line(of_tokens)]


def _side_by_side(pools: tuple[_Pool, _Pool], lines: int, columns: int) -> list[RenderableType]:
    row_count = min(STATUS_ROWS_MAX, lines - 1)
    if row_count < 1:
        return []
    table = Table(box=box.MINIMAL, show_edge=False, show_header=False, expand=True, pad_edge=False)
    for _ in pools:
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    cells = [_pool_lines(pool, row_count, columns) for pool in pools]
    blank = _line("")
    for index in range(max(len(cell) for cell in cells)):
        table.add_row(*(cell[index] if index < len(cell) else blank for cell in cells))
    return [table]


def _stacked(pools: tuple[_Pool, _Pool], lines: int, columns: int) -> list[RenderableType]:
    row_count = min(STATUS_ROWS_MAX, lines // 2 - 1)
    if row_count < 1:
        return []
    return [line for pool in pools for line in _pool_lines(pool, row_count, columns)]


def _pool_lines(pool: _Pool, row_count: int, columns: int) -> list[Text]:
    rows = (wording.turn(row, task_chars_max=max(8, columns // 3)) for row in pool.rows[:row_count])
    return [_line(pool.heading, "bold"), *(_line(row) for row in rows)]
