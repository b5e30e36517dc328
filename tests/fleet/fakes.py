"""A fleet without processes, for tests of what others make of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

from mac_runner.backends.fleet.testing import LaneAddress
from mac_runner.errors import EngineDeadError
from mac_runner.fleet.testing import LaneSpec, LaneState, LaneStatus, Place


def spec(model: str, place: int, slots: int = 2, port: int = 9000) -> LaneSpec:
    """A lane on a place without a GPU."""
    return LaneSpec(
        name=f"{model}@{place}",
        model=model,
        checkpoint=model,
        place=Place(number=place),
        memory_share=0.9,
        port=port,
        slots=slots,
    )


def address(name: str) -> LaneAddress:
    """The address of a lane."""
    return LaneAddress(name=name, url=f"http://127.0.0.1:{9000 + int(name[-1])}/v1", gpus=(name[-1],), slots=4)


@dataclass(eq=False)
class FakeLanes:
    """The lanes of one model. A test changes them and calls `tell`."""

    all: tuple[LaneAddress, ...]
    up: tuple[LaneAddress, ...] = ()
    lost: str | None = None
    is_swapped: bool = False
    stall_s: float = 7.5
    starts: int = 0
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    resident: asyncio.Event = field(default_factory=asyncio.Event)
    turns: list[str] = field(default_factory=list)
    reports: list[tuple[str, str, str]] = field(default_factory=list)
    systems: list[str] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, tell: Callable[[], None]) -> None:
        self.listeners.append(tell)

    def only(self, *names: str) -> None:
        """Have these lanes up and no others."""
        self.up = tuple(lane for lane in self.all if lane.name in names)
        self.tell()

    def tell(self) -> None:
        for each in self.listeners:
            each()

    async def start(self) -> None:
        self.starts += 1
        await self.may_start.wait()
        if self.lost is not None:
            raise EngineDeadError(self.lost)
        self.up = () if self.is_swapped else self.all
        self.tell()

    def turn(self, agent: str) -> AbstractAsyncContextManager[str | None]:
        return self._turn(agent)

    @asynccontextmanager
    async def _turn(self, agent: str) -> AsyncIterator[str | None]:
        await self.resident.wait()
        self.turns.append(agent)
        try:
            yield self.all[0].name
        finally:
            self.turns.remove(agent)

    def see(self, system: str) -> None:
        self.systems.append(system)

    def report_stuck(self, lane: str, why: str) -> None:
        self.reports.append(("stuck", lane, why))

    def report_broken(self, lane: str, why: str) -> None:
        self.reports.append(("broken", lane, why))


class FakeFleet:
    """Two lanes of the model `a` and one of `b`."""

    def __init__(self) -> None:
        self.models = {"a": FakeLanes((address("a@0"), address("a@1"))), "b": FakeLanes((address("b@2"),))}
        self.lanes = {
            lane.name: LaneStatus(name=lane.name, model=name, place="place 0", state=LaneState.UP, slots=4)
            for name, model in self.models.items()
            for lane in model.all
        }
        self.is_idle = asyncio.Event()

    def model(self, name: str) -> FakeLanes:
        return self.models[name]

    def status(self) -> tuple[LaneStatus, ...]:
        return tuple(self.lanes.values())

    async def drain(self, lane: str) -> None:
        self._set(lane, LaneState.DRAINING)
        await self.is_idle.wait()
        self._set(lane, LaneState.DRAINED)

    def ask_up(self, lane: str) -> None:
        self._set(lane, LaneState.STARTING)

    def _set(self, lane: str, state: LaneState) -> None:
        self.lanes[lane] = replace(self.lanes[lane], state=state)
        lanes = self.models[self.lanes[lane].model]
        lanes.up = tuple(each for each in lanes.all if self.lanes[each.name].state is LaneState.UP)
        lanes.tell()
