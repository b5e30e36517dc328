"""Threads for calls that block, which neither asyncio nor the interpreter waits for at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from mac_runner.errors import ShortageError, boundary

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """Up to `threads` daemon threads, started as needed; further calls queue.

    asyncio accepts only a ThreadPoolExecutor; this one starts none of that class's threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(max_workers=1)
        self._threads_max = threads
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` on a thread."""
        future: Future[T] = Future()
        self._waiting.put(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self._threads_max:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
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
