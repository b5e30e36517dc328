"""A storm: what can go wrong with engines and a disk does, as the dice say; and a watch that checks a run in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from mac_runner.clock import Clock
from mac_runner.errors import RequestRefusedError, TransientBackendError
from mac_runner.scheduler import Accounting, Progress, RequestScheduler, RunLog
from mac_runner.scheduler.testing import (
    Action,
    Answered,
    Broken,
    Depart,
    Event,
    Faulted,
    LiveConversation,
    Opened,
    Settle,
)
from mac_runner.types import Reply, Request
from tests.sim.engine import MortalEngine
from tests.sim.recorder import MemoryRecorder

Fault: TypeAlias = Literal[
    "reset", "timeout", "busy", "error", "garbage", "refusal", "hang", "delay", "did it but raised", "bug"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What goes wrong in one session, until `ends_at_s`; `rates` are per request, deaths are of whole engines."""

    rates: dict[Fault, float] = field(default_factory=dict)
    deaths_at_s: tuple[float, ...] = ()
    down_s: float | None = 10.0
    disk_stall_rate: float = 0.0
    disk_fails_at_s: float | None = None
    sizes: tuple[tuple[float, int], ...] = ()
    """When the capacity of all engines changes, and to what; afterwards it is what it was."""
    ends_at_s: float = 0.0


class StormyEngine(MortalEngine):
    """Answers in the end as a healthy one would: the storm decides when, and after how many faults."""

    def __init__(
        self, weather: Weather, *, capacity: int, token_budget: int | None = None, lookahead: int = 0, dice: int = 0
    ) -> None:
        super().__init__(capacity=capacity, dice=dice, down_s=weather.down_s)
        self.token_budget = token_budget
        self.lookahead = lookahead
        self.weather = weather
        self.capacity_max = capacity
        self.tells: list[Callable[[], None]] = []
        self.met: set[Fault] = set()

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        for death_at_s in self.weather.deaths_at_s:
            loop.call_later(death_at_s, self.die)
        for at_s, capacity in self.weather.sizes:
            loop.call_later(at_s, self.resize, capacity)
            loop.call_later(self.weather.ends_at_s, self.resize, self.capacity)

    def on_resize(self, tell: Callable[[], None]) -> bool:
        self.tells.append(tell)
        return True

    def resize(self, capacity: int) -> None:
        """Serve so many at once from now on."""
        self.capacity, self.capacity_max = capacity, max(self.capacity_max, capacity)
        for tell in self.tells:
            tell()

    async def close(self) -> None:
        await asyncio.sleep(self.random.random())
        await super().close()

    async def generate(self, request: Request) -> Reply:
        # A request may be on its way when the engine shrinks.
        held = self.capacity_max + self.lookahead
        assert self.in_flight < held, f"{self.in_flight + 1} requests where {held} may be"
        return await super().generate(request)

    async def answer(self, request: Request) -> Reply:
        fault = self._drawn()
        if fault == "delay":
            await asyncio.sleep(40.0 * self.random.random())
        elif fault == "hang":
            await asyncio.sleep(1e9)
        elif fault is not None and fault != "did it but raised":
            await asyncio.sleep(self.random.random())
            if fault == "bug" and self.in_flight == 1:
                self.deaths.append(
                    frozenset({request.request_id})
                )  # It takes the run with it, over this request alone.
            raise self._error(fault)
        reply = await super().answer(request)
        if fault == "did it but raised":
            raise ConnectionResetError("reset after the work")
        return reply

    def _drawn(self) -> Fault | None:
        if asyncio.get_running_loop().time() >= self.weather.ends_at_s:
            return None
        draw = self.random.random()
        for fault, rate in self.weather.rates.items():
            if draw < rate:
                self.met.add(fault)
                return fault
            draw -= rate
        return None

    def _error(self, fault: Fault) -> Exception:
        if fault == "busy":
            retry_after_s = self.random.choice([None, 0.0, 20.0, 1e9])
            return TransientBackendError("status 429", retry_after_s=retry_after_s, is_busy=True)
        errors: dict[Fault, Exception] = {
            "reset": ConnectionResetError("reset by peer"),
            "timeout": TimeoutError(),
            "refusal": RequestRefusedError("status 400"),
            "bug": ZeroDivisionError("a bug of the backend"),
            "error": TransientBackendError("status 500"),
            "garbage": TransientBackendError("malformed reply"),
        }
        return errors[fault]


