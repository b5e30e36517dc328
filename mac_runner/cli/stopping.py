"""Signals. The first SIGINT or SIGTERM asks a run to stop, the second one leaves at once; SIGHUP concerns nobody.

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
    """Inside the block the first signal sets `stop` and says so, and the second ends the process."""
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in _STOPPING}

    def on_signal() -> None:
        if stop.is_set():
            os._exit(Exit.INTERRUPTED)
        stop.set()
        say("stopping: waiting for the requests in flight; once more leaves at once")

    for number in _STOPPING:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
