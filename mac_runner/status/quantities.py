"""Times, amounts and shares as short words."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "–"


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
