from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from mac_runner.clock import Clock
from mac_runner.status import StatusFrame, tick
from tests.status.conftest import SimulatedClock


@dataclass(slots=True)
class RecordingDisplay:
    """Remembers what it was told; `is_enough` is set once it was updated five times."""

    interval_s: float = 0.5
    calls: list[str] = field(default_factory=list)
    is_enough: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        self.calls.append("start")

    def update(self, frame: StatusFrame) -> None:
        self.calls.append("update")
        if self.calls.count("update") == 5:
            self.is_enough.set()

    def say(self, text: str) -> None:
        self.calls.append(f"say {text}")

    def close(self) -> None:
        self.calls.append("close")


async def _tick_until_enough(display: RecordingDisplay, clock: Clock, frame: StatusFrame) -> None:
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick(display, lambda: frame, clock))
        await display.is_enough.wait()
        ticking.cancel()


def test_ticker_updates_once_per_interval_and_once_at_the_end(clock: SimulatedClock, frame: StatusFrame) -> None:
    display = RecordingDisplay(interval_s=0.5)
    asyncio.run(_tick_until_enough(display, clock, frame))

    assert display.calls == ["start", *["update"] * (len(clock.sleeps_s) + 1), "close"]
    assert set(clock.sleeps_s) == {0.5}


def test_ticker_closes_the_display_when_reading_breaks(clock: Clock, frame: StatusFrame) -> None:
    """A bug in reading the run is not hidden, but the terminal is left in order."""
    display = RecordingDisplay()

    def broken() -> StatusFrame:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(tick(display, broken, clock))

    assert display.calls == ["start", "close"]