class StormyRecorder(MemoryRecorder):
    """A run directory on a disk that stalls, and may fail in one session; the next one finds it mended."""

    def __init__(self, dice: int) -> None:
        super().__init__()
        self.random = Random(dice)
        self.weather = Weather()
        self.sessions_before = 0

    def begin(self, weather: Weather) -> None:
        """Another session on the same directory."""
        self.weather, self.failure, self.callbacks = weather, None, []
        self.sessions_before = len(self.events)

    def counted(self, name: str) -> int:
        """How many events of one name this session had."""
        return sum(event == name for event, _ in self.events[self.sessions_before :])

    async def flow(self) -> None:
        await super().flow()
        loop = asyncio.get_running_loop()
        if loop.time() < self.weather.ends_at_s and self.random.random() < self.weather.disk_stall_rate:
            await asyncio.sleep(30.0 * self.random.random())
            await super().flow()


class Departure(NamedTuple):
    """A departure, and when its turn was ready."""

    depart: Depart
    ready_at_s: float


@dataclass(slots=True)
class Sums:
    """What went in and what came out."""

    events: int = 0
    departed: int = 0
    landed: int = 0
    opened: int = 0
    settled: int = 0


class Watch(Progress):
    """A Progress that sees every event of the scheduler that it is attached to."""

    def __init__(self) -> None:
        super().__init__(planned=0)
        self.sums = Sums()
        self.departures: list[Departure] = []
        self.suspects: dict[int, frozenset[str]] = {}
        self.fresh_at_s: dict[int, float] = {}

    def attach(
        self,
        scheduler: RequestScheduler,
        accounting: Accounting,
        log: RunLog,
        clock: Clock,
        live: dict[int, LiveConversation],
        silent_since_s: Callable[[str], float | None] = lambda _engine: None,
    ) -> None:
        handle = scheduler.handle

        def watched(event: Event, now_s: float = 0.0) -> list[Action]:
            actions = handle(event, now_s)
            self._look(scheduler, event, actions, now_s)
            return actions

        scheduler.handle = watched  # type: ignore[method-assign]
        super().attach(scheduler, accounting, log, clock, live, silent_since_s)

    def check_fairness(self) -> None:
        """No turn jumps the queue: while a turn waits for its model, no conversation opened later has one sent.

        Looked at are first askings: a correction or another sending goes before them by right, a conversation that is
        further does (as one may be that was resumed in the middle of a round), and a suspect is behind them.
        """
        firsts = [
            one
            for one in self.departures
            if one.depart.sending == 1
            and not one.depart.turn.is_followup
            and one.depart.turn.key not in self.suspects[one.depart.conversation]
        ]
        for place, late in enumerate(firsts):
            opened_at_s = self.fresh_at_s.get(late.depart.conversation, 0.0)
            for waiting in firsts[place + 1 :]:
                is_passed = (
                    waiting.ready_at_s + 1e-6 < opened_at_s
                    and waiting.depart.turn.model == late.depart.turn.model
                    and waiting.depart.turn.round >= late.depart.turn.round
                )
                assert not is_passed, f"{late.depart} went before {waiting.depart}, ready since {waiting.ready_at_s}"

    def _look(self, scheduler: RequestScheduler, event: Event, actions: list[Action], now_s: float) -> None:
        scheduler.validate()
        sums = self.sums
        sums.events += 1
        if isinstance(event, Opened):
            sums.opened += 1
            self.suspects[event.conversation] = event.suspects
            if not event.rounds_completed:
                self.fresh_at_s[event.conversation] = now_s
        elif isinstance(event, Answered | Faulted | Broken):
            sums.landed += 1
        for action in actions:
            if isinstance(action, Depart):
                sums.departed += 1
                self.departures.append(Departure(action, now_s - action.waited_s))
            elif isinstance(action, Settle):
                sums.settled += 1
        assert sums.departed - sums.landed == scheduler.in_flight, f"{sums}, {scheduler.in_flight} in flight"
        assert sums.opened - sums.settled == scheduler.open_conversations, f"{sums}: a conversation was lost or doubled"
