"""Scripted engines in simulated time: they answer late, fail, refuse, hang, die, and turn away, as their dice say."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeAlias

from mac_runner.backends import Backend
from mac_runner.errors import BackendError, EngineCrashedError, RequestRefusedError, TransientBackendError
from mac_runner.types import Destination, Reply, Request, TokenCount

Working: TypeAlias = dict[str, asyncio.Future[None]]
"""What is worked on, by its request."""


def end(waiter: asyncio.Future[None]) -> None:
    """The work is done, unless it was over before."""
    if not waiter.done():
        waiter.set_result(None)


def break_off(working: Working, word: Callable[[], Exception]) -> None:
    """All work ends with an error."""
    for waiter in working.values():
        if not waiter.done():
            waiter.set_exception(word())


class SimulatedEngine(Backend):
    """Its words depend on prompt and seed alone; when and after how many faults they come depends on `dice`.

    Requests for which `refuses` is true are refused every time: that depends on the prompt, not on the dice.
    """

    capacity: int = 0
    token_budget: int | None = None
    lookahead: int = 0

    def __init__(
        self,
        *,
        capacity: int = 4,
        token_budget: int | None = None,
        lookahead: int = 0,
        dice: int = 0,
        fault_rate: float = 0.0,
        latency_s_max: float = 2.0,
        refuses: Callable[[str], bool] = lambda _digest: False,
    ) -> None:
        self.capacity = capacity
        self.token_budget = token_budget
        self.lookahead = lookahead
        self.random = Random(dice)
        self.fault_rate = fault_rate
        self.latency_s_max = latency_s_max
        self.refuses = refuses
        self.in_flight = 0
        self.in_flight_max = 0
        self.is_started = False
        self.is_closed = False
        self.sent: list[tuple[str, int | None]] = []

    async def start(self) -> None:
        await asyncio.sleep(5.0)
        self.is_started = True

    async def close(self) -> None:
        self.is_closed = True

    async def generate(self, request: Request) -> Reply:
        assert self.is_started
        assert not self.is_closed
        self.sent.append((request.prompt.sha256, request.sampling.seed))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1

    async def work(self, request: Request, working: Working, die: Callable[[], None] | None) -> None:
        """The part of an answer during which the engine can die; it ends with `die` where that is given."""
        loop = asyncio.get_running_loop()
        waiter = working[request.request_id] = loop.create_future()
        timer = loop.call_later(self.random.random() * self.latency_s_max, die or partial(end, waiter))
        try:
            await waiter
        finally:
            timer.cancel()
            del working[request.request_id]

    async def answer(self, request: Request) -> Reply:
        await asyncio.sleep(self.random.random() * self.latency_s_max)
        if self.random.random() < self.fault_rate:
            raise TransientBackendError("connection reset", retry_after_s=self.random.choice([None, 3.0]))
        digest = hashlib.sha256(f"{request.prompt.sha256} {request.sampling.seed}".encode()).hexdigest()
        if self.refuses(digest):
            raise RequestRefusedError("context overflow")
        return Reply(text=f"word {digest[:12]}", tokens=TokenCount(prompt=7, cached=2, completion=3))


class MortalEngine(SimulatedEngine):
    """Dies over each request for which `kills` is true. It is back `down_s` later; None: it takes the run with it.

    `deaths` lists what it worked on each time.
    """

    def __init__(
        self,
        *,
        kills: Callable[[Request], bool] = lambda _request: False,
        down_s: float | None = 20.0,
        capacity: int = 4,
        dice: int = 0,
        fault_rate: float = 0.0,
    ) -> None:
        super().__init__(capacity=capacity, dice=dice, fault_rate=fault_rate)
        self.kills = kills
        self.down_s = down_s
        self.up_at_s = 0.0
        self.deaths: list[frozenset[str]] = []
        self.working: Working = {}

    async def answer(self, request: Request) -> Reply:
        if asyncio.get_running_loop().time() < self.up_at_s:
            raise TransientBackendError("connection refused", is_unreachable=True)
        await self.work(request, self.working, self.die if self.kills(request) else None)
        return await super().answer(request)

    def die(self) -> None:
        """End now, with everything that it works on."""
        self.deaths.append(frozenset(self.working))
        self.up_at_s = asyncio.get_running_loop().time() + (1e9 if self.down_s is None else self.down_s)
        break_off(self.working, self._last_word)

    def _last_word(self) -> BackendError:
        if self.down_s is None:
            return EngineCrashedError("the engine has ended")
        return TransientBackendError("connection reset", is_unreachable=True, is_engine_death=True)


@dataclass(eq=False)
class Server:
    """One of them."""

    name: str
    is_up: bool = True
    is_kept: bool = False
    """Whether it is kept for a suspect."""
    working: Working = field(default_factory=dict)


class ServersEngine(SimulatedEngine):
    """Serves as many requests as its servers have slots that are up and not kept for a suspect.

    A request for which `kills` is true ends its server with all that it works on; it is back `down_s` later.
    """

    def __init__(
        self,
        *,
        servers: int = 8,
        slots: int = 8,
        kills: Callable[[Request], bool] = lambda _request: False,
        down_s: float = 20.0,
        dice: int = 0,
    ) -> None:
        self.servers = [Server(f"http://gpu-{number}/v1") for number in range(servers)]
        self.slots = slots
        self.kills = kills
        self.down_s = down_s
        self.deaths: list[tuple[str, ...]] = []
        self.trials: list[tuple[float, float]] = []
        """From when to when a suspect was in flight."""
        self.history: list[tuple[float, int, int]] = []
        """Since when how many others were in flight, and how many could be."""
        self.others = 0
        self.tells: list[Callable[[], None]] = []
        super().__init__(dice=dice)

    @property
    def capacity(self) -> int:
        return self.slots * sum(server.is_up and not server.is_kept for server in self.servers)

    @capacity.setter
    def capacity(self, _capacity: int) -> None:
        pass

    @property
    def isolates(self) -> bool:
        return sum(server.is_up for server in self.servers) > 1

    def on_resize(self, tell: Callable[[], None]) -> bool:
        self.tells.append(tell)
        return True

    def destination(self, request: Request) -> Destination | None:
        server = self._free()
        return None if server is None else Destination(server=server.name)

    async def answer(self, request: Request) -> Reply:
        if request.is_suspect:
            return await self._alone(request)
        self._count(1)
        try:
            server = self._free()
            if server is None:
                raise TransientBackendError("none is up", is_unreachable=True)
            return await self._served(server, request)
        finally:
            self._count(-1)

    def die(self, server: Server) -> None:
        """End a server now, with everything that it works on."""
        self.deaths.append(tuple(server.working))
        server.is_up = False
        asyncio.get_running_loop().call_later(self.down_s, self._back, server)
        break_off(server.working, lambda: self._death(server))
        self._tell()

    def used(self) -> Iterator[tuple[float, float]]:
        """During each trial, the slot time that others used and could use."""
        for began_s, ended_s in self.trials:
            busy_s = available_s = 0.0
            for (since_s, others, slots), (until_s, _, _) in zip(self.history, self.history[1:], strict=False):
                passed_s = max(0.0, min(until_s, ended_s) - max(since_s, began_s))
                busy_s, available_s = busy_s + min(others, slots) * passed_s, available_s + slots * passed_s
            yield busy_s, available_s

    async def _alone(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        server = min((one for one in self.servers if one.is_up), key=lambda one: len(one.working), default=None)
        if server is None:
            raise TransientBackendError("none is up", is_unreachable=True)
        server.is_kept = True
        self._tell()
        began_s = loop.time()
        try:
            while server.working:
                await asyncio.wait(server.working.values(), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
            if not server.is_up:  # It died of what it worked on.
                raise TransientBackendError("connection refused", goes_elsewhere=True)
            return await self._served(server, request)
        finally:
            self.trials.append((began_s, loop.time()))
            server.is_kept = False
            self._tell()

    async def _served(self, server: Server, request: Request) -> Reply:
        if not server.is_up:
            raise self._death(server)
        await self.work(request, server.working, partial(self.die, server) if self.kills(request) else None)
        return await super().answer(request)

    def _free(self) -> Server | None:
        able = [server for server in self.servers if server.is_up and not server.is_kept]
        return min(able, key=lambda server: len(server.working), default=None)

    def _death(self, server: Server) -> BackendError:
        is_any_up = any(one.is_up for one in self.servers)
        fault = TransientBackendError(
            "connection reset", is_unreachable=not is_any_up, is_engine_death=True, goes_elsewhere=is_any_up
        )
        fault.destination = Destination(server=server.name)
        return fault

    def _back(self, server: Server) -> None:
        server.is_up = True
        self._tell()

    def _count(self, by: int) -> None:
        self.others += by
        self._note()

    def _note(self) -> None:
        self.history.append((asyncio.get_running_loop().time(), self.others, self.capacity))

    def _tell(self) -> None:
        self._note()
        for tell in self.tells:
            tell()


class LimitedService(SimulatedEngine):
    """Serves `at_once` requests at a time, and begins `per_s` in a second on average, no more than that in a burst.

    What is too much it answers at once with "busy, come again in `pause_s`", and so it does with everything before
    `opens_at_s`, and with a share of the rest, the `whim_rate`. It never takes anything of the conversation that is
    `denied`.
    """

    def __init__(
        self, *, capacity: int, at_once: float = math.inf, per_s: float = math.inf, pause_s: float | None = None
    ) -> None:
        super().__init__(capacity=capacity)
        self.at_once = at_once
        self.per_s = per_s
        self.pause_s = pause_s
        self.denied = ""
        self.opens_at_s = 0.0
        self.whim_rate = 0.0
        self.serving = 0
        self.answered = 0
        self.served_s = 0.0
        self.last_answer_at_s = 0.0
        self._allowance = per_s
        self._allowed_at_s = 0.0

    async def answer(self, request: Request) -> Reply:
        await asyncio.sleep(0.01)
        if self.serving >= self.at_once or request.conversation == self.denied or not self._allows():
            raise TransientBackendError("status 429", retry_after_s=self.pause_s, is_busy=True)
        self.serving += 1
        began_at_s = asyncio.get_running_loop().time()
        try:
            return await super().answer(request)
        finally:
            self.serving -= 1
            self.answered += 1
            self.last_answer_at_s = asyncio.get_running_loop().time()
            self.served_s += self.last_answer_at_s - began_at_s

    def _allows(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self.opens_at_s or self.random.random() < self.whim_rate:
            return False
        if self.per_s == math.inf:
            return True
        self._allowance = min(self.per_s, self._allowance + (now_s - self._allowed_at_s) * self.per_s)
        self._allowed_at_s = now_s
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True
