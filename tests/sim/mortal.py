"""An engine that can die: with all that it works on, over requests that kill it or on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mac_runner.errors import BackendError, EngineCrashedError, TransientBackendError
from mac_runner.types import Reply, Request
from tests.sim.engine import SimulatedEngine


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
        self.working: dict[str, asyncio.Future[None]] = {}

    async def answer(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        if loop.time() < self.up_at_s:
            raise TransientBackendError("connection refused", is_unreachable=True)
        await self._work(request, loop)
        return await super().answer(request)

    async def _work(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        """The part during which it can die."""
        waiter = self.working[request.request_id] = loop.create_future()
        latency_s = self.random.random() * self.latency_s_max
        timer = loop.call_later(latency_s, self.die) if self.kills(request) else loop.call_later(latency_s, end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            del self.working[request.request_id]

    def die(self) -> None:
        """End now, with everything that it works on."""
        self.deaths.append(frozenset(self.working))
        self.up_at_s = asyncio.get_running_loop().time() + (1e9 if self.down_s is None else self.down_s)
        for waiter in self.working.values():
            if not waiter.done():
                waiter.set_exception(self._last_word())

    def _last_word(self) -> BackendError:
        if self.down_s is None:
            return EngineCrashedError("the engine has ended")
        return TransientBackendError("connection reset", is_unreachable=True, is_engine_death=True)


def end(waiter: asyncio.Future[None]) -> None:
    """The work is done, unless it was over before."""
    if not waiter.done():
        waiter.set_result(None)
