"""The asyncio shell around the RequestScheduler: performs its actions and turns their results into events.

It decides nothing. One asyncio task per slot in use, which goes on from its reply to the next departure, one per
request backing off, one that opens conversations and one that watches for the stop: all in one TaskGroup, none per
conversation. What follows from a reply (journal, conversation, next departures) happens in one go without an await, so
no other task ever sees a half-applied reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import assert_never
from weakref import WeakSet

from mac_runner.clock import iso
from mac_runner.errors import EngineCrashedError, EngineDeadError, MacRunnerError
from mac_runner.limits import CHECKPOINT_INTERVAL_S, SHUTDOWN_GRACE_S
from mac_runner.scheduler import poison
from mac_runner.scheduler.accounting import Accounting
from mac_runner.scheduler.engines import first_error
from mac_runner.scheduler.events import (
    Depart,
    Event,
    Finished,
    ModelReady,
    Open,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
from mac_runner.scheduler.exchange import Exchange
from mac_runner.scheduler.live import LiveConversation
from mac_runner.scheduler.pace import Pace
from mac_runner.scheduler.recorder import RunLog
from mac_runner.scheduler.state import RequestScheduler
from mac_runner.scheduler.wiring import Wiring
from mac_runner.scheduler.work import Job, Source
from mac_runner.store.transcripts import build_transcript
from mac_runner.types import JsonObject


class Shell:
    """One run over running backends."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._clock = wiring.clock
        self._log = wiring.log
        # Weak, because hundreds of experiments may come and go.
        self._heeded: WeakSet[Source] = WeakSet()
        self._taken = 0
        self._progress = wiring.progress
        self._scheduler = RequestScheduler(wiring.concurrency)
        self._accounting = Accounting(started_at_s=self._clock.monotonic_s(), concurrency=wiring.concurrency)
        self._pace = Pace(wiring.clock)
        self._exchange = Exchange(wiring, self._accounting, self._pace)
        self._live: dict[int, LiveConversation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()
        self._open_wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._fatal: MacRunnerError | None = None
        self._is_closing = False
        self._checkpoint_at_s = self._clock.monotonic_s() + CHECKPOINT_INTERVAL_S

    async def run(self) -> bool:
        """Run until all is done or the run is stopped; whether all is done. Raises what ends the whole run."""
        self._progress.attach(self._scheduler, self._accounting, self._log, self._clock, self._live)
        self._heed_failures_of(self._log)
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
            self._conclude()
        if self._fatal is not None:
            raise self._fatal
        self._scheduler.validate()  # Once, when all is idle: a slot or a turn that leaked is a bug to be told.
        return self._scheduler.is_done

    def _begin(self) -> None:
        backends = self._wiring.backends
        capacities = {name: backend.capacity for name, backend in backends.items()}
        models: JsonObject = dict(capacities)
        self._log.event("EVENT_RUN_START", {"models": models, "concurrency": self._wiring.concurrency})
        for name, capacity in capacities.items():
            if capacity < 1:
                raise EngineDeadError(f"model {name} serves {capacity} requests at once; it must serve at least one")
            self._accounting.open(name, capacity)
        for name, capacity in capacities.items():
            self._feed(ModelReady(name, capacity, backends[name].token_budget, backends[name].lookahead))

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
        """An error of our own tree that surfaces here ends the run; anything else is a bug and ends it louder."""
        try:
            await work()
        except MacRunnerError as error:
            self._abort(error)

    def _heed_failures_of(self, log: RunLog) -> None:
        """A write that fails ends the whole run, whichever directory it was for."""
        loop = asyncio.get_running_loop()
        log.on_failure(lambda failure: _call_in(loop, lambda: self._abort(failure)))

    def _abort(self, error: MacRunnerError) -> None:
        self._fatal = self._fatal or error
        self._over.set()

    async def _watch_stop(self) -> None:
        await self._wiring.stop.wait()
        self._feed(Stop())
        await self._clock.sleep(SHUTDOWN_GRACE_S)
        self._over.set()

    async def _open_tasks(self) -> None:
        """Open conversations as they are wanted, letting replies that came meanwhile go first."""
        while True:
            await self._open_wanted.wait()
            self._open_wanted.clear()
            while self._scheduler.is_open_wanted:
                job = await self._wiring.work.take()
                # Taking may have to wait, and a stop that came meanwhile has withdrawn the wish.
                if self._scheduler.is_open_wanted:
                    self._feed(TasksExhausted() if job is None else self._open(job))
                if job is not None:
                    await job.source.recorder.flow()
                await self._clock.sleep(0)

    def _open(self, job: Job) -> Event:
        if job.source not in self._heeded:
            self._heeded.add(job.source)
            if job.source.recorder is not self._log:
                self._heed_failures_of(job.source.recorder)
        live = LiveConversation(
            self._taken,
            job.source,
            job.task,
            self._clock.monotonic_s(),
            self._accounting.typical_prompt_tokens if self._wiring.admits_by_tokens else None,
        )
        self._live[self._taken] = live
        self._taken += 1
        opened = live.open(job.replies)
        deaths = job.source.recorder.deaths(job.task)
        return replace(opened, suspects=poison.suspects(deaths)) if deaths else opened

    def _feed(self, event: Event) -> None:
        """Hand the scheduler an event, and perform the actions that it answers with."""
        for depart in self._handle(event):
            self._spawn(partial(self._serve, depart))

    def _handle(self, event: Event) -> list[Depart]:
        """As `_feed`, but for the departures, which are left to the caller."""
        departures: list[Depart] = []
        if self._is_closing:
            return departures
        now_s = self._clock.monotonic_s()
        for action in self._scheduler.handle(event, now_s):
            if isinstance(action, Depart):
                departures.append(action)
            else:
                self._perform(action, now_s)
        for model in self._wiring.backends:
            self._accounting.resize(model, self._scheduler.effective_capacity(model), now_s)
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
        """Carry out a departure, and go on with the first of those that its answer brings."""
        try:
            while True:
                await self._pace.turn()
                event = await self._exchange.carry_out(self._live[depart.conversation], depart)
                following = self._handle(event)
                for other in following[1:]:
                    self._spawn(partial(self._serve, other))
                if not following:
                    return
                depart = following[0]
                # An engine that answers at once would keep everybody else from the loop.
                await self._clock.sleep(0)
        except EngineCrashedError:
            self._blame(self._live[depart.conversation].source.engines[depart.turn.model])
            raise

    def _blame(self, engine: str) -> None:
        """This engine took the run with it: remember what it worked on, once."""
        if self._fatal is None:
            for conversation, turn in self._scheduler.flying(engine):
                live = self._live[conversation]
                if turn.key in live.sendings and not live.sendings[turn.key].is_answered:
                    self._exchange.blame(live, turn)

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
        )
        source.recorder.publish(live.task, transcript)
        status = "finished" if live.failure is None else "failed"
        self._progress.ended(is_failed=live.failure is not None, turns=live.answered)
        turns = len(live.records)
        source.recorder.event(
            "EVENT_CONVERSATION_DONE",
            {"task": live.task.task_id, "status": status, "failure": live.failure, "turns": turns},
        )
        self._wiring.work.settled(source)

    def _checkpoint_if_due(self, now_s: float) -> None:
        """Give the accounts so far, at most every CHECKPOINT_INTERVAL_S: a kill costs no more of them than that."""
        if now_s >= self._checkpoint_at_s:
            self._checkpoint_at_s = now_s + CHECKPOINT_INTERVAL_S
            self._log.checkpoint(self._accounting.as_json(now_s))


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Run `callback` in the loop, from any thread; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
