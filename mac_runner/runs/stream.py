"""The conversations of all experiments as one stream, and their run directories opened and closed around it.

A run directory opens shortly before its first conversation is wanted and closes when its last one is published, so a
grid of hundreds has only a few threads and files open. Opening and closing wait for the disk, so they happen on threads
of their own: the next directory opens while the one before still has conversations left, and no slot waits at the seam.
The directory of a single experiment is the log of the stream: opened before the engines start, and closed at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, TypeAlias

from mac_runner.clock import Clock
from mac_runner.config import Experiment
from mac_runner.descriptors import limit, runs_within
from mac_runner.errors import RunLockedError, StoreError, UntrustedCodeError
from mac_runner.metrics import Measure, Metric, Reward, measured, own_metric, own_reward, shaped
from mac_runner.plugins import loaded_plugin
from mac_runner.printable import counted
from mac_runner.runs.setup import Setup
from mac_runner.runs.summary import summary_of
from mac_runner.scheduler import Job, Progress, Source
from mac_runner.scheduler.policies import Policies
from mac_runner.store import Disk, RunRecorder, merge_accounting, open_run
from mac_runner.store.lock import LeaseWatch, Owner, read_owner
from mac_runner.store.run_state import accounting_since, without_counts
from mac_runner.store.session import Closing, Recorder
from mac_runner.types import JsonObject, RecordedReply, Task

OnEnded: TypeAlias = Callable[[Setup, JsonObject], None]
"""Receives the row of a conversation that ended, once it is acknowledged; called on a thread of the store."""

LOOK_INTERVAL_S: Final = 1.0
"""How often a process without a conversation looks whether one has become free."""
WAIT_SAID_S: Final = 10.0
"""After so long it says that it waits, and for what."""
_NAMED_MAX: Final = 3
_CLOSERS: Final = 4
"""Closing mostly waits for the disk, so several at a time take hardly longer than one."""


@dataclass(slots=True, eq=False)
class OpenRun(Closing):
    """An open run directory and the experiment played in it."""

    run: RunRecorder
    source: Source
    tasks: Iterator[tuple[Task, tuple[RecordedReply, ...]]]
    done_before: int
    """Conversations that had ended when it was opened."""
    to_begin: int
    """Conversations that are left to be taken from it."""
    began_at_s: float = 0.0
    """When its turn came; it was opened ahead of that."""
    left: int = 0
    """Conversations taken from it that are not over."""
    is_exhausted: bool = False
    """No more conversations will be taken from it."""
    summary: JsonObject | None = None
    """Set once it is written."""
    listeners: list[Callable[[JsonObject], object]] = field(default_factory=list)
    """Receive the row of each conversation that is acknowledged from now on, on the writer's thread."""
    used: JsonObject | None = None
    """What engines used while it was the one opened last, where that is accounted to it."""

    @property
    def written(self) -> int:
        """Conversations written to the disk since it was opened."""
        return self.run.written - self.done_before

    def checkpoint(self, now_s: float) -> None:
        """Record what is accounted to it, or else how long it has been played."""
        self.run.checkpoint({"played_s": round(now_s - self.began_at_s, 6)} if self.used is None else self.used)

    def close(self) -> None:
        """Close the directory with a summary of how far it came; one that was not begun is left as it was."""
        if not (self.run.has_begun or self.is_exhausted):
            self.run.withdraw()
            return
        with self.run:
            if self.run.layout.lease is not None:  # The summary is left to who has all of the run.
                self.run.begin()
            elif self.summary is None:
                self.sum_up()

    def sum_up(self) -> JsonObject:
        """Write the summary of how far it came."""
        self.summary = summary_of(self.run.contents())
        self.run.write_summary(self.summary)
        return self.summary


