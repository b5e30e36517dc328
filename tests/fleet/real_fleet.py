"""Fleets of real processes for tests: plans without GPUs, and conditions to wait for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.clock import SystemClock
from mac_runner.fleet.testing import FleetPlan, LaneSpec, LaneStatus, LocalFleet, LoopbackPorts, Place
from mac_runner.spec import FleetConfig
from mac_runner.types import JsonObject
from tests import patience
from tests.patience import LIMIT_S

T = TypeVar("T")
P = ParamSpec("P")
STUB = (sys.executable, "-m", "tests.sim.engine_stub", "--port", "{port}", "--slots", "2")


def stub_model(*options: str, command: tuple[str, ...] = STUB) -> FleetModelConfig:
    """A model that the stub of an engine serves."""
    return FleetModelConfig.model_validate({"model": "stub", "engine": "command", "command": [*command, *options]})


def nano_model(directory: Path) -> FleetModelConfig:
    """A model that `mac-serve` serves with little memory."""
    engine_args = {"num_threads": 1, "kv_cache_gib": 0.05}
    return FleetModelConfig.model_validate(
        {"model": str(directory), "engine": "nano", "max_num_seqs": 4, "engine_args": engine_args}
    )


def plan_of(models: Mapping[str, FleetModelConfig], places: int = 1, **config: object) -> FleetPlan:
    """Each model has a lane on each of so many places without a GPU."""
    # An engine that a busy machine lets wait is not stuck.
    settings = FleetConfig.model_validate({"probe": {"stall_s": 86_400}, **config})
    ports = LoopbackPorts()
    numbers = iter(ports.take(len(models) * places))
    where = [Place(number=number) for number in range(places)]
    lanes = tuple(
        LaneSpec(
            name=f"{name}@{place.number}",
            model=name,
            checkpoint=model.model,
            place=place,
            memory_share=0.4,
            port=next(numbers),
            slots=2,
            takes_turns=len(models) > settings.max_agents_per_gpu,
        )
        for place in where
        for name, model in models.items()
    )
    return FleetPlan(config=settings, models=models, places=tuple(where), lanes=lanes, ports=ports)


@dataclass
class Heard:
    """What a fleet said and wrote."""

    lines: list[str] = field(default_factory=list)
    events: list[tuple[str, JsonObject]] = field(default_factory=list)

    def event(self, name: str, fields: JsonObject) -> None:
        self.events.append((name, fields))

    def names(self, lane: str) -> list[str]:
        """The events of a lane, in order."""
        return [name.removeprefix("EVENT_LANE_") for name, fields in self.events if fields["lane"] == lane]


def fleet_of(plan: FleetPlan, heard: Heard, logs: Path) -> LocalFleet:
    return LocalFleet(plan, clock=SystemClock(), say=heard.lines.append, on_event=heard.event, logs=logs)


@asynccontextmanager
async def serving(logs: Path, *options: str, places: int = 1, heard: Heard | None = None) -> AsyncIterator[LocalFleet]:
    """A fleet whose model `m`, a stub with these options, is up on so many places."""
    plan = plan_of({"m": stub_model(*options)}, places)
    async with fleet_of(plan, heard or Heard(), logs) as fleet:
        await fleet.model("m").start()
        await until(lambda: len(names_up(fleet, "m")) == places)
        yield fleet


def lane(fleet: LocalFleet, name: str) -> LaneStatus:
    return next(status for status in fleet.status() if status.name == name)


def pid_of(fleet: LocalFleet, name: str) -> int:
    """The process of a lane that is up."""
    pid = lane(fleet, name).pid
    assert pid is not None
    return pid


def names_up(fleet: LocalFleet, model: str) -> list[str]:
    return [address.name for address in fleet.model(model).up]


def run(play: Coroutine[object, object, T]) -> T:
    """Run a test's part."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await play

    return asyncio.run(limited())


def awaited(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def runs(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return runs


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition of lanes."""
    await patience.until(is_so, "lanes")
