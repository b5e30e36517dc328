"""The event loop of a verb, which ends when the verb does.

No connection is opened with one of the last file descriptors: those are for the run directory, whichever library asks.

What blocks (a name server that does not answer, say) is done on threads of a pool, and both asyncio and the interpreter
wait at their end for every thread of theirs, which may take minutes. The threads lent here are waited for by nobody.
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
from typing import Any, ParamSpec, TypeVar

from mac_runner import descriptors
from mac_runner.limits import BLOCKING_CALLS_MAX

P = ParamSpec("P")
T = TypeVar("T")


class LentThreads(ThreadPoolExecutor):
    """A pool of daemon threads, started as they are needed, up to BLOCKING_CALLS_MAX; used by one loop only.

    It is a ThreadPoolExecutor because asyncio takes no other, and starts none of that class's own threads.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called on a thread."""
        future: Future[T] = Future()
        self._waiting.put(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < BLOCKING_CALLS_MAX:
            self._started += 1
            threading.Thread(target=self._work, name=f"mac-runner-blocking-{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads go, each as soon as its call has returned; waits for none of them."""
        for _ in range(self._started):
            self._waiting.put(None)
        super().shutdown(wait=wait, cancel_futures=cancel_futures)

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call()
            self._idle.release()


class _VerbLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._lent = LentThreads()
        self.set_default_executor(self._lent)
        limit = descriptors.limit()
        self._first_kept = None if limit is None else descriptors.first_kept(limit)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        # All that connects comes through here, be it by `create_connection` or with a socket of its own.
        if self._first_kept is not None and sock.fileno() >= self._first_kept:
            sock.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        await super().sock_connect(sock, address)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio has it
        # The loop's own way starts a thread to wait on, which a process without memory cannot have.
        self._lent.shutdown(wait=False)


def run(main: Coroutine[object, object, T]) -> T:
    """`asyncio.run`, but that it returns as soon as `main` has, whatever still blocks."""
    try:
        with asyncio.Runner(loop_factory=_VerbLoop) as runner:
            return runner.run(main)
    finally:
        main.close()  # It was never begun where the system has no room for a loop.


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as fault:  # noqa: BLE001 - it belongs to whoever waits for the future
        future.set_exception(fault)
    else:
        future.set_result(result)
