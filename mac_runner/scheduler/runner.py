"""The asyncio runner: performs the scheduler's actions and turns their results into events, over engines it starts.

It holds no policy. There is a task per slot, which goes on from its reply to the next departure, one per request
backing off, one that opens conversations and one that watches for the stop. There is none per conversation. What
follows from a reply (journal, conversation, next departures) happens without an await, so no other task sees a
half-applied reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never
from weakref import WeakSet

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock, iso
from mac_runner.errors import AlikeFailuresError, EngineCrashedError, EngineDeadError, MacRunnerError, boundary
from mac_runner.failures import ALIKE_MAX
from mac_runner.printable import printable
from mac_runner.scheduler.attempt import AttemptRunner, LoopFairness, RunContext
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.metrics import Accounting, Progress
from mac_runner.scheduler.policies import Policies
from mac_runner.scheduler.state import (
    Action,
    Depart,
    Event,
    Finished,
    Job,
    ModelReady,
    Open,
    RequestScheduler,
    Resized,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    RunLog,
    Settle,
    Source,
    Stop,
    TasksExhausted,
    Work,
)
from mac_runner.store.transcripts import build_transcript
from mac_runner.types import JsonObject

SHUTDOWN_GRACE_S: Final = 20.0
"""How long requests in flight may go on after a stop."""
CHECKPOINT_INTERVAL_S: Final = 5.0
"""How often the accounts of a run are written."""
BACKEND_CLOSE_S_MAX: Final = 10.0
"""How long closing an engine may take."""
START_QUIET_S: Final = 1.0
"""An engine that starts within this time is not mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What this session did."""

    finished: int
    failed: int
    interrupted: bool
    """Whether work is left; the same command goes on with it."""


async def run_pooled(
    *,
    work: Work,
    backends: Mapping[str, Backend],
    log: RunLog,
    concurrency: int | None,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress | None = None,
    policies: Policies | None = None,
    end: Callable[[], Coroutine[object, object, None]] | None = None,
    starting: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext(),
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """Play every conversation of `work` to its end and publish it, on engines that all experiments share.

    `policies` are the weights that change meanwhile. `end` is awaited when all is done, before the engines close.
    The engine of each name starts inside `starting(name)`.

    When `stop` is set, nothing new departs and what is in flight is awaited for SHUTDOWN_GRACE_S; conversations half
    done stay unpublished. The backends are started here and always closed; `say` gets a line about slow starts.

    Raises the error that ended the run: EngineDeadError, StoreError, ConfigError, RunDirectoryError when recorded
    replies were given to other prompts than this version renders, or a bug unchanged.
    """
    if not backends:
        raise ValueError("a run needs at least one backend")
    progress = Progress(planned=0) if progress is None else progress
    before_finished, before_failed = progress.finished, progress.failed
    context = RunContext(
        work=work,
        backends=backends,
        log=log,
        concurrency=concurrency,
        clock=clock,
        stop=stop,
        progress=progress,
        policies=policies,
    )
    if policies is not None:
        policies.check(backends)
    async with started(backends, stop, starting=starting, policies=policies, clock=clock, say=say) as is_started:
        is_done = is_started and await Runner(context).run()
        if is_done and end is not None:
            await end()
    return RunResult(
        finished=progress.finished - before_finished,
        failed=progress.failed - before_failed,
        interrupted=not is_done,
    )


class Runner:
    """One run over engines that are up."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._clock = run.clock
        self._log = run.log
        # Weak, because a run may have hundreds of experiments.
        self._watched: WeakSet[Source] = WeakSet()
        self._taken = 0
        self._progress = run.progress
        self._scheduler = RequestScheduler(run.concurrency)
        self._accounting = Accounting(started_at_s=self._clock.monotonic_s(), concurrency=run.concurrency)
        self._fairness = LoopFairness(run.clock)
        self._attempts = AttemptRunner(run, self._accounting, self._fairness)
        self._live: dict[int, LiveConversation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[Depart]] = []
        """Where tasks wait for their next departure."""
        self._open_wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._fatal: BaseException | None = None
        """What ended the run."""
        self._sizes: dict[str, Resized] = {}
        """The size of each engine, as the scheduler knows it."""
        self._is_ready = False
        """Whether the scheduler knows all engines."""
        self._is_closing = False
        self._checkpoint_at_s = self._clock.monotonic_s() + CHECKPOINT_INTERVAL_S

    async def run(self) -> bool:
        """Run until all is done or the run is stopped; whether all is done. Raises what ends the whole run."""
        self._progress.attach(
            self._scheduler, self._accounting, self._log, self._clock, self._live, self._attempts.silent_since_s
        )
        self._watch_failures_of(self._log)
        try:
            self._spawn(self._watch_stop())
            self._spawn(self._open_tasks())
            self._begin()
            await self._over.wait()
        finally:
            self._is_closing = True
            for task in self._tasks:
                task.cancel()
            try:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:
                self._conclude()
        if self._fatal is not None:
            raise self._fatal
        self._scheduler.validate()  # Once, when all is idle: a leaked slot or turn is a bug.
        return self._scheduler.is_done

    def _begin(self) -> None:
        backends = self._run.backends
        capacities = {name: backend.capacity for name, backend in backends.items()}
        models: JsonObject = dict(capacities)
        self._log.event("EVENT_RUN_START", {"models": models, "concurrency": self._run.concurrency})
        for name, backend in backends.items():
            may_grow = backend.on_resize(partial(self._resize, name))
            if capacities[name] < 1 and not may_grow:
                raise EngineDeadError(
                    f"model {name} serves {capacities[name]} requests at once; it must serve at least one"
                )
            self._accounting.open(name, capacities[name])
        for name, backend in backends.items():
            size = self._sizes[name] = Resized(name, backend.capacity, backend.lookahead, backend.isolates)
            self._feed(ModelReady(name, size.capacity, backend.token_budget, size.lookahead, size.isolates))
        self._is_ready = True

    def _resize(self, model: str) -> None:
        """Take in soon that an engine may serve another number of requests. Not here: the caller is the backend."""
        if self._is_ready and not self._is_closing:
            self._spawn(self._take_in_size(model))

    async def _take_in_size(self, model: str) -> None:
        backend = self._run.backends[model]
        size = Resized(model, backend.capacity, backend.lookahead, backend.isolates)
        if size == self._sizes[model]:
            return
        if (size.capacity, size.lookahead) != (self._sizes[model].capacity, self._sizes[model].lookahead):
            fields: JsonObject = {"model": model, "capacity": size.capacity, "lookahead": size.lookahead}
            self._log.event("EVENT_RESIZE", fields)
        self._sizes[model] = size
        self._accounting.resize(model, size.capacity)
        self._attempts.resized(model)
        self._feed(size)

    def _conclude(self) -> None:
        now_s = self._clock.monotonic_s()
        self._progress.stop(now_s)
        if self._log.failure is None:
            ended: JsonObject = {
                "finished": self._progress.finished,
                "failed": self._progress.failed,
                "is_complete": self._scheduler.is_done,
                "cancelled_requests": self._scheduler.in_flight,
            }
            self._log.event("EVENT_RUN_STOP", ended)
            self._log.checkpoint(self._accounting.as_json(now_s))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._abort(error)

    def _watch_failures_of(self, log: RunLog) -> None:
        """End the whole run when a write fails, in whichever directory."""
        loop = asyncio.get_running_loop()
        log.on_failure(lambda failure: _call_in(loop, lambda: self._abort(failure)))

    def _abort(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
        self._over.set()

    async def _watch_stop(self) -> None:
        await self._run.stop.wait()
        self._feed(Stop())
        await self._clock.sleep(SHUTDOWN_GRACE_S)
        self._over.set()

    async def _open_tasks(self) -> None:
        """Open conversations on demand; replies that arrived meanwhile go first."""
        while True:
            await self._open_wanted.wait()
            self._open_wanted.clear()
            while self._scheduler.is_open_wanted:
                job = await self._run.work.take()
                if job is not None and self._run.policies is not None:
                    await self._run.policies.admit(job.source, job.task.task_id)
                # Taking may wait, and a stop meanwhile withdraws the Open.
                if self._scheduler.is_open_wanted:
                    self._feed(TasksExhausted() if job is None else self._open(job))
                if job is not None:
                    await job.source.recorder.flow()
                await self._clock.sleep(0)

    def _open(self, job: Job) -> Event:
        if job.source not in self._watched:
            self._watched.add(job.source)
            if job.source.recorder is not self._log:
                self._watch_failures_of(job.source.recorder)
        live = LiveConversation(
            self._taken,
            job.source,
            job.task,
            self._clock.monotonic_s(),
            self._accounting.typical_prompt_tokens if self._run.admits_by_tokens else None,
        )
        self._live[self._taken] = live
        self._taken += 1
        return live.open(job.replies)

    def _feed(self, event: Event) -> None:
        """Pass an event to the scheduler and perform its actions."""
        if self._is_closing:
            return
        now_s = self._clock.monotonic_s()
        for action in self._scheduler.handle(event, now_s):
            self._perform(action, now_s)
        for model in self._run.backends:
            capacity, waiting = self._scheduler.effective_capacity(model), self._scheduler.waiting(model)
            self._accounting.set_pool(model, capacity=capacity, waiting=waiting, now_s=now_s)
        if now_s >= self._checkpoint_at_s:  # A kill costs no more of the accounts than since then.
            self._checkpoint_at_s = now_s + CHECKPOINT_INTERVAL_S
            self._log.checkpoint(self._accounting.as_json(now_s))

    def _perform(self, action: Action, now_s: float) -> None:
        match action:
            case Depart() if self._idle:
                self._idle.pop().set_result(action)
            case Depart():
                self._spawn(self._serve(action))
            case Open():
                self._open_wanted.set()
            case RetryLater():
                self._spawn(self._feed_later(action.delay_s, RetryDue(action.conversation, action.turn)))
            case Rest():
                self._spawn(self._feed_later(action.delay_s, RestOver(action.model)))
            case Settle():
                self._settle(self._live.pop(action.conversation), now_s)
            case Finished():
                self._over.set()
            case _:
                assert_never(action)

    async def _feed_later(self, delay_s: float, event: Event) -> None:
        await self._clock.sleep(delay_s)
        self._feed(event)

    async def _serve(self, depart: Depart) -> None:
        """Carry out a departure, then the first of those that its answer allows, or a later one."""
        try:
            while True:
                await self._fairness.turn()
                event = await self._attempts.carry_out(self._live[depart.conversation], depart)
                following: asyncio.Future[Depart] = asyncio.get_running_loop().create_future()
                self._idle.append(following)  # Last, so the first departure is its own.
                self._feed(event)
                if following.done():  # An engine that answers without a pause would hold the loop.
                    await self._clock.sleep(0)
                depart = await following
        except EngineCrashedError as error:
            self._record_deaths(self._live[depart.conversation].source.engines[depart.turn.model])
            self._abort(error)  # At once, so that no other request of it records them again.

    def _record_deaths(self, engine: str) -> None:
        """Record a death for each turn of an engine that takes the run with it, once."""
        if self._fatal is None:
            for conversation, turn in self._scheduler.turns_in_flight(engine):
                live = self._live[conversation]
                if turn.key in live.requests and not live.requests[turn.key].is_answered:
                    self._attempts.record_death(live, turn)

    def _settle(self, live: LiveConversation, now_s: float) -> None:
        ending, source = live.settle(), live.source
        transcript = build_transcript(
            experiment_name=source.experiment_name,
            environment=source.environment_name,
            task=live.task,
            outcome=ending.outcome,
            record=ending.record,
            fingerprint=ending.fingerprint,
            turns=live.records,
            failure=live.failure,
            timing={"ended_at": iso(self._clock.utc_now()), "open_s": round(now_s - live.opened_at_s, 6)},
            measure=source.measure,
        )
        source.recorder.publish(live.task, transcript)
        status = "finished" if live.failure is None else "failed"
        progress = self._progress
        progress.ended(live, ending.outcome)
        turns = len(live.records)
        source.recorder.event(
            "EVENT_CONVERSATION_DONE",
            {"task": live.task.task_id, "status": status, "failure": live.failure, "turns": turns},
        )
        self._run.work.settled(source)
        if progress.is_vain:
            left, reason = progress.planned - progress.failed, printable(progress.first.reason or "")
            self._abort(AlikeFailuresError(ALIKE_MAX, left, reason))


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run `callback` in the loop, from any thread, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


# Engines are started side by side and always closed.


@asynccontextmanager
async def started(
    backends: Mapping[str, Backend],
    stop: asyncio.Event,
    *,
    starting: Callable[[str], AbstractContextManager[None]],
    policies: Policies | None,
    clock: Clock,
    say: Callable[[str], None],
) -> AsyncIterator[bool]:
    """Run all backends inside the block; yields False when `stop` was set before they were ready.

    Each starts inside `starting` of its name, and then gets the weights that `policies` have for it.
    """
    start = partial(_start_one, starting=starting, policies=policies, notices=_StartNotices(clock, say))
    try:
        yield await _start(backends, stop, start)
    except BaseException:
        with suppress(MacRunnerError):  # The error in progress is the one to show.
            await _close(backends, policies)
        raise
    await _close(backends, policies)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of several: the first of our own tree, otherwise the first."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, MacRunnerError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _start(
    backends: Mapping[str, Backend], stop: asyncio.Event, start: Callable[[str, Backend], Coroutine[None, None, None]]
) -> bool:
    try:
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(start(name, backend)) for name, backend in backends.items()]
            watch = group.create_task(_cancel_when(stop, starting))
            if starting:
                await asyncio.wait(starting)
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return not any(task.cancelled() for task in starting)


