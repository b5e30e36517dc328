"""The writer thread: the one thread that waits for the disk.

The event loop hands over frozen objects and goes on. The thread takes whatever has gathered and commits it as one
batch, so a hundred conversations share one sync. The committer decides the order of a batch on the disk.

A failed write is final. Nothing after it is written or acknowledged, `failure` has the reason, the callbacks are called
and every later `submit` raises. Nothing is retried, because after a failed sync it is unknown what the disk holds; the
next session finds out by reading.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from mac_runner.errors import OutOfMemoryError, StoreError, boundary
from mac_runner.store.lock import LEASE_INTERVAL_S

Item = TypeVar("Item")
Accepted = TypeVar("Accepted", contravariant=True)

THREAD_NAME = "mac-runner-writer"

WRITE_BACKLOG_ITEMS_MAX: Final = 20_000
"""How many items may wait for the disk before departures pause."""
COMMIT_LINGER_S: Final = 0.01
"""How long a batch waits for more items."""
WRITER_STALL_S_MAX: Final = 20.0
"""How long closing waits for a disk that makes no progress."""
_LOOK_S: Final = 1.0


class Committer(Protocol[Accepted]):
    """What the thread does with a batch. All methods raise StoreError; only the thread calls them."""

    @property
    def pulse(self) -> int:
        """Grows with the progress of the disk; read by the other thread."""
        ...

    def commit(self, items: Sequence[Accepted]) -> None:
        """Write a batch."""
        ...

    def idle(self) -> None:
        """Called when nothing came for `LEASE_INTERVAL_S`."""
        ...

    def finish(self) -> None:
        """Write what comes once, after the last batch."""
        ...

    def close(self) -> None:
        """Close the files; called last, even after a failure."""
        ...


class Writer(Generic[Item]):
    """A queue in front of a committer. All methods are for the event loop's thread."""

    def __init__(self, committer: Committer[Item]) -> None:
        self._committer = committer
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        # Each count is written by one thread, so neither needs a lock.
        self._submitted = 0
        self._completed = 0
        self._progress = threading.Event()
        self._closing = threading.Event()
        self._failure: StoreError | None = None
        self._callbacks: list[Callable[[StoreError], None]] = []
        # Each callback is called exactly once, whether it came before the failure or after it.
        self._failing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """How many items wait for the disk."""
        return self._submitted - self._completed

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more; None while all is well."""
        return self._failure

    def submit(self, item: Item) -> None:
        """Hand an item over. Raises StoreError when a write has failed or the writer is closed."""
        self._check()
        if self._closing.is_set():
            raise StoreError("the run directory is closed: nothing can be written any more")
        self._submitted += 1
        self._queue.put(item)

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` once when a write fails, on the writer's thread; at once if one has failed."""
        with self._failing:
            if self._failure is None:
                self._callbacks.append(callback)
                return
        callback(self._failure)

    async def flow(self) -> None:
        """Wait until the backlog is small again. Raises StoreError when a write has failed."""
        while self._is_congested():
            self._loop = asyncio.get_running_loop()
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            # Checked again now that the thread sees the waiter: it may have finished in between.
            if self._is_congested():
                await waiter
        self._check()

    def drain(self) -> None:
        """Block until everything handed over so far is written. Raises StoreError when it cannot be."""
        while self._is_busy():
            self._progress.clear()
            # Checked again now that the thread's next sign cannot be missed.
            if self._is_busy() and not self._came(self._progress.wait):
                self._fail(_stalled(self.backlog))
        self._check()

    def close(self) -> None:
        """Write everything that was handed over, then stop.

        Raises StoreError when a write has failed, or when the disk makes no progress: then the thread is left behind,
        so that it does not hold up the exit.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(None)
        self.drain()
        if not self._came(self._has_ended):
            self._fail(_stalled(self.backlog))
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def _came(self, wait: Callable[[float], bool]) -> bool:
        """Whether `wait` succeeded. It may take long while the disk makes progress; without progress it is given up.

        If the whole process was stopped, the disk is not at fault: that counts as one look, however long it was.
        """
        look_s = min(_LOOK_S, WRITER_STALL_S_MAX)
        pulse, silent_s = self._committer.pulse, 0.0
        while not wait(look_s):
            silent_s = silent_s + look_s if self._committer.pulse == pulse else 0.0
            if silent_s >= WRITER_STALL_S_MAX:
                return False
            pulse = self._committer.pulse
        return True

    def _has_ended(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_busy(self) -> bool:
        return self.backlog > 0 and self._failure is None

    def _is_congested(self) -> bool:
        return self.backlog >= WRITE_BACKLOG_ITEMS_MAX and self._failure is None

    def _work(self) -> None:
        try:
            with boundary(StoreError, "cannot write the run directory"):
                is_last = False
                while not is_last:
                    items, is_last = self._take()
                    self._committer.commit(items)
                    self._completed += len(items)
                    self._notify()
                self._committer.finish()
        except StoreError as failure:
            self._fail(failure)
        except OutOfMemoryError as failure:
            # A batch may be half written, as after a failed write.
            self._fail(StoreError(str(failure)))
        try:
            self._committer.close()
        except StoreError as failure:
            self._fail(failure)

    def _take(self) -> tuple[list[Item], bool]:
        """All items that have gathered, and whether they are the last. Waits for the first, then lingers for more."""
        first = self._first()
        if first is None:
            return [], True
        self._closing.wait(COMMIT_LINGER_S)
        items = [first]
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is None:
                return items, True
            items.append(item)
        return items, False

    def _first(self) -> Item | None:
        while True:
            try:
                return self._queue.get(timeout=LEASE_INTERVAL_S)
            except Empty:
                self._committer.idle()

    def _fail(self, failure: StoreError) -> None:
        with self._failing:
            if self._failure is not None:
                return
            self._failure = failure
            callbacks = tuple(self._callbacks)
        self._notify()
        for callback in callbacks:
            callback(failure)

    def _notify(self) -> None:
        """Wake what waits in `drain` or `flow`."""
        self._progress.set()
        if self._loop is not None and self._waiters:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._is_congested():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _stalled(backlog: int) -> StoreError:
    return StoreError(
        f"the disk did nothing for {WRITER_STALL_S_MAX:g} s with {backlog} items unwritten; "
        "when the storage works again, run the same command again: it goes on where it stopped"
    )
