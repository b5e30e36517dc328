"""The status coroutine: shows the run now and then, at a bounded rate, until it is cancelled."""

from __future__ import annotations

from collections.abc import Callable

from mac_runner.clock import Clock
from mac_runner.status.displays import Display
from mac_runner.status.frame import StatusFrame


async def tick(display: Display, read_frame: Callable[[], StatusFrame], clock: Clock) -> None:
    """Update `display` every `display.interval_s` seconds until cancelled; then once more, and close it.

    Cancelling is the way to stop it, so the last frame is shown at once and not an interval late::

        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(tick(display, read_frame, clock))
            try:
                await run()
            finally:
                ticking.cancel()
    """
    display.start()
    try:
        while True:
            display.update(read_frame())
            await clock.sleep(display.interval_s)
    finally:
        try:
            display.update(read_frame())
        finally:
            display.close()
