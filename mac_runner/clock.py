"""Time, passed in. Nothing else in the package may ask the machine what time it is."""

from __future__ import annotations

import asyncio
import faulthandler
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

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    monotonic_s = staticmethod(time.monotonic)  # A request asks for the time about twenty times.

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class Watchdog(Protocol):
    """Ends this process, with where its threads are on stderr, unless it is wound again in time."""

    def wind(self, limit_s: float) -> None:
        """Let the process go on for `limit_s` seconds from now."""
        ...

    def stop(self) -> None:
        """Let it go on for as long as it likes."""
        ...


class SystemWatchdog:
    """By the machine's own clock; it ends a process that holds the interpreter's lock too.

    Winding starts a thread, so it is left out where a tenth of the limit has not passed since.
    """

    def __init__(self) -> None:
        self._limit_s = self._wound_s = 0.0

    def wind(self, limit_s: float) -> None:
        now_s = time.monotonic()
        if limit_s != self._limit_s or now_s - self._wound_s > 0.1 * limit_s:
            self._limit_s, self._wound_s = limit_s, now_s
            faulthandler.dump_traceback_later(limit_s, exit=True)

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()


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
