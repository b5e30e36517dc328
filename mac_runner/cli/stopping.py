"""Signals. The first SIGINT or SIGTERM asks the run to stop, the second one leaves at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.cli.exits import Exit

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on the first signal, end the process on the second; SIGHUP does not concern a run.

    Leaving at once is safe: what was acknowledged is on the disk, and nothing else was promised.
    """
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(Exit.INTERRUPTED)
        stop.set()
        print("stopping: waiting for the requests in flight; once more leaves at once", file=sys.stderr)  # noqa: T201

    for number in _STOPPING:
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        yield
    finally:
        for number in (*_STOPPING, signal.SIGHUP):
            loop.remove_signal_handler(number)
