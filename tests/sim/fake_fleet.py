"""A fleet without a supervisor: its lanes are servers that a test has, and are up when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes
from mac_runner.backends.testing import LaneAddress
from mac_runner.clock import Clock
from mac_runner.errors import EngineDeadError
from mac_runner.fleet.testing import FleetPlan, LaneSpec, LaneState, LaneStatus, OnEvent, Place
from mac_runner.runs.fleet import PlannedFleet
from mac_runner.spec import FleetConfig


def lane_at(url: str, name: str = "m@0", *, slots: int = 4, gpus: tuple[str, ...] = ()) -> LaneAddress:
    """A lane whose server a test has."""
    return LaneAddress(name=name, url=url, gpus=gpus, slots=slots)


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


@dataclass(eq=False)
class FakeLanes(ModelLanes):
    """The lanes of one model. All are up from the start on, until a test says otherwise."""

    all: tuple[LaneAddress, ...]
    up: tuple[LaneAddress, ...] = ()
    lost: str | None = None
    is_swapped: bool = False
    stall_s: float = 30.0
    stuck: list[tuple[str, str]] = field(default_factory=list)
    asked: int = 0
    """How many requests asked for a turn."""
    turns: int = 0
    """How many have one."""
    seen: list[str] = field(default_factory=list)
    starts: int = 0
    may_start: asyncio.Event | None = None
    """What a start waits for."""
    is_resident: asyncio.Event = field(default_factory=asyncio.Event)
    _tells: list[Callable[[], None]] = field(default_factory=list)

    async def start(self) -> None:
        self.starts += 1
        if self.may_start is not None:
            await self.may_start.wait()
        if self.lost is not None:
            raise EngineDeadError(self.lost)
        if not self.is_swapped:
            self.change(*(lane.name for lane in self.all))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[str | None]:
        self.asked += 1
        if self.is_swapped:
            await self.is_resident.wait()
        self.turns += 1
        try:
            yield (self.up or self.all)[0].name if self.is_swapped else None
        finally:
            self.turns -= 1

    def see(self, system: str) -> None:
        self.seen.append(system)

    def report_stuck(self, lane: str, why: str) -> None:
        self.stuck.append((lane, why))

    def change(self, *up: str) -> None:
        """From now on these lanes are up, and no others."""
        self.up = tuple(lane for lane in self.all if lane.name in up)
        self.tell()

    def lose(self, why: str) -> None:
        """None of them will come back."""
        self.up, self.all, self.lost = (), (), why
        self.tell()

    def tell(self) -> None:
        """Something has changed."""
        for tell in self._tells:
            tell()


@dataclass(eq=False)
class FakeFleet:
    """The fleet of a run and its planner: models by name, with what it was asked for and how often it was opened."""

    models: Mapping[str, FakeLanes]
    asked: list[tuple[FleetConfig, Mapping[str, FleetModelConfig]]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    slots: int = 8
    plan: FleetPlan = field(default_factory=lambda: FleetPlan(config=FleetConfig(), models={}, places=(), lanes=()))

    def __call__(
        self, config: FleetConfig, models: Mapping[str, FleetModelConfig], keys: frozenset[str]
    ) -> PlannedFleet:
        self.asked.append((config, models))
        return PlannedFleet(self.slots, self.open)

    @asynccontextmanager
    async def open(self, clock: Clock, say: Callable[[str], None], on_event: OnEvent) -> AsyncIterator[FakeFleet]:
        self.opened += 1
        for name, lanes in self.models.items():
            for lane in lanes.all:
                on_event("EVENT_LANE_UP", {"lane": lane.name, "model": name})
        try:
            yield self
        finally:
            self.closed += 1

    def model(self, name: str) -> FakeLanes:
        return self.models[name]

    def status(self) -> tuple[LaneStatus, ...]:
        return tuple(
            LaneStatus(
                name=lane.name,
                model=name,
                place=f"place {number}",
                state=LaneState.UP if lane in lanes.up else LaneState.RESTING,
                slots=lane.slots,
            )
            for name, lanes in self.models.items()
            for number, lane in enumerate(lanes.all)
        )
