"""Signals. The first SIGINT or SIGTERM asks a run to stop, the second one leaves at once.

SIGHUP is ignored: a run goes on when the terminal it was started from is gone.

While nothing is in flight (before the first request, after the last one) there is nothing to wait for, and the first
signal is enough. Leaving at once is safe at any moment: what was acknowledged is on the disk, and nothing else was
promised.

From the entry point to the last moment of the process there is always a handler, and none is ever taken back to what
Python came with, so no signal ends the process in its own way:

| phase | a signal |
|---|---|
| imports, flags | leaves at once with INTERRUPTED |
| a verb at work, nothing in flight | raises KeyboardInterrupt; a second one leaves at once |
| requests in flight | asks the run to stop; a second one leaves at once |
| the exit code is known | leaves at once with that code |
| the interpreter takes itself apart | is ignored |
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

from mac_runner.cli.exits import Exit

if TYPE_CHECKING:
    import asyncio

_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED: Final = "mac-run: interrupted; run the same command again"


def take_over_signals() -> None:
    """Have every signal from here on heard by us, until nothing of the process is left. To be called first of all."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_on_signals(words=INTERRUPTED)
    # What is registered first is called last. Later Python puts back the handlers that it came with, unless a signal is
    # ignored, and still has work to do.
    atexit.register(_ignore_signals)


def leave_on_signals(code: int = Exit.INTERRUPTED, *, words: str = "") -> None:
    """From here on SIGINT and SIGTERM end the process at once with `code`, and with `words` on stderr."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, f"{words}\n".encode() if words else b"")
        os._exit(code)

    for number in _STOPPING:
        signal.signal(number, leave)


def interrupt_on_signals() -> None:
    """From here on the first SIGINT or SIGTERM raises KeyboardInterrupt, and the second one leaves at once."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        leave_on_signals()
        raise KeyboardInterrupt

    for number in _STOPPING:
        signal.signal(number, interrupt)


@contextmanager
def stop_on_signals(stop: asyncio.Event, say: Callable[[str], None]) -> Iterator[None]:
    """Inside the block the first signal sets `stop` and says so, and the second ends the process, also behind it.

    The handlers are the interpreter's and not the loop's, so the second signal is heard even where something holds up
    the loop.
    """
    from asyncio import get_running_loop  # Here, because the entry point cannot wait until it is imported.

    loop = get_running_loop()
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
        if received:
            leave_on_signals()
        else:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
