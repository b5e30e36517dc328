"""An engine of several servers on simulated time: they die and come back, and one of them is kept for a suspect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mac_runner.errors import BackendError, TransientBackendError
from mac_runner.types import Destination, Reply, Request
from tests.sim.engine import SimulatedEngine
from tests.sim.mortal import end


@dataclass(eq=False)
class Server:
    """One of them."""

    name: str
    is_up: bool = True
    is_kept: bool = False
    """Whether it is kept for a suspect."""
    working: dict[str, asyncio.Future[None]] = field(default_factory=dict)


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

    def on_resize(self, tell: Callable[[], None]) -> None:
        self.tells.append(tell)

    def destination(self, _request: Request) -> Destination | None:
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
        for waiter in server.working.values():
            if not waiter.done():
                waiter.set_exception(self._death(server))
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
        loop = asyncio.get_running_loop()
        waiter = server.working[request.request_id] = loop.create_future()
        latency_s = self.random.random() * self.latency_s_max
        is_deadly = self.kills(request)
        timer = loop.call_later(latency_s, self.die, server) if is_deadly else loop.call_later(latency_s, end, waiter)
        try:
            if not server.is_up:
                raise self._death(server)
            await waiter
        finally:
            timer.cancel()
            del server.working[request.request_id]
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
