"""The asyncio runner: performs the scheduler's actions and turns their results into events.

It holds no policy. In one TaskGroup there is a task per slot in use, which goes on from its reply to the next
departure, one per request backing off, one that opens conversations and one that watches for the stop. There is none
per conversation. What follows from a reply (journal, conversation, next departures) happens without an await, so no
other task sees a half-applied reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never
from weakref import WeakSet

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock, iso
from mac_runner.config import RetryConfig
from mac_runner.environments.base import Environment
from mac_runner.errors import AlikeFailuresError, EngineCrashedError, EngineDeadError, MacRunnerError
from mac_runner.failures import ALIKE_MAX
from mac_runner.printable import printable
from mac_runner.scheduler.attempt import AttemptRunner, LoopFairness, RunContext
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.engines import first_error, started
from mac_runner.scheduler.interfaces import Job, Recorder, RunLog, SoleWork, Source, Work
from mac_runner.scheduler.metrics import Accounting, Progress
from mac_runner.scheduler.policies import Policies
from mac_runner.scheduler.state import (
    Depart,
    Event,
    Finished,
    ModelReady,
    Open,
    RequestScheduler,
    Resized,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
from mac_runner.store.transcripts import build_transcript
from mac_runner.types import JsonObject, RecordedReply, Task

SHUTDOWN_GRACE_S: Final = 20.0
"""How long requests in flight may go on after a stop."""
CHECKPOINT_INTERVAL_S: Final = 5.0
"""How often the accounts of a run are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What this session did."""

    finished: int
    failed: int
    interrupted: bool
    """Whether work is left; the same command goes on with it."""


async def run_conversations(
    *,
    environment: Environment,
    environment_name: str,
    experiment_name: str,
    work: Iterator[tuple[Task, tuple[RecordedReply, ...]]],
    backends: Mapping[str, Backend],
    recorder: Recorder,
    retry: RetryConfig,
    concurrency: int | None,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """Play the conversations of one experiment, as `run_pooled` does; `backends` serve its models by name."""
    source = Source(
        environment=environment,
        environment_name=environment_name,
        experiment_name=experiment_name,
        engines={name: name for name in backends},
        recorder=recorder,
        retry=retry,
    )
    return await run_pooled(
        work=SoleWork(source, work),
        backends=backends,
        log=recorder,
        concurrency=concurrency,
        clock=clock,
        stop=stop,
        progress=progress,
        say=say,
    )


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
        self._group = asyncio.TaskGroup()
        self._open_wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._fatal: MacRunnerError | None = None
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
            async with self._group:
                self._spawn(self._watch_stop)
                self._spawn(self._open_tasks)
                self._begin()
                await self._over.wait()
                self._is_closing = True
                for task in self._tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            self._is_closing = True
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
            self._spawn(partial(self._take_in_size, model))

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

    def _spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        task = self._group.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """End the run on an error of our own tree; anything else is a bug and passes."""
        try:
            await work()
        except MacRunnerError as error:
            self._abort(error)

    def _watch_failures_of(self, log: RunLog) -> None:
        """End the whole run when a write fails, in whichever directory."""
        loop = asyncio.get_running_loop()
        log.on_failure(lambda failure: _call_in(loop, lambda: self._abort(failure)))

    def _abort(self, error: MacRunnerError) -> None:
        self._fatal = self._fatal or error
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
        for depart in self._handle(event):
            self._spawn(partial(self._serve, depart))

    def _handle(self, event: Event) -> list[Depart]:
        """As `_feed`, but return the departures to the caller."""
        departures: list[Depart] = []
        if self._is_closing:
            return departures
        now_s = self._clock.monotonic_s()
        for action in self._scheduler.handle(event, now_s):
            if isinstance(action, Depart):
                departures.append(action)
            else:
                self._perform(action, now_s)
        for model in self._run.backends:
            capacity, waiting = self._scheduler.effective_capacity(model), self._scheduler.waiting(model)
            self._accounting.set_pool(model, capacity=capacity, waiting=waiting, now_s=now_s)
        self._checkpoint_if_due(now_s)
        return departures

    def _perform(self, action: Open | RetryLater | Rest | Settle | Finished, now_s: float) -> None:
        match action:
            case Open():
                self._open_wanted.set()
            case RetryLater():
                self._spawn(lambda: self._feed_later(action.delay_s, RetryDue(action.conversation, action.turn)))
            case Rest():
                self._spawn(lambda: self._feed_later(action.delay_s, RestOver(action.model)))
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
        """Carry out a departure, then the first of those that its answer allows."""
        try:
            while True:
                await self._fairness.turn()
                event = await self._attempts.carry_out(self._live[depart.conversation], depart)
                following = self._handle(event)
                for other in following[1:]:
                    self._spawn(partial(self._serve, other))
                if not following:
                    return
                depart = following[0]
                # An engine that answers without a pause would hold the loop.
                await self._clock.sleep(0)
        except EngineCrashedError:
            self._record_deaths(self._live[depart.conversation].source.engines[depart.turn.model])
            raise

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

    def _checkpoint_if_due(self, now_s: float) -> None:
        """Record the accounts every CHECKPOINT_INTERVAL_S; a kill costs no more of them than that."""
        if now_s >= self._checkpoint_at_s:
            self._checkpoint_at_s = now_s + CHECKPOINT_INTERVAL_S
            self._log.checkpoint(self._accounting.as_json(now_s))


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run `callback` in the loop, from any thread, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
