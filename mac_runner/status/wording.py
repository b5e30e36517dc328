"""Numbers and frames in words: what every display says, in the same words."""

from __future__ import annotations

from mac_runner.printable import printable
from mac_runner.status.frame import ModelSlots, Reading, StatusFrame, TurnRow

UNKNOWN = "–"
_NOT_COUNTED = "tokens not counted by the engine"


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


def finished(reading: Reading) -> str:
    """Finished against planned, and how far the disk is behind."""
    return f"finished {reading.finished}/{reading.planned} (written {reading.written})"


def turn(row: TurnRow, *, task_chars_max: int = 20) -> str:
    """`[task] r3 agent note (model)`; of a long task id the end is shown, which is what tells tasks apart."""
    task_id = printable(row.task_id)
    if len(task_id) > task_chars_max:
        task_id = "…" + task_id[-(task_chars_max - 1) :]
    note = f" {printable(row.note)}" if row.note else ""
    return f"[{task_id}] r{row.round} {printable(row.agent)}{note} ({printable(row.model)})"


def pending(reading: Reading) -> str:
    """`BLOCKED 12 (waiting for others)`, `BACKING OFF 5 (before a retry)`, or both, with no room for why."""
    if not reading.backing_off:
        return f"BLOCKED {reading.blocked} (waiting for others)"
    if not reading.blocked:
        return f"BACKING OFF {reading.backing_off} (before a retry)"
    return f"BLOCKED {reading.blocked} · BACKING OFF {reading.backing_off}"


def in_flight(models: tuple[ModelSlots, ...]) -> str:
    """All models' slots on one line."""
    return ", ".join(f"{printable(model.name)} {model.in_flight}/{model.slots}" for model in models) or UNKNOWN


def tokens(frame: StatusFrame) -> str:
    """`tokens 1.20M in (45% cached), 345k out, 34.5k/s`, and which models do not count theirs."""
    count, silent = frame.reading.tokens, frame.reading.silent_models
    if silent and not count.is_counted:
        return _NOT_COUNTED
    cached = share(count.cached / count.prompt if count.prompt else None)
    counted = f"tokens {quantity(count.prompt)} in ({cached} cached), {quantity(count.completion)} out, "
    counted += f"{quantity(frame.tokens_per_s)}/s"
    return f"{counted}, not counted by {', '.join(map(printable, silent))}" if silent else counted


def token_rate(frame: StatusFrame) -> str:
    """`34.5k tokens/s`, where anybody counts them."""
    is_silent = frame.reading.silent_models and not frame.reading.tokens.is_counted
    return _NOT_COUNTED if is_silent else f"{quantity(frame.tokens_per_s)} tokens/s"


def line(frame: StatusFrame) -> str:
    """The whole frame on one line without any control character."""
    reading = frame.reading
    return (
        f"{printable(reading.experiment_name)}: {finished(reading)}, failed {reading.failed}, open {reading.open}; "
        f"in flight {in_flight(reading.models)}; ready {reading.ready}, blocked {reading.blocked}, "
        f"backing off {reading.backing_off}; "
        f"{quantity(frame.turns_per_s)} turns/s, {token_rate(frame)}; "
        f"elapsed {duration(reading.elapsed_s)}, ETA {duration(frame.eta_s)}"
    )


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
