"""The conversations of all experiments as one stream, and their run directories opened and closed around it.

A run directory opens shortly before its first conversation is wanted and closes when its last one is published, so a
grid of hundreds has only a few threads and files open. Opening and closing wait for the disk, so they happen on threads
of their own: the next directory opens while the one before still has conversations left, and no slot waits at the seam.
The directory of a single experiment is opened before the engines start and closed at the end of the command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from mac_runner.clock import Clock
from mac_runner.descriptors import limit, runs_within
from mac_runner.errors import StoreError
from mac_runner.runs.measurement import measure_of
from mac_runner.runs.setup import Setup
from mac_runner.runs.summary import summary_of
from mac_runner.scheduler import Job, RetryPolicy, Source
from mac_runner.store import GridRun, Run, merge_accounting, open_run
from mac_runner.store.session import Closing
from mac_runner.types import JsonObject, RecordedReply, Task

OnEnded: TypeAlias = Callable[[Setup, JsonObject], None]
"""Receives the row of a conversation that ended, once it is acknowledged; called on a thread of the store."""

_CLOSERS: Final = 4
"""Closing mostly waits for the disk, so several at a time take hardly longer than one."""


@dataclass(slots=True, eq=False)
class OpenRun:
    """An open run directory and the experiment played in it."""

    run: Run
    source: Source
    tasks: Iterator[tuple[Task, tuple[RecordedReply, ...]]]
    done_before: int
    """Conversations that had ended when it was opened."""
    began_at_s: float = 0.0
    """When its turn came; it was opened ahead of that."""
    left: int = 0
    """Conversations taken from it that are not over."""
    is_exhausted: bool = False
    """No more conversations will be taken from it."""
    summary: JsonObject | None = None
    """Set when it is closed."""

    @property
    def written(self) -> int:
        """Conversations written to the disk since it was opened."""
        return self.run.written - self.done_before

    def checkpoint(self, now_s: float) -> None:
        """Record how long it has been played."""
        self.run.checkpoint({"played_s": round(now_s - self.began_at_s, 6)})

    def close(self) -> None:
        """Close the directory with a summary of how far it came; one that was not begun is left as it was."""
        if not (self.run.has_begun or self.is_exhausted):
            self.run.withdraw()
            return
        with self.run:
            self.summary = summary_of(self.run.contents())
            self.run.write_summary(self.summary)


def open_setup(
    setup: Setup,
    engines: Mapping[str, str],
    clock: Clock,
    *,
    is_guarded: bool = False,
    is_retried: Callable[[str], bool] | None = None,
    on_ended: OnEnded | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> OpenRun:
    """Open the run directory of an experiment, whose models are served by `engines`. Raises what `open_run` raises."""
    environment = setup.environment()
    run = open_run(
        setup.directory,
        experiment_name=setup.name,
        resolved=setup.loaded.resolved,
        tasks=setup.tasks,
        clock=clock,
        shard=setup.shard,
        is_retried=is_retried,
        is_guarded=is_guarded,
        transcript_bytes_min=setup.transcript_bytes_min,
        restore=setup.restoration(environment),
        on_ended=(lambda _row: None) if on_ended is None else partial(on_ended, setup),
        say=say,
    )
    source = Source(
        environment=environment,
        environment_name=setup.environment_name,
        experiment_name=setup.name,
        engines=engines,
        recorder=run,
        retry=RetryPolicy.of(setup.experiment.retry_config),
        measure=measure_of(setup.experiment),
    )
    return OpenRun(run=run, source=source, tasks=run.unfinished(), done_before=run.written)


class ConversationStream(Closing):
    """Work and log of a run: the scheduler takes conversations from it and reports to it.

    All methods belong to the event loop's thread; `close` is called after the loop has ended.
    """

    def __init__(
        self,
        log: Run | GridRun,
        served: Mapping[str, Mapping[str, str]],
        clock: Clock,
        *,
        done: int = 0,
        first: OpenRun | None = None,
        on_ended: OnEnded | None = None,
    ) -> None:
        """`served` names the engine of each model of each experiment; `done` conversations of them have ended already.

        `first` is already open; it is closed with the stream, since the run's last records may go to its log.
        """
        self.begun = 0
        self._log = log
        self._served = served
        self._clock = clock
        self._done = done
        self._first = first
        self._on_ended = on_ended
        self._waiting: deque[Setup] = deque()
        self._ahead: Future[OpenRun] | None = None
        self._current: OpenRun | None = None
        self._open: dict[Source, OpenRun] = {}
        self._closing: dict[Future[None], OpenRun] = {}
        self._has_room = asyncio.Event()
        self._open_max = runs_within(limit())
        self._failure: StoreError | None = None
        self._callbacks: list[Callable[[StoreError], None]] = []
        self._accounting: JsonObject = {}
        self._accounting_before: JsonObject = {}
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="mac-runner-opener")
        self._closer = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="mac-runner-closer")

    def begin(self, setups: Sequence[Setup]) -> None:
        """Play the experiments of a phase, once the phase before is over."""
        self._accounting_before = self._accounting
        if self._first is not None:
            self._adopt(self._first)
            self._current = self._first
            return
        self._waiting = deque(setups)
        self._open_ahead()

    async def take(self) -> Job | None:
        """The next conversation: of the current experiment, or else of the next one that has any left."""
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
        """A conversation is over; with its experiment's last one, the run directory closes."""
        current = self._open[source]
        current.left -= 1
        self._close_if_over(current)

    @property
    def failure(self) -> StoreError | None:
        """The write that failed, if one did."""
        return self._failure or self._log.failure

    @property
    def written(self) -> int:
        """Conversations written to the disk, of all experiments and sessions."""
        return self._done + sum(each.written for each in (*self._open.values(), *self._closing.values()))

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` when a write to the log fails, or closing a run directory does."""
        self._callbacks.append(callback)
        self._log.on_failure(callback)

    def event(self, name: str, fields: JsonObject) -> None:
        """Append an event to the log."""
        self._log.event(name, fields)

    def early_event(self, name: str, fields: JsonObject) -> None:
        """Append an event to the log, once the run has begun."""
        self._log.early_event(name, fields)

    def checkpoint(self, accounting: JsonObject) -> None:
        """Record what the engines have done in this session, and how long each experiment has been played."""
        now_s = self._clock.monotonic_s()
        self._accounting = merge_accounting(self._accounting_before, accounting)
        self._log.checkpoint(self._accounting)
        for each in self._open.values():
            if each is not self._first:
                each.checkpoint(now_s)

    def close(self) -> None:
        """Close what is still open, each with a summary of how far it came. Raises the first error of any."""
        self._waiting.clear()
        self._opener.shutdown(cancel_futures=True)
        if self._ahead is not None and not self._ahead.cancelled() and self._ahead.exception() is None:
            self._adopt(self._ahead.result())
        self._ahead = None
        for each in self._open.values():
            if each is not self._first:
                self._closing[self._closer.submit(each.close)] = each
        self._open.clear()
        self._closer.shutdown()
        if self._first is not None:
            self._first.close()
        failures = [fault for closing in self._closing if (fault := closing.exception()) is not None]
        self._closing.clear()
        if failures:
            raise failures[0]

    async def _next_open(self) -> OpenRun | None:
        """The next experiment, opened; None when there is none. Waits while too many are open."""
        if self._ahead is None:
            return None
        while len(self._open) + len(self._closing) >= self._open_max:
            self._has_room.clear()
            await self._has_room.wait()
        opened, self._ahead = await asyncio.wrap_future(self._ahead), None
        self._adopt(opened)
        self._open_ahead()
        return opened

    def _open_ahead(self) -> None:
        if self._waiting:
            setup = self._waiting.popleft()
            self._ahead = self._opener.submit(
                open_setup,
                setup,
                self._served[setup.slug],
                self._clock,
                is_guarded=True,
                on_ended=self._on_ended,
            )

    def _adopt(self, opened: OpenRun) -> None:
        opened.began_at_s = self._clock.monotonic_s()
        self._open[opened.source] = opened
        self.begun += 1

    def _close_if_over(self, opened: OpenRun) -> None:
        if opened.left or not opened.is_exhausted or opened is self._first:
            return
        del self._open[opened.source]
        opened.checkpoint(self._clock.monotonic_s())
        loop = asyncio.get_running_loop()
        closing = self._closer.submit(opened.close)
        self._closing[closing] = opened

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
