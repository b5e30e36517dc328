"""The conversations of all combinations as one stream, and their run directories opened and closed around it.

A run directory is opened shortly before its first conversation is wanted and closed when its last one is published, so
that a grid of hundreds costs no more threads and files than a few of them. Both take their time, waiting for the disk,
and happen on threads of their own: the next combination is opened while the one before still has conversations left,
and no slot waits at the seam.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mac_runner.cli.grid.parts import Part
from mac_runner.cli.results import summary_of
from mac_runner.clock import Clock
from mac_runner.descriptors import limit, runs_within
from mac_runner.errors import StoreError
from mac_runner.scheduler import Job, RetryPolicy, Source
from mac_runner.store import GridRun, Run, merge_accounting, open_run
from mac_runner.store.session import Closing
from mac_runner.types import JsonObject, RecordedReply, Task

_CLOSERS: Final = 4
"""Closing waits for the disk many times over, so several at a time take hardly longer than one."""


@dataclass(slots=True, eq=False)
class _AtWork:
    """A combination that is open. `left` conversations were taken and are not over; `done_before` had ended by then.

    It is played from `began_at_s` on, which is when its turn came: it was opened ahead.
    """

    run: Run
    source: Source
    tasks: Iterator[tuple[Task, tuple[RecordedReply, ...]]]
    done_before: int
    began_at_s: float = 0.0
    left: int = 0
    is_exhausted: bool = False

    @property
    def written(self) -> int:
        """Conversations that were brought safely to the disk since it is open."""
        return self.run.written - self.done_before

    def checkpoint(self, now_s: float) -> None:
        """Note how long it has been played."""
        self.run.checkpoint({"played_s": round(now_s - self.began_at_s, 6)})

    def close(self) -> None:
        """Close its run directory, with a summary of how far it came; one whose turn never came is left as it was."""
        if not (self.run.has_begun or self.is_exhausted):
            self.run.withdraw()
            return
        with self.run:
            self.run.write_summary(summary_of(self.run.contents()))


class Pool(Closing):
    """Work and log of a grid's run: the scheduler takes conversations from it, and tells it what concerns them all.

    `served` names the engine of each model of each combination, `done` is how many conversations have ended already.
    Every method is for the thread of the event loop, and `close` for when the loop has ended.
    """

    def __init__(self, grid_run: GridRun, served: Mapping[str, Mapping[str, str]], clock: Clock, *, done: int) -> None:
        self.begun = 0
        self._grid_run = grid_run
        self._served = served
        self._clock = clock
        self._done = done
        self._waiting: deque[Part] = deque()
        self._ahead: Future[_AtWork] | None = None
        self._current: _AtWork | None = None
        self._open: dict[Source, _AtWork] = {}
        self._closing: dict[Future[None], _AtWork] = {}
        self._has_room = asyncio.Event()
        self._open_max = runs_within(limit())
        self._failure: StoreError | None = None
        self._callbacks: list[Callable[[StoreError], None]] = []
        self._accounting: JsonObject = {}
        self._accounting_before: JsonObject = {}
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="mac-runner-opener")
        self._closer = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="mac-runner-closer")

    def begin(self, parts: Sequence[Part]) -> None:
        """Play these: a phase, when the one before is over."""
        self._accounting_before = self._accounting
        self._waiting = deque(parts)
        self._open_ahead()

    async def take(self) -> Job | None:
        """The next conversation: of the combination at hand, or else of the next one that has any left."""
        while True:
            if self._current is None:
                self._current = await self._next_open()
                if self._current is None:
                    return None
            current = self._current
            if (item := next(current.tasks, None)) is not None:
                current.left += 1
                return Job(current.source, *item)
            current.is_exhausted, self._current = True, None
            self._close_if_over(current)

    def settled(self, source: Source) -> None:
        """One of its conversations is over; with the last of them its run directory is closed."""
        current = self._open[source]
        current.left -= 1
        self._close_if_over(current)

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more."""
        return self._failure or self._grid_run.failure

    @property
    def written(self) -> int:
        """Conversations safe on disk, of all combinations and all sessions."""
        return self._done + sum(at_work.written for at_work in (*self._open.values(), *self._closing.values()))

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Have `callback` called when a write fails that concerns the grid, or while a combination is closed."""
        self._callbacks.append(callback)
        self._grid_run.on_failure(callback)

    def event(self, name: str, fields: JsonObject) -> None:
        """Put an event into the event log of the grid."""
        self._grid_run.event(name, fields)

    def checkpoint(self, accounting: JsonObject) -> None:
        """Note what the engines have done in this session; each combination at work notes how long it has been."""
        now_s = self._clock.monotonic_s()
        self._accounting = merge_accounting(self._accounting_before, accounting)
        self._grid_run.checkpoint(self._accounting)
        for at_work in self._open.values():
            at_work.checkpoint(now_s)

    def close(self) -> None:
        """Close what is still open, each with a summary of how far it came. Raises the first error of any of them."""
        self._waiting.clear()
        self._opener.shutdown(cancel_futures=True)
        if self._ahead is not None and not self._ahead.cancelled() and self._ahead.exception() is None:
            self._file(self._ahead.result())
        self._ahead = None
        for at_work in self._open.values():
            self._closing[self._closer.submit(at_work.close)] = at_work
        self._open.clear()
        self._closer.shutdown()
        failures = [fault for closing in self._closing if (fault := closing.exception()) is not None]
        self._closing.clear()
        if failures:
            raise failures[0]

    async def _next_open(self) -> _AtWork | None:
        """The next combination, opened; None when there is none. Waits while too many are open."""
        while len(self._open) + len(self._closing) >= self._open_max:
            self._has_room.clear()
            await self._has_room.wait()
        if self._ahead is None:
            return None
        at_work, self._ahead = await asyncio.wrap_future(self._ahead), None
        self._file(at_work)
        self._open_ahead()
        return at_work

    def _open_ahead(self) -> None:
        if self._waiting:
            self._ahead = self._opener.submit(self._opened, self._waiting.popleft())

    def _opened(self, part: Part) -> _AtWork:
        """Open the run directory of a combination; on the opener's thread."""
        setup = part.setup()
        run = open_run(
            part.directory,
            experiment_name=setup.name,
            resolved=setup.resolved,
            tasks=part.tasks,
            clock=self._clock,
            shard=part.shard,
            is_guarded=True,
            transcript_bytes_min=setup.environment.transcript_bytes_min,
            restore=setup.restoration,
        )
        source = Source(
            environment=setup.environment,
            environment_name=setup.experiment.conversation_config.environment,
            experiment_name=setup.name,
            engines=self._served[part.slug],
            recorder=run,
            retry=RetryPolicy.of(setup.experiment.retry_config),
        )
        return _AtWork(run=run, source=source, tasks=run.unfinished(), done_before=run.written)

    def _file(self, at_work: _AtWork) -> None:
        at_work.began_at_s = self._clock.monotonic_s()
        self._open[at_work.source] = at_work
        self.begun += 1

    def _close_if_over(self, at_work: _AtWork) -> None:
        if at_work.left or not at_work.is_exhausted:
            return
        del self._open[at_work.source]
        at_work.checkpoint(self._clock.monotonic_s())
        loop = asyncio.get_running_loop()
        closing = self._closer.submit(at_work.close)
        self._closing[closing] = at_work

        def closed(_future: Future[None]) -> None:
            with suppress(RuntimeError):  # The loop has ended meanwhile; `close` looks for itself.
                loop.call_soon_threadsafe(self._closed, closing)

        closing.add_done_callback(closed)

    def _closed(self, closing: Future[None]) -> None:
        """A run directory was closed, or could not be: then the failed write stops the whole run."""
        fault = closing.exception()
        if fault is None:
            self._done += self._closing.pop(closing).written
            self._has_room.set()
        elif isinstance(fault, StoreError):
            self._failure = self._failure or fault
            for callback in self._callbacks:
                callback(fault)
        else:
            raise fault
