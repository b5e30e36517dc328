"""The fleet of this machine: performs what `control` decides, and reports back what came of it.

There is one job at a time for each lane: its start, its warm-up, its way to sleep or out of it. Beside it a task waits
for the end of its process. A bug in one of these tasks cancels the task that opened the fleet, which raises it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final, Self, TypeAlias

from mac_runner.backends.fleet.settings import FleetModelConfig, LaneAddress, ModelLanes
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError, MacRunnerError
from mac_runner.fleet.control import Action, Changed, Command, Control, Do, Grant, Note, Refuse
from mac_runner.fleet.engine_process import (
    CommonPrefix,
    EngineClient,
    EngineFailedError,
    LaneEngine,
    launch_of,
    withheld,
)
from mac_runner.fleet.gpus import Gpu, discover
from mac_runner.fleet.lane import LaneSpec, LaneState, LaneStatus, OnEvent
from mac_runner.fleet.layout import FleetPlan
from mac_runner.secrecy import secrets_in
from mac_runner.store.disk import Disk
from mac_runner.types import JsonObject

CLOSE_S: Final = 9.0
"""After so long `close` waits for no lane any more."""
LOOK_EVERY_S: Final = 2.0
"""How often counters are read while somebody looks at the status."""
LINE_EVERY_S: Final = 60.0
"""A lane that ends again and again is mentioned once in this time."""
DRY_LOOK_S: Final = 0.3
DRY_LOOKS: Final = 2
"""How often in a row a lane that is drained must say that nothing is in flight: a request may be on its way to it."""
SLACK_MIB: Final = 512
"""What may be missing of a lane's memory: the driver's own use changes a little."""
SLEEP_SHARE: Final = 0.75
"""How much of its share a lane that sleeps gives back at least; its context and its graphs stay."""

_Work: TypeAlias = Coroutine[object, object, None]


class LocalFleet:
    """Engines on this machine. Use it as a context manager; `ModelLanes.start` starts them."""

    def __init__(
        self,
        plan: FleetPlan,
        *,
        clock: Clock,
        say: Callable[[str], None],
        on_event: OnEvent,
        logs: Path | None = None,
    ) -> None:
        """`logs` is an existing directory for the logs of engines; without one they are in a temporary directory,
        which stays only if an engine broke.
        """
        self.plan = plan
        self.clock = clock
        self.control = Control(plan.lanes, plan.config)
        self._given_logs = logs
        self._reports = LaneReports(plan.lanes, clock=clock, say=say, on_event=on_event)
        self.admin_key = secrets.token_hex(16)
        self._models = {name: LocalModelLanes(name, self) for name in plan.models}
        self._engines: dict[str, LaneEngine] = {}
        self._memory = Memory()
        self._work: Mapping[Do, Callable[[LaneEngine], _Work]] = {
            Do.START: self._start,
            Do.WARM: self._warm,
            Do.STOP: LaneEngine.stop,  # `_watch` reports the end; `_start` does while the process is being started.
            Do.SLEEP: self._sleep,
            Do.WAKE: self._wake,
            Do.CHECK_MEMORY: self._check_memory,
        }
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._queue: deque[Action] = deque()
        self._is_performing = self._has_begun = self._is_closed = False
        self._is_watched = False
        self._timer: asyncio.Task[None] | None = None
        self._due_at_s: float | None = None
        self._grants: dict[int, asyncio.Future[str]] = {}
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: asyncio.Task[object] | None = None
        self._bug: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._logs = self._given_logs or Path(tempfile.mkdtemp(prefix="mac_runner-fleet-"))
        try:
            models = {name: self._with_own_template(model) for name, model in self.plan.models.items()}
        except MacRunnerError:
            if self._given_logs is None:
                shutil.rmtree(self._logs, ignore_errors=True)
            raise
        without = withheld(os.environ, self.plan.keys)
        self._client = EngineClient(self.admin_key, *secrets_in(os.environ, without))
        for spec in self.plan.lanes:
            launch = launch_of(spec, models[spec.model], admin_key=self.admin_key)
            log = self._logs / f"{re.sub(r'[^A-Za-z0-9_.@-]', '_', spec.name)}.log"
            self._engines[spec.name] = LaneEngine(spec, launch, log, self._client, self.clock, without)
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(self, *_fault: object) -> None:
        try:
            await self.close()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bug is not None:
            assert self._owner is not None
            self._owner.uncancel()
            raise self._bug

    def _with_own_template(self, model: FleetModelConfig) -> FleetModelConfig:
        """The model with a copy of its chat template: an engine that starts again reads what the first one read."""
        if (template := model.chat_template) is None:
            return model
        copy = template.model_copy(update={"path": (self._logs / f"{template.sha256}.jinja").resolve()})
        Disk().write_atomic(copy.path, [template.content()])
        return model.model_copy(update={"chat_template": copy})

    @property
    def _now_s(self) -> float:
        return self.clock.monotonic_s()

    # What others ask

    def model(self, name: str) -> LocalModelLanes:
        return self._models[name]

    def status(self) -> tuple[LaneStatus, ...]:
        """All lanes, for people. Counters are read while this is called, and are a few seconds old."""
        self._is_watched = True
        return tuple(self._status_of(engine) for engine in self._engines.values())

    async def drain(self, lane: str) -> None:
        """Take a lane out of service: it gets no new requests, and ends after those in flight."""
        self.feed(self.control.drain(lane, self._now_s))
        await self.until(lambda: self.control.lane(lane).state in (LaneState.DRAINED, LaneState.RETIRED))

    def ask_up(self, lane: str) -> None:
        self.feed(self.control.ask_up(lane, self._now_s))

    async def close(self) -> None:
        """End all engines. Returns when no process is left, within 10 s."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.feed(self.control.close(self._now_s))
        finally:
            await asyncio.wait([asyncio.ensure_future(one.close()) for one in self._engines.values()], timeout=CLOSE_S)
            await self._client.close()
            if self._given_logs is None and not self._reports.has_broken:
                shutil.rmtree(self._logs, ignore_errors=True)

    # What the lanes of a model ask

    def begin(self) -> None:
        """Start all lanes, if that has not begun."""
        if not self._has_begun:
            self._has_begun = True
            self.feed(self.control.begin(self._now_s))
            self._spawn(self._look())

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[str]:
        """Wait for a slot of a model that takes turns with others; the lane that has it."""
        ticket, actions = self.control.ask(model, self._now_s)
        grant = self._grants[ticket] = asyncio.get_running_loop().create_future()
        try:
            self.feed(actions)
            yield await grant
        finally:
            del self._grants[ticket]
            self.feed(self.control.left(ticket, self._now_s))

    def feed(self, actions: Iterable[Action]) -> None:
        """Perform actions, and those that follow from them meanwhile."""
        self._queue.extend(actions)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._queue:
                self._perform(self._queue.popleft())
        finally:
            self._is_performing = False
        self._arm()
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition on lanes holds; it is looked at after each event."""
        while not is_so():
            await self._moved.wait()

    # Commands

    def _perform(self, action: Action) -> None:
        match action:
            case Command(do, lane):
                if do is Do.STOP:
                    self._cancel_job(lane)
                work = self._work[do](self._engines[lane])
                if do in (Do.WARM, Do.SLEEP, Do.WAKE):
                    self._job(lane, work)
                else:
                    self._spawn(work)
            case Grant(ticket, lane):
                self._settle_turn(ticket, lambda grant: grant.set_result(lane))
            case Refuse(ticket, why):
                self._settle_turn(ticket, lambda grant: grant.set_exception(EngineDeadError(why)))
            case Changed(model, up, alive, lost):
                self._models[model].show(up, alive, lost)
            case Note():
                self._note(action, self._engines[action.lane])

    def _note(self, note: Note, engine: LaneEngine) -> None:
        self._reports.note(note, engine.log)
        if note.event == "EVENT_LANE_DRAIN" and self.control.lane(note.lane).is_held:
            self._spawn(self._watch_drain(engine))

    def _settle_turn(self, ticket: int, settle: Callable[[asyncio.Future[str]], None]) -> None:
        grant = self._grants.get(ticket)
        if grant is not None and not grant.done():
            settle(grant)

    async def _start(self, engine: LaneEngine) -> None:
        lane = engine.spec.name
        await self._memory.remember(engine.spec)
        try:
            if self.control.lane(lane).is_stopping:
                raise EngineFailedError("it was stopped before it started")
            await engine.start()
        except EngineFailedError as fault:
            self.feed(self.control.ended(lane, str(fault), self._now_s))
            return
        self._spawn(self._watch(engine))
        if self.control.lane(lane).is_stopping:
            await engine.stop()
        else:
            self._job(lane, self._wait_ready(engine))

    async def _watch(self, engine: LaneEngine) -> None:
        why, was_killed = await engine.ended()
        self._cancel_job(engine.spec.name)
        self.feed(self.control.ended(engine.spec.name, why, self._now_s, was_killed=was_killed))

    async def _wait_ready(self, engine: LaneEngine) -> None:
        await engine.ready()
        self.feed(self.control.ready(engine.spec.name, self._now_s))

    async def _warm(self, engine: LaneEngine) -> None:
        lane = engine.spec.name
        prefix = self._models[engine.spec.model].common_prefix
        await self._asked(lane, engine.warm(prefix, self.plan.config.probe.start_s), self.control.warmed)

    async def _sleep(self, engine: LaneEngine) -> None:
        await self._memory.remember(engine.spec)
        await self._asked(engine.spec.name, engine.sleep(self.plan.config.probe.start_s), self.control.slept)

    async def _wake(self, engine: LaneEngine) -> None:
        await self._asked(engine.spec.name, engine.wake(self.plan.config.probe.start_s), self.control.woken)

    async def _asked(self, lane: str, asking: _Work, done: Callable[[str, float], tuple[Action, ...]]) -> None:
        try:
            await asking
        except EngineFailedError as fault:
            actions = self.control.failed(lane, str(fault), self._now_s)
        else:
            actions = done(lane, self._now_s)
        self._jobs.pop(lane, None)  # What follows may cancel the lane's job, and this one is over.
        self.feed(actions)

    async def _check_memory(self, engine: LaneEngine) -> None:
        lane = engine.spec.name
        is_asleep = self.control.lane(lane).state is LaneState.ASLEEP
        if not is_asleep:
            await engine.gone()
        is_back = await self._memory.is_back(engine.spec, is_asleep=is_asleep)
        self.feed(self.control.memory(lane, is_back, self._now_s))

    async def _watch_drain(self, engine: LaneEngine) -> None:
        """Report when nothing is in flight. An engine that does not say is taken for dry: its requests move."""
        lane, dry = self.control.lane(engine.spec.name), 0
        while dry < DRY_LOOKS:
            await self.clock.sleep(DRY_LOOK_S)
            if not lane.is_held or lane.is_stopping or lane.state is not LaneState.DRAINING:
                return
            await engine.look()
            dry = 0 if engine.figures.in_flight else dry + 1
        self.feed(self.control.drained(engine.spec.name, self._now_s))

    def _status_of(self, engine: LaneEngine) -> LaneStatus:
        spec, lane, tokens = engine.spec, self.control.lane(engine.spec.name), engine.figures.tokens
        return LaneStatus(
            name=spec.name,
            model=spec.model,
            place=spec.place.label,
            state=lane.state,
            slots=spec.slots,
            in_flight=(engine.figures.in_flight or 0) if lane.is_up else 0,
            tokens_per_s=engine.rate.per_s if lane.is_up else None,
            prefix_hits=None if tokens is None else tokens.prefix_hits,
            deaths=lane.deaths,
            restarts=lane.restarts,
            fault=lane.fault,
            pid=engine.pid if lane.is_running else None,
            port=spec.port,
            log=str(engine.log),
        )

    # Tasks

    def _spawn(self, work: _Work) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None or self._bug is not None:
            return
        self._bug = task.exception()
        if self._owner is not None and not self._is_closed:
            self._owner.cancel()

    def _job(self, lane: str, work: _Work) -> None:
        self._cancel_job(lane)
        self._jobs[lane] = self._spawn(work)

    def _cancel_job(self, lane: str) -> None:
        job = self._jobs.pop(lane, None)
        if job is not None and job is not asyncio.current_task():
            job.cancel()

    def _arm(self) -> None:
        """Have `tick` called when control is due."""
        due_at_s = None if self._is_closed else self.control.next_at_s(self._now_s)
        if due_at_s == self._due_at_s and self._timer is not None and not self._timer.done():
            return
        if self._timer is not None and self._timer is not asyncio.current_task():
            self._timer.cancel()
        self._due_at_s = due_at_s
        self._timer = None if due_at_s is None else self._spawn(self._tick_at(due_at_s))

    async def _tick_at(self, due_at_s: float) -> None:
        await self.clock.sleep(max(0.0, due_at_s - self._now_s))
        self._due_at_s = None
        self.feed(self.control.tick(self._now_s))

    async def _look(self) -> None:
        """Read the counters of lanes while somebody looks at the status."""
        while not self._is_closed:
            if self._is_watched:
                self._is_watched = False
                up = [engine for name, engine in self._engines.items() if self.control.lane(name).is_up]
                await asyncio.gather(*(engine.look() for engine in up))
            await self.clock.sleep(LOOK_EVERY_S)


class LocalModelLanes(ModelLanes):
    """The lanes of one model, as its backend sees them."""

    def __init__(self, name: str, fleet: LocalFleet) -> None:
        super().__init__(is_swapped=fleet.control.is_swapped(name), stall_s=fleet.plan.config.probe.stall_s)
        self._name = name
        self._fleet = fleet
        self._addresses = {
            lane.name: LaneAddress(
                name=lane.name,
                url=lane.url,
                gpus=lane.place.visible,
                slots=lane.slots,
                admin_key=fleet.admin_key,
            )
            for lane in fleet.plan.lanes
            if lane.model == name
        }
        self.all = tuple(self._addresses.values())
        self._prefix = CommonPrefix()

    @property
    def common_prefix(self) -> str:
        return self._prefix.text or ""

    def show(self, up: Container[str], alive: Iterable[str], lost: str | None) -> None:
        self.adopt(up, [self._addresses[name] for name in alive], lost)

    async def start(self) -> None:
        self._fleet.begin()
        control = self._fleet.control
        await self._fleet.until(lambda: control.has_served(self._name) or self.lost is not None)
        if not control.has_served(self._name):
            raise EngineDeadError(f"no engine of this model could be started: {self.lost}")

    def turn(self) -> AbstractAsyncContextManager[str | None]:
        return self._fleet.turn(self._name) if self.is_swapped else nullcontext()

    def see(self, system: str) -> None:
        self._prefix.see(system)

    def report_stuck(self, lane: str, why: str) -> None:
        self._fleet.feed(self._fleet.control.stuck(lane, why, self._fleet.clock.monotonic_s()))


class LaneReports:
    """What people hear of lanes: events for the log of the run, and a line when a lane ends and when it is back."""

    def __init__(
        self, lanes: Iterable[LaneSpec], *, clock: Clock, say: Callable[[str], None], on_event: OnEvent
    ) -> None:
        self._lanes = {lane.name: lane for lane in lanes}
        self._clock = clock
        self._say = say
        self._on_event = on_event
        self._said_at_s: dict[str, float] = {}
        self._awaited: set[str] = set()
        """Lanes whose end was mentioned and whose return was not."""
        self.has_broken = False
        """Whether an engine ended by itself or did not start, so that its log is of use."""

    def note(self, note: Note, log: Path) -> None:
        lane = self._lanes[note.lane]
        fields: JsonObject = {"lane": lane.name, "model": lane.model, "place": lane.place.label}
        fields["gpu"] = ",".join(lane.place.visible) or None
        if note.reason:
            fields["reason"] = note.reason
        if note.seconds is not None:
            fields["seconds"] = round(note.seconds, 3)
        self._on_event(note.event, {**fields, **note.fields})
        if line := self._line(note, log):
            self._say(line)

    def _line(self, note: Note, log: Path) -> str | None:
        match note.event:
            case "EVENT_LANE_DEAD":
                self.has_broken = True
                now_s = self._clock.monotonic_s()
                if now_s - self._said_at_s.get(note.lane, -LINE_EVERY_S) < LINE_EVERY_S:
                    return None
                self._said_at_s[note.lane] = now_s
                self._awaited.add(note.lane)
                return f"lane {note.lane} ended: {note.reason} (log: {log})"
            case "EVENT_LANE_RETIRED":
                self._awaited.discard(note.lane)
                return f"lane {note.lane} is not started again: {note.reason} (log: {log})"
            case "EVENT_LANE_UP" | "EVENT_LANE_SWAP" if note.lane in self._awaited:
                self._awaited.remove(note.lane)
                return f"lane {note.lane} serves again"
            case _:
                return None


class Memory:
    """Whether the memory that a lane held on its GPUs is free again, as `nvidia-smi` says.

    vLLM measures the free memory when it starts, and takes a part of what it sees. So a lane that starts while the
    memory of the one before is not back gets too little for its cache, or fails. On a machine without GPUs, and on
    slices, whose free memory `nvidia-smi` does not list, nothing is looked at.
    """

    def __init__(self, find: Callable[[], tuple[Gpu, ...] | None] = discover) -> None:
        self._find = find
        self._before: dict[str, dict[int, int]] = {}
        """What was free on each GPU before a lane started, or before it fell asleep."""

    async def remember(self, lane: LaneSpec) -> None:
        """Take what is free now, before `lane` starts or falls asleep."""
        self._before[lane.name] = await self._free(lane)

    async def is_back(self, lane: LaneSpec, *, is_asleep: bool) -> bool:
        """Whether a lane that ended, or fell asleep, has given its memory back.

        True where `nvidia-smi` does not say: then the engine itself looks when it starts.
        """
        before = self._before.get(lane.name, {})
        if not before:
            return True
        free = await self._free(lane)
        share = {gpu.index: int(lane.memory_share * gpu.memory_mib) for gpu in lane.place.gpus}
        if is_asleep:
            needed = {index: before[index] + SLEEP_SHARE * share[index] for index in before}
        else:
            # Another lane may have come to the GPU since; what a start needs is its share.
            needed = {index: min(before[index], share[index]) for index in before}
        return all(free[index] >= needed[index] - SLACK_MIB for index in free if index in needed)

    async def _free(self, lane: LaneSpec) -> dict[int, int]:
        if not lane.place.gpus or lane.place.slice is not None:
            return {}
        try:
            gpus = await asyncio.to_thread(self._find) or ()
        except ConfigError:
            return {}
        indices = {gpu.index for gpu in lane.place.gpus}
        return {gpu.index: gpu.free_mib for gpu in gpus if gpu.index in indices}
