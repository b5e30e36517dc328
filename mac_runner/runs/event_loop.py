"""The event loop of a run, which ends when the run does, even while a name server does not answer.

Blocking calls, such as looking up a name, run on threads. Both asyncio and the interpreter wait at their end for every
thread of theirs, which may take minutes. So this loop has daemon threads of its own, which are not waited for.

The last file descriptors are kept for the run directory: no connection of any library is opened with one of them.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from mac_runner import descriptors
from mac_runner.threads import DaemonExecutor

COLLECTION_OBJECTS: Final = 30_000
"""New objects before the garbage collector looks among them: more than the replies of a burst and their records."""
BLOCKING_CALLS_MAX: Final = 32
"""How many calls may block at once beside the loop; more of them queue."""

T = TypeVar("T")


class _RunLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._executor = DaemonExecutor(BLOCKING_CALLS_MAX, "mac-runner-blocking")
        self.set_default_executor(self._executor)
        limit = descriptors.limit()
        self._first_kept = None if limit is None else descriptors.first_kept(limit)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        # Every connection passes through here, whether made by `create_connection` or with a socket of its own.
        if self._first_kept is not None and sock.fileno() >= self._first_kept:
            sock.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        await super().sock_connect(sock, address)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio has it
        # asyncio's own version starts a thread, which a process without memory cannot have.
        self._executor.shutdown(wait=False)


async def until_stopped(stop: asyncio.Event, work: Coroutine[object, object, None]) -> bool:
    """Do the work until it is done or fails; `stop` cancels it. Returns whether `stop` was set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])
        if not working.cancelled():
            working.exception()  # Looked at, so that asyncio does not complain of it; a stop goes first.
    return stop.is_set()


def run(main: Coroutine[object, object, T]) -> T:
    """Like `asyncio.run`, but returns as soon as `main` has, even if blocking calls are still under way."""
    try:
        with asyncio.Runner(loop_factory=_RunLoop) as runner:
            return runner.run(main)
    finally:
        main.close()  # It never began if the system had no room for a loop.


@contextmanager
def rare_collections() -> Iterator[None]:
    """Make the garbage collector look seldom, and only at new objects.

    What is alive when requests begin (modules, settings, the plan) stays alive to the end; looking through all of it
    holds up every request in flight for as long as a batch of tokens takes. New objects are freed by reference counts.
    Cycles are the exception, and the collector finds them among COLLECTION_OBJECTS new objects.
    """
    young, *older = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(young, COLLECTION_OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
