"""Time, passed in. Nothing else in the package may ask the machine what time it is."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for arithmetic, and sleep."""

    def utc_now(self) -> datetime:
        """Wall time, timezone-aware UTC; for records only, never for arithmetic."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Suspend the calling task for `delay_s` seconds."""
        ...


class SystemClock:
    """The machine's own clock."""

    def utc_now(self) -> datetime:  # noqa: D102
        return datetime.now(UTC)

    def monotonic_s(self) -> float:  # noqa: D102
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:  # noqa: D102
        await asyncio.sleep(delay_s)


def pause(delay_s: float) -> None:
    """Block the calling thread; for use before an event loop runs."""
    time.sleep(delay_s)


def thread_cpu_s() -> float:
    """CPU seconds that the calling thread has used."""
    return time.thread_time()


def iso(moment: datetime) -> str:
    """ISO 8601 with milliseconds and a trailing Z: the one form of a wall time in our files."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
