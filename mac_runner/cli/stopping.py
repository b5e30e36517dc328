"""Signals. The first SIGINT or SIGTERM asks a run to stop, the second one leaves at once.

SIGHUP is ignored: a run goes on when the terminal it was started from is gone.

While nothing is in flight (before the first request, after the last one) there is nothing to wait for, and the first
signal is enough. Leaving at once is safe at any moment: what was acknowledged is on the disk, and nothing else was
promised.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mac_runner.cli.exits import Exit

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside the block SIGINT and SIGTERM alike raise KeyboardInterrupt, and SIGHUP is ignored."""
    handlers = {number: signal.getsignal(number) for number in (*_STOPPING, signal.SIGHUP)}
    for number in _STOPPING:
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals(stop: asyncio.Event, say: Callable[[str], None]) -> Iterator[None]:
    """Inside the block the first signal sets `stop` and says so, and the second ends the process.

    The handlers are the interpreter's and not the loop's, so the second signal is heard even where something holds up
    the loop.
    """
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    received: list[int] = []

    def ask_to_stop() -> None:
        stop.set()
        say("stopping: waiting for the requests in flight; once more leaves at once")

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(Exit.INTERRUPTED)
        loop.call_soon_threadsafe(ask_to_stop)

    for number in _STOPPING:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