def open_setup(
    setup: Setup,
    engines: Mapping[str, str],
    clock: Clock,
    *,
    is_guarded: bool = False,
    watch: LeaseWatch | None = None,
    is_retried: Callable[[str], bool] | None = None,
    on_ended: OnEnded | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> OpenRun:
    """Open the run directory of an experiment, whose models are served by `engines`. Raises what `open_run` raises.

    Engines are accounted for in the run, or in the grid that it is played as a part of.
    """
    is_part_of_grid = is_guarded or (setup.grid is not None and setup.lease is not None)
    environment = setup.environment()
    listeners: list[Callable[[JsonObject], object]] = [] if on_ended is None else [partial(on_ended, setup)]

    def acknowledged(row: JsonObject) -> None:
        for listener in tuple(listeners):
            listener(row)

    run = open_run(
        setup.invocation,
        clock=clock,
        is_retried=is_retried,
        is_guarded=is_guarded,
        engines=engines if is_part_of_grid else None,
        watch=watch,
        transcript_bytes_min=setup.transcript_bytes_min,
        restore=setup.restoration(environment),
        on_ended=acknowledged,
        say=say,
    )
    source = Source(
        environment=environment,
        environment_name=setup.environment_name,
        experiment_name=setup.name,
        engines=engines,
        recorder=run,
        retry=setup.experiment.retry_config,
        measure=measure_of(setup.experiment),
    )
    to_begin = run.counts.planned - run.counts.done
    return OpenRun(
        run=run,
        source=source,
        tasks=run.unfinished(),
        done_before=run.written,
        to_begin=to_begin,
        listeners=listeners,
    )


def metrics_of(experiment: Experiment) -> tuple[Metric, ...]:
    """The metrics of an experiment. Raises UntrustedCodeError where their code was not loaded."""
    found = []
    for name in experiment.metrics:
        code = experiment.metric_plugins.get(name)
        plugin = None if code is None else loaded_plugin("metrics", name, code.sha256)
        if plugin is None:
            raise UntrustedCodeError(f"the code of the metric {name} is imported only with --trust")
        found.append(own_metric(plugin))
    return tuple(found)


def measure_of(experiment: Experiment) -> Measure | None:
    """What an experiment keeps of its metrics and shaped rewards, from a transcript; None where it has none."""
    metrics, shaping = metrics_of(experiment), _shaping(experiment)
    if not (metrics or shaping):
        return None
    return lambda transcript: measured(metrics, transcript) | shaped(shaping, transcript)


def _shaping(experiment: Experiment) -> Mapping[str, Reward]:
    """The shaped rewards of an experiment. Raises UntrustedCodeError where their code was not loaded."""
    found = {}
    for own, name in ({} if experiment.rewards is None else experiment.rewards.shaped).items():
        code = experiment.plugins.get(name)
        plugin = None if code is None else loaded_plugin("rewards", name, code.sha256)
        if plugin is None:
            raise UntrustedCodeError(f"the code of the reward {name} is imported only with --trust")
        found[own] = own_reward(plugin)
    return found


class Supply:
    """The run directories that are left to be played, and the next one that this process may have.

    `opener` opens one, and raises RunLockedError when another process holds it. Where `is_free` says that no process is
    known to be at work, `is_complete` says whether it is to be passed over.
    """

    def __init__(
        self,
        parts: Iterable[Setup],
        opener: Callable[[Setup], OpenRun],
        *,
        ahead: float = inf,
        is_free: Callable[[Setup], bool] = lambda _part: False,
        is_complete: Callable[[Setup], bool] = lambda _part: False,
    ) -> None:
        self.ahead = ahead
        """The next one is opened when so many conversations of the last one have not begun."""
        self._left = list(parts)
        self._opener = opener
        self._is_free = is_free
        self._is_complete = is_complete

    @property
    def is_over(self) -> bool:
        """Whether there is no further one, and none will come."""
        return not self._left

    def open_next(self) -> OpenRun | None:
        """Open the first free one; None when there is none now. Waits for the disk."""
        for part in tuple(self._left):
            # The look at one in use is cheap; whether it is complete takes reading it.
            if self._is_free(part) and self._is_complete(part):
                self._left.remove(part)
                continue
            try:
                opened = self._opener(part)
            except RunLockedError:
                continue
            self._left.remove(part)
            return opened
        return None

    def waits_for(self) -> str:
        """Those that are left, in words, and who holds the first of them."""
        held = [(part.layout.place.name, holder(part) or "nobody left a name") for part in self._left[:_NAMED_MAX]]
        more = f" and {len(self._left) - len(held)} more" if len(self._left) > len(held) else ""
        names = ", ".join(f"{name} ({owner})" for name, owner in held)
        return f"{counted(len(self._left), 'shards')} that other processes hold: {names}{more}"


def holder(part: Setup) -> Owner | None:
    """Who has left a note at a shard, or has the whole run."""
    return read_owner(Disk(), part.layout.place) or read_owner(Disk(), part.layout.root)


class ConversationStream(Closing):
    """Work and log of a run: the scheduler takes conversations from it and reports to it.

    All methods belong to the event loop's thread; `close` is called after the loop has ended.
    """

    def __init__(
        self,
        log: Recorder,
        supply: Callable[[Sequence[Setup]], Supply],
        clock: Clock,
        *,
        done: int = 0,
        joins: Progress | None = None,
        accounts: Callable[[], JsonObject] | None = None,
        say: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """`supply` makes the supply of a phase; `done` conversations of all experiments have ended already.

        A run directory that the `log` is of is left open. `joins` counts each one that is opened, where that is not
        known before. `accounts` is what the engines of this phase used so far, where a run directory is accounted for
        what was used while it was the one opened last. `say` receives for what a long wait is.
        """
        self.policies: Policies | None = None
        """Learns of each run directory that is opened."""
        self.begun = 0
        self._log = log
        self._supply_of = supply
        self._clock = clock
        self._done = done
        self._joins = joins
        self._accounts = accounts
        self._say = say
        self._supply = supply(())
        self._ahead: Future[OpenRun | None] | None = None
        self._current: OpenRun | None = None
        self._open: dict[Source, OpenRun] = {}
        self._closing: dict[Future[None], OpenRun] = {}
        self._has_room = asyncio.Event()
        self._open_max = runs_within(limit())
        self._failure: StoreError | None = None
        self._callbacks: list[Callable[[StoreError], None]] = []
        self._accounting: JsonObject = {}
        self._accounting_before: JsonObject = {}
        self._booked: JsonObject = {}
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="mac-runner-opener")
        self._closer = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="mac-runner-closer")

    def begin(self, setups: Sequence[Setup]) -> None:
        """Play the experiments of a phase, once the phase before is over."""
        self._accounting_before = self._accounting
        self._booked = {}
        self._supply = self._supply_of(setups)
        self._open_ahead()

    async def pass_over(self, setups: Sequence[Setup]) -> bool:
        """Open and close the directories of experiments; False at the first one in which something is left to play."""
        self.begin(setups)
        return await self.take() is None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The experiments whose run directories are open and have begun."""
        return tuple(self._open)

    async def drained(self) -> None:
        """Wait until all that ended is acknowledged. Raises StoreError when it cannot be written."""
        for each in tuple(self._open.values()):
            await asyncio.to_thread(each.run.drain)
        await asyncio.gather(*map(asyncio.wrap_future, tuple(self._closing)))

    async def take(self) -> Job | None:
        """The next conversation: of the current experiment, or else of the next one that has any left."""
        while True:
            current = self._current or await self._next_open()
            if current is None:
                return None
            if (item := next(current.tasks, None)) is not None:
                current.left += 1
                current.to_begin -= 1
                self._open_ahead()
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
        self._log.event(name, fields)

    def early_event(self, name: str, fields: JsonObject) -> None:
        """Append an event to the log, once the run has begun."""
        self._log.early_event(name, fields)

    def checkpoint(self, accounting: JsonObject) -> None:
        """Record what the engines have done in this session, and how long each experiment has been played."""
        now_s = self._clock.monotonic_s()
        self._accounting = merge_accounting(self._accounting_before, accounting)
        self._log.checkpoint(self._accounting)
        self._book()
        for each in self._open.values():
            if each.run is not self._log:
                each.checkpoint(now_s)

    def close(self) -> None:
        """Close what is still open but the log, each with a summary of how far it came. Raises the first error."""
        self._supply = self._supply_of(())
        self._opener.shutdown(cancel_futures=True)
        ahead = self._ahead
        is_opened = ahead is not None and not ahead.cancelled() and ahead.exception() is None
        if ahead is not None and is_opened and (opened := ahead.result()) is not None:
            self._open[opened.source] = opened
        self._ahead = None
        for each in self._open.values():
            if each.run is not self._log:
                self._closing[self._closer.submit(each.close)] = each
        self._open.clear()
        self._closer.shutdown()
        failures = [fault for closing in self._closing if (fault := closing.exception()) is not None]
        self._closing.clear()
        if failures:
            raise failures[0]

    async def _next_open(self) -> OpenRun | None:
        """The next experiment, opened; None when there is none. Waits while too many are open, or for one to come."""
        waiting_since_s, is_said = None, False
        while True:
            # Before any wait for room: the only experiment stays open to the end, so room would never come.
            if self._ahead is None and self._supply.is_over:
                return None
            while len(self._open) + len(self._closing) >= self._open_max:
                self._has_room.clear()
                await self._has_room.wait()
            self._open_ahead()
            if self._ahead is None:
                return None
            opened, self._ahead = await asyncio.wrap_future(self._ahead), None
            if opened is not None:
                if not self.begun and opened.run is not self._log:
                    # What makes the directory that of a grid is written before any run in it begins.
                    self._log.begin()
                    await asyncio.to_thread(self._log.drain)
                self._adopt(opened)
                self._current = opened
                self._open_ahead()
                return opened
            if not self._supply.is_over:
                now_s = self._clock.monotonic_s()
                if self._open or waiting_since_s is None:
                    waiting_since_s = now_s  # What it has plays on, or has only just ended.
                if not is_said and now_s - waiting_since_s >= WAIT_SAID_S:
                    is_said = True
                    self._say(f"waiting for {self._supply.waits_for()}")
                await self._clock.sleep(LOOK_INTERVAL_S)

    def _open_ahead(self) -> None:
        """Open the next experiment on a thread of its own, if it is wanted soon."""
        current, supply = self._current, self._supply
        is_due = current is None or current.to_begin <= supply.ahead
        if self._ahead is None and is_due and not supply.is_over:
            self._ahead = self._opener.submit(supply.open_next)

    def _adopt(self, opened: OpenRun) -> None:
        self._book()
        opened.began_at_s = self._clock.monotonic_s()
        if self._joins is not None:
            counts = opened.run.counts
            self._done += opened.done_before
            self._joins.join(planned=counts.planned, finished=counts.finished, failed=counts.failed)
        if self._accounts is not None:
            opened.used = {"played_s": 0.0}
        self._open[opened.source] = opened
        if (policies := self.policies) is not None:
            loop, source = asyncio.get_running_loop(), opened.source

            def ended(row: JsonObject) -> None:
                is_finished = row["failure"] is None
                with suppress(RuntimeError):  # The loop has ended meanwhile, and nobody asks any more.
                    loop.call_soon_threadsafe(
                        partial(policies.ended, source, str(row["task_id"]), is_finished=is_finished)
                    )

            policies.joined(source, opened.run.counts.finished, opened.run.half_done())
            opened.listeners.append(ended)
        self.begun += 1

    def _book(self) -> None:
        """Account what engines used since the last time to what was opened last, while anything is open.

        Each counts itself what was recorded in it.
        """
        if self._accounts is None:
            return
        used = without_counts(self._accounts())
        if self._open:
            latest = next(reversed(self._open.values()))
            latest.used = merge_accounting(latest.used or {}, accounting_since(used, self._booked))
        self._booked = used

    def _close_if_over(self, opened: OpenRun) -> None:
        if opened.left or not opened.is_exhausted or opened.run is self._log:
            return
        self._book()
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