async def _start_one(
    name: str,
    backend: Backend,
    *,
    starting: Callable[[str], AbstractContextManager[None]],
    policies: Policies | None,
    notices: _StartNotices,
) -> None:
    with boundary(EngineDeadError, "it did not start", model=name):
        async with notices.around(name, backend):
            with starting(name):
                await backend.start()
            if policies is not None:
                await policies.started(name, backend)


class _StartNotices:
    """Reports an engine that starts slowly: that it is starting, and that it is ready."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say

    @asynccontextmanager
    async def around(self, name: str, backend: Backend) -> AsyncIterator[None]:
        """Report the start that happens inside the block, if it is slow."""
        began_at_s = self._clock.monotonic_s()
        notice = asyncio.create_task(self._notify_later(name))
        try:
            yield
        finally:
            notice.cancel()
        took_s = self._clock.monotonic_s() - began_at_s
        if took_s >= START_QUIET_S:
            self._say(
                f"model {name}: ready after {took_s:.1f} s, {backend.capacity or backend.lookahead} requests at once"
            )

    async def _notify_later(self, name: str) -> None:
        await self._clock.sleep(START_QUIET_S)
        self._say(f"model {name}: starting")


async def _cancel_when(stop: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


async def _close(backends: Mapping[str, Backend], policies: Policies | None) -> None:
    """Close all of them, even when cancelled meanwhile: an open engine would outlive the run."""
    if policies is not None:
        policies.closing(backends)
    closing = asyncio.create_task(_close_each(backends))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        with suppress(MacRunnerError):  # The cancellation is the one to show.
            closing.result()
        raise


async def _close_each(backends: Mapping[str, Backend]) -> None:
    """Close them side by side, then raise the first error."""
    closings = (_close_one(name, backend) for name, backend in backends.items())
    for outcome in await asyncio.gather(*closings, return_exceptions=True):
        if outcome is not None:
            raise outcome


async def _close_one(name: str, backend: Backend) -> None:
    with boundary(EngineDeadError, "it did not close", model=name):
        async with asyncio.timeout(BACKEND_CLOSE_S_MAX):
            await backend.close()
