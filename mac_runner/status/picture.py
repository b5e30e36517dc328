"""A frame as text: the live picture for a terminal of a given size, or one line.

::

    tos_100games · vllm                                         elapsed 0:04:10
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  45% ETA 0:05:02
    finished 45/100 (written 43) · failed 0 · open 32
    llama31_8b ━━━━━━━━━━━━━━━━━━━━━━━ now 254/256, 89 waiting, mean 91%
    limit: model llama31_8b (254/256 busy, 89 waiting)
    turns 4.56k, 99.1/s · tokens 1.20M in (45% cached), 345k out, 34.5k/s
    corrections 12, defaults 3 · results of 45: winner mafia 55%, town 45%
    lanes 7/8 up, 2 deaths, 1 restart
    townsfolk@3  resting  gpu 3  0/64  2 deaths, 1 restart · it was killed by signal 9
    townsfolk@0  up       gpu 0  61/64  4.31k tokens/s, 91% cached
    READY 89 (waiting for a slot)         │ BLOCKED 12 (waiting for others)
    [tos_42] r1 spkr_000 (llama31_8b)     │ [tos_42] r1 mod_001 after spkr_000 (llama31_8b)

Yellow is what limits the run, red is what went wrong. Pure. Every name goes through `printable` and into `Text`, so
nothing in it is read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mac_runner.fleet.lane import LaneState, LaneStatus
from mac_runner.printable import counted, printable
from mac_runner.results import is_noted
from mac_runner.status.frame import STATUS_ROWS_MAX, ModelSlots, Reading, StatusFrame, TurnRow

UNKNOWN: Final = "–"
LANES_NAMED_MAX: Final = 3
"""Lanes that a plain line names."""
STATUS_MODELS_MAX: Final = 6
"""Models that are listed one by one on a terminal of 24 lines; a taller one lists more."""
_SHORT_LINES: Final = 24
_LIMIT, _WRONG = "yellow", "bold red"
_IN_ORDER: Final = (LaneState.UP, LaneState.ASLEEP)
"""States in which a lane does what it should."""

_NOT_COUNTED = "tokens not counted by the engine"
# Two lists of turns side by side need this much; below it one is above the other.
_SIDE_BY_SIDE_COLUMNS_MIN = 72
# The cursor rests on the line below the picture.
_CURSOR_LINES = 1


class _Pool(NamedTuple):
    heading: str
    rows: tuple[TurnRow, ...]


def picture(frame: StatusFrame, *, width: int, height: int) -> RenderableType:
    """The frame as at most `height - 1` lines of at most `width` columns."""
    reading = frame.reading
    models = _models(reading.models, width, STATUS_MODELS_MAX + max(0, height - _SHORT_LINES) // 2)
    head: list[RenderableType] = [
        _title(frame),
        _progress(frame),
        _counts(frame),
        models,
        *([] if frame.limit is None else [_line(f"limit: {printable(frame.limit)}", _LIMIT)]),
        *([_line(reading.policies)] if reading.policies else []),
        *_lines(width, f"turns {quantity(reading.turns)}, {quantity(frame.turns_per_s)}/s", tokens(frame)),
    ]
    lines_left = height - _CURSOR_LINES - (len(head) - 1 + models.row_count)
    unused = f"corrections {quantity(reading.corrections)}, defaults {quantity(reading.defaults)}{noted(reading)}"
    replies = _lines(width, unused, f"results {printable(reading.results)}" if reading.results else "")
    if len(replies) <= lines_left:
        head += replies
        lines_left -= len(replies)
    lanes = _lanes(reading, lines_left)
    head += lanes
    lines_left -= sum(one.row_count if isinstance(one, Table) else 1 for one in lanes)
    pools = (
        _Pool(f"READY {reading.ready} (waiting for a slot)", reading.ready_rows),
        _Pool(pending(reading), reading.pending_rows),
    )
    if width >= _SIDE_BY_SIDE_COLUMNS_MIN:
        return Group(*head, *_side_by_side(pools, lines_left, (width - 3) // 2))
    return Group(*head, *_stacked(pools, lines_left, width))


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _lines(width: int, *parts: str) -> list[Text]:
    """The parts on one line where it is wide enough, or each on its own."""
    one_line = " · ".join(filter(None, parts))
    return [_line(one_line)] if len(one_line) <= width else [*map(_line, parts)]


def _bar(completed: int, total: int) -> ProgressBar:
    return ProgressBar(
        total=max(1, total), completed=completed, style="dim", complete_style="default", finished_style="default"
    )


def _title(frame: StatusFrame) -> RenderableType:
    reading = frame.reading
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    name = _line(printable(reading.experiment_name), "bold").append(f" · {printable(reading.profile)}", "not bold")
    grid.add_row(name, Text(f"elapsed {duration(reading.elapsed_s)}"))
    return grid


def _progress(frame: StatusFrame) -> RenderableType:
    reading = frame.reading
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    part = reading.ended / reading.planned if reading.planned else 1.0
    grid.add_row(_bar(reading.ended, reading.planned), Text(f"{share(part):>4} {time_left(frame)}"))
    return grid


def _counts(frame: StatusFrame) -> Text:
    reading = frame.reading
    text = _line(finished(reading))
    text.append(f" · failed {reading.failed}", _WRONG if reading.failed else "")
    text.append(f" · open {reading.open}")
    if reading.resumed_with:
        text.append(f" · resumed with {reading.resumed_with}")
    return text


def _lanes(reading: Reading, lines_left: int) -> list[RenderableType]:
    """The lanes of a fleet, in at most half of the lines that are left."""
    lines_max = lines_left // 2
    if not reading.lanes or lines_max < 1:
        return []
    table = lane_table(reading.lanes, lines_max - 1)
    return [_line(lanes_summary(reading.lanes)), *([table] if table.row_count else [])]


def _models(models: Sequence[ModelSlots], width: int, listed_max: int) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(8, width // 3))
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    is_wide = width >= _SIDE_BY_SIDE_COLUMNS_MIN
    listed = models if len(models) <= listed_max else models[: listed_max - 1]
    for model in listed:
        slots = Text(_slots(model.in_flight, model.slots, model.ready, is_wide=is_wide))
        used = Text("" if model.utilisation is None else f"mean {share(model.utilisation)}")
        if model.unanswered_s is not None:
            used = Text(f"no answer for {duration(model.unanswered_s)}", style=_WRONG)
        grid.add_row(_line(printable(model.name)), _bar(model.in_flight, model.slots), slots, used)
    if len(listed) < len(models):
        rest = models[len(listed) :]
        sums = [sum(each) for each in zip(*((one.in_flight, one.slots, one.ready) for one in rest), strict=True)]
        total = _slots(*sums, is_wide=is_wide)
        grid.add_row(_line(f"… {len(rest)} more"), Text(""), Text(total), Text(""))
    return grid


def _slots(in_flight: int, slots: int, waiting: int, *, is_wide: bool) -> str:
    return f"now {in_flight}/{slots}, {waiting} waiting" if is_wide else f"{in_flight}/{slots}"


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
    rows = (turn(row, task_chars_max=max(8, columns // 3)) for row in pool.rows[:row_count])
    return [_line(pool.heading, "bold"), *(_line(row) for row in rows)]


def finished(reading: Reading) -> str:
    """Finished of planned, and how many of them are on the disk."""
    return f"finished {reading.finished}/{reading.planned} (written {reading.written})"


def turn(row: TurnRow, *, task_chars_max: int = 20) -> str:
    """`[task] r3 agent note (model)`; a long task id is cut at its front, since ids differ at the end."""
    task_id = printable(row.task_id)
    if len(task_id) > task_chars_max:
        task_id = "…" + task_id[-(task_chars_max - 1) :]
    note = f" {printable(row.note)}" if row.note else ""
    return f"[{task_id}] r{row.round} {printable(row.agent)}{note} ({printable(row.model)})"


def pending(reading: Reading) -> str:
    """`BLOCKED 12 (waiting for others)`, `BACKING OFF 5 (before a retry)`, or both without the reasons."""
    if not reading.backing_off:
        return f"BLOCKED {reading.blocked} (waiting for others)"
    if not reading.blocked:
        return f"BACKING OFF {reading.backing_off} (before a retry)"
    return f"BLOCKED {reading.blocked} · BACKING OFF {reading.backing_off}"


def noted(reading: Reading) -> str:
    """` (c 71%)`: the agent definitions that took their default often; empty for none."""
    shares = [f"{printable(name)} {part:.0%}" for name, part in reading.default_shares.items() if is_noted(part)]
    return f" ({', '.join(shares)})" if shares else ""


def in_flight(models: tuple[ModelSlots, ...]) -> str:
    return ", ".join(f"{printable(model.name)} {model.in_flight}/{model.slots}" for model in models) or UNKNOWN


def tokens(frame: StatusFrame) -> str:
    """`tokens 1.20M in (45% cached), 345k out, 34.5k/s`, and the models that do not count theirs."""
    count, silent = frame.reading.tokens, frame.reading.silent_models
    if silent and not count.is_counted:
        return _NOT_COUNTED
    cached = share(count.cached / count.prompt if count.prompt else None)
    counted = f"tokens {quantity(count.prompt)} in ({cached} cached), {quantity(count.completion)} out, "
    counted += f"{quantity(frame.tokens_per_s)}/s"
    return f"{counted}, not counted by {', '.join(map(printable, silent))}" if silent else counted


def token_rate(frame: StatusFrame) -> str:
    """`34.5k tokens/s`, where an engine counts them."""
    is_silent = frame.reading.silent_models and not frame.reading.tokens.is_counted
    return _NOT_COUNTED if is_silent else f"{quantity(frame.tokens_per_s)} tokens/s"


def line(frame: StatusFrame) -> str:
    """The whole frame on one line without control characters."""
    reading = frame.reading
    lanes = lanes_line(reading.lanes)
    return (
        f"{printable(reading.experiment_name)}: {finished(reading)}, failed {reading.failed}, open {reading.open}; "
        f"in flight {in_flight(reading.models)}; ready {reading.ready}, blocked {reading.blocked}, "
        f"backing off {reading.backing_off}; "
        f"{quantity(frame.turns_per_s)} turns/s, {token_rate(frame)}; "
        f"elapsed {duration(reading.elapsed_s)}, {time_left(frame)}"
        f"{f'; defaults{noted(reading)}' if noted(reading) else ''}"
        f"{f'; {lanes}' if lanes else ''}"
        f"{f'; {reading.policies}' if reading.policies else ''}"
        f"{'' if frame.limit is None else f'; limit: {printable(frame.limit)}'}"
    )


def time_left(frame: StatusFrame) -> str:
    """`ETA 0:05:02`; or, while every engine is silent, `nothing runs: no engine has answered for 0:00:12`."""
    if (silence_s := frame.reading.unanswered_s) is not None:
        return f"nothing runs: no engine has answered for {duration(silence_s)}"
    return f"ETA {duration(frame.eta_s)}"


def lane_table(lanes: Sequence[LaneStatus], rows_max: int) -> Table:
    """A row for each of the first `rows_max` lanes; those that take no requests come first."""
    grid = Table.grid(padding=(0, 1))
    for _ in ("name", "state", "place"):
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for lane in sorted(lanes, key=lambda lane: lane.state in _IN_ORDER)[: max(0, rows_max)]:
        style = "" if lane.state in _IN_ORDER else _WRONG
        cells = (printable(lane.name), lane.state.value, printable(lane.place), f"{lane.in_flight}/{lane.slots}")
        grid.add_row(*(Text(cell, style=style) for cell in cells), Text(_account(lane)))
    return grid


def lanes_summary(lanes: Sequence[LaneStatus]) -> str:
    """`lanes 7/8 up, 1 asleep, 2 deaths, 1 restart`."""
    up, asleep = (sum(lane.state is state for lane in lanes) for state in _IN_ORDER)
    deaths, restarts = sum(lane.deaths for lane in lanes), sum(lane.restarts for lane in lanes)
    parts = [f"lanes {up}/{len(lanes)} up"]
    parts += [f"{asleep} asleep"] if asleep else []
    return ", ".join([*parts, *_lives(deaths, restarts)])


def lanes_line(lanes: Sequence[LaneStatus]) -> str:
    """How many lanes are up, and which are not; empty where all do what they should."""
    wrong = [lane for lane in lanes if lane.state not in _IN_ORDER]
    if not wrong:
        return ""
    named = [f"{printable(lane.name)} {lane.state.value}" for lane in wrong[:LANES_NAMED_MAX]]
    more = [f"{len(wrong) - LANES_NAMED_MAX} more"] if len(wrong) > LANES_NAMED_MAX else []
    return f"{lanes_summary(lanes)} ({', '.join([*named, *more])})"


def _account(lane: LaneStatus) -> str:
    parts = [] if lane.tokens_per_s is None else [f"{quantity(lane.tokens_per_s)} tokens/s"]
    parts += [] if lane.prefix_hits is None else [f"{share(lane.prefix_hits)} cached"]
    text = ", ".join([*parts, *_lives(lane.deaths, lane.restarts)])
    is_fault_shown = lane.fault and lane.state not in _IN_ORDER
    return " · ".join(filter(None, [text, printable(lane.fault) if is_fault_shown else ""]))


def _lives(deaths: int, restarts: int) -> list[str]:
    found = [(deaths, "deaths"), (restarts, "restarts")]
    return [counted(count, nouns) for count, nouns in found if count]


def duration(seconds: float | None) -> str:
    """`1:02:03`, and `2d 1:02:03` beyond a day."""
    if seconds is None:
        return UNKNOWN
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02}:{second:02}"
    return f"{days}d {clock}" if days else clock


def quantity(value: float | None) -> str:
    """At most five characters: `7`, `9.40`, `999`, `12.3k`, `4.56M`."""
    if value is None:
        return UNKNOWN
    for divisor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # A value that three digits of the smaller unit would round up to 1000 belongs to this one.
        if value >= divisor * 0.9995:
            return f"{_three_digits(value / divisor)}{unit}"
    return f"{value:.0f}" if value == int(value) else _three_digits(value)


def share(part: float | None) -> str:
    """`91%`."""
    return UNKNOWN if part is None else f"{part:.0%}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
