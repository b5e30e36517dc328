"""The event loop of a run, which ends when the run does, even while a name server does not answer.

Blocking calls, such as looking up a name, run on threads. Both asyncio and the interpreter wait at their end for every
thread of theirs, which may take minutes. So this loop has daemon threads of its own, which are not waited for.

The last file descriptors are kept for the run directory: no connection of any library is opened with one of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from mac_runner import descriptors
from mac_runner.errors import ShortageError, boundary

BLOCKING_CALLS_MAX: Final = 32
"""How many calls may block at once beside the loop; more of them queue."""

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """Up to BLOCKING_CALLS_MAX daemon threads, started as needed, for one event loop.

    asyncio accepts only a ThreadPoolExecutor; this one starts none of that class's threads.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` on a thread."""
        future: Future[T] = Future()
        self._waiting.put(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < BLOCKING_CALLS_MAX:
            self._started += 1
            threading.Thread(target=self._work, name=f"mac-runner-blocking-{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread once its call has returned, without waiting."""
        for _ in range(self._started):
            self._waiting.put(None)
        super().shutdown(wait=wait, cancel_futures=cancel_futures)

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call()
            self._idle.release()


class _RunLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._executor = DaemonExecutor()
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


def run(main: Coroutine[object, object, T]) -> T:
    """Like `asyncio.run`, but returns as soon as `main` has, even if blocking calls are still under way."""
    try:
        with asyncio.Runner(loop_factory=_RunLoop) as runner:
            return runner.run(main)
    finally:
        main.close()  # It never began if the system had no room for a loop.


def on_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Call `call` on a daemon thread of its own. Raises ShortageError when there can be no further thread."""
    future: Future[T] = Future()
    with boundary(ShortageError, f"thread {name}"):
        threading.Thread(target=_fulfil, args=(future, call), name=name, daemon=True).start()
    return future


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as fault:  # noqa: BLE001 - passed on through the future
        future.set_exception(fault)
    else:
        future.set_result(result)
