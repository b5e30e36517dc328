"""The lanes of one model of a local fleet, as its backend sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mac_runner.backends.fleet.lanes import LaneAddress
from mac_runner.errors import EngineDeadError
from mac_runner.fleet.model import LaneSpec, LaneState
from mac_runner.fleet.warmup import CommonPrefix

if TYPE_CHECKING:
    from mac_runner.fleet.supervisor import LocalFleet


class LocalModelLanes:
    """Implements `backends.fleet.lanes.ModelLanes`."""

    def __init__(self, name: str, lanes: Sequence[LaneSpec], fleet: LocalFleet) -> None:
        self._name = name
        self._fleet = fleet
        self._addresses = {lane.name: _address(lane, fleet.admin_key) for lane in lanes}
        self._tells: list[Callable[[], None]] = []
        self._prefix = CommonPrefix()

    @property
    def common_prefix(self) -> str:
        """What prompts begin with, as far as it is known."""
        return self._prefix.text or ""

    @property
    def up(self) -> tuple[LaneAddress, ...]:
        """The engines that take requests now."""
        return tuple(self._addresses[lane.name] for lane in self._fleet.control.up(self._name))

    @property
    def all(self) -> tuple[LaneAddress, ...]:
        """All engines that are not retired."""
        control = self._fleet.control
        return tuple(
            address for name, address in self._addresses.items() if control.lane(name).state is not LaneState.RETIRED
        )

    @property
    def lost(self) -> str | None:
        """Why no engine of this model will serve again."""
        return self._fleet.control.lost(self._name)

    @property
    def is_swapped(self) -> bool:
        """Whether requests wait for their turn."""
        return self._fleet.control.is_swapped(self._name)

    @property
    def stall_s(self) -> float:
        """How long an engine with requests in flight may give no answer before it is looked at."""
        return self._fleet.plan.config.probe.stall_s

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `up` or `lost` changes."""
        self._tells.append(tell)

    async def start(self) -> None:
        """Start the engines, if that has not begun; returns when one is up."""
        self._fleet.begin()
        control = self._fleet.control
        await self._fleet.until(lambda: control.has_served(self._name) or self.lost is not None)
        if not control.has_served(self._name):
            raise EngineDeadError(f"no engine of this model could be started: {self.lost}")

    @asynccontextmanager
    async def turn(self, agent: str) -> AsyncIterator[str | None]:
        """A place for one request."""
        if not self.is_swapped:
            yield None
            return
        async with self._fleet.turn(agent, self._name) as lane:
            yield lane

    def see(self, system: str) -> None:
        """Take the system message of a prompt."""
        self._prefix.see(system)

    def report_stuck(self, lane: str, why: str) -> None:
        """End an engine that gives no reply, and start it again."""
        self._fleet.report_stuck(lane, why)

    def report_broken(self, lane: str, why: str) -> None:
        """A connection broke. The end of the process is seen by itself, and nothing else counts."""

    def changed(self) -> None:
        """`up` or `lost` changed."""
        for tell in self._tells:
            tell()


def _address(lane: LaneSpec, admin_key: str) -> LaneAddress:
    return LaneAddress(name=lane.name, url=lane.url, gpus=lane.place.visible, slots=lane.slots, admin_key=admin_key)
