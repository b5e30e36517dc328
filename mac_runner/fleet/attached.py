"""A fleet that another process holds, as a run sees it.

The state comes by long polls, so a change of a lane is known at once. When the holder ends, its connection does too,
and `lost` says so, as when something else answers at its address. A holder that lives but does not answer changes
nothing: its lanes may well serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from mac_runner.backends.fleet.settings import FleetModelConfig, LaneAddress
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.fleet.client import FleetClient, FleetGoneError, FleetState, ModelState
from mac_runner.fleet.held import read_held
from mac_runner.fleet.lane_engine import CommonPrefix
from mac_runner.fleet.model import LaneStatus, OnEvent, no_events
from mac_runner.types import JsonObject

_POLL_S: Final = 2.0
"""How old the figures of lanes may be; what concerns requests comes at once."""
_RETRY_S: Final = 0.2
_PREFIX_CHARS_MAX: Final = 100_000


class AttachedFleet:
    """The lanes of the fleet that `path` describes, for the models that a run wants, inside its `async with`.

    Raises ConfigError at once for a file that is not a fleet's, or a model that the fleet does not serve as wanted.
    """

    def __init__(
        self,
        path: Path,
        wanted: Mapping[str, FleetModelConfig],
        *,
        clock: Clock,
        on_event: OnEvent = no_events,
    ) -> None:
        self._held = held = read_held(path)
        self._client = FleetClient(held, path)
        self._clock = clock
        self._on_event = on_event
        self._models = {
            name: AttachedLanes(held.serving(name, config), self._client) for name, config in wanted.items()
        }
        self._served = {lanes.served_as for lanes in self._models.values()}
        self._status: tuple[LaneStatus, ...] = ()
        self._version = 0
        self._polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AttachedFleet:
        await self._client.__aenter__()
        try:
            self._adopt(await self._client.state())
            self._note_up()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        self._polling = asyncio.create_task(self._poll(), name="fleet poll")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        for lanes in self._models.values():
            lanes.cancel_posts()
        await self._client.__aexit__(kind, fault, trace)

    def model(self, name: str) -> AttachedLanes:
        """The lanes of one entry of `model_definitions`."""
        return self._models[name]

    def status(self) -> tuple[LaneStatus, ...]:
        """All lanes of the fleet, as of the last poll."""
        return self._status

    async def _poll(self) -> None:
        misses = 0
        while True:
            try:
                state = await self._client.state(after=self._version, wait_s=_POLL_S)
            except (ConfigError, EngineDeadError) as fault:
                # A kept connection may have been closed between two polls: the next one is new. What answers in
                # another way than a holder does is somebody else.
                misses += 1
                if misses > 1:
                    gone = fault if isinstance(fault, FleetGoneError) else self._client.gone(fault)
                    for lanes in self._models.values():
                        lanes.lose(gone.words)
                    return
                await self._clock.sleep(_RETRY_S)
                continue
            misses = 0
            for name, fields in state.events:
                if fields.get("model") in self._served:
                    self._on_event(name, fields)
            self._adopt(state)

    def _note_up(self) -> None:
        """Events for the lanes that are up already."""
        places = {lane.name: lane.place for lane in self._status}
        for lanes in {lanes.served_as: lanes for lanes in self._models.values()}.values():
            for lane in lanes.up:
                fields: JsonObject = {"lane": lane.name, "model": lanes.served_as, "place": places.get(lane.name)}
                self._on_event("EVENT_LANE_UP", {**fields, "gpu": lane.gpu})

    def _adopt(self, state: FleetState) -> None:
        self._version = state.version
        self._status = state.lanes
        for lanes in self._models.values():
            lanes.adopt(state.models[lanes.served_as])


class AttachedLanes:
    """The lanes of one model; `served_as` is its name in the fleet."""

    def __init__(self, served_as: str, client: FleetClient) -> None:
        self.served_as = served_as
        self._client = client
        self._state = ModelState(up=(), all=(), lost=None, is_swapped=False, stall_s=1.0)
        self._listeners: list[Callable[[], None]] = []
        self._prefix = CommonPrefix()
        self._posts: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> tuple[LaneAddress, ...]:
        """The lanes that take requests now."""
        return tuple(lane for lane in self._state.all if lane.name in self._state.up)

    @property
    def all(self) -> tuple[LaneAddress, ...]:
        """All lanes that are not retired."""
        return self._state.all

    @property
    def lost(self) -> str | None:
        """Why no lane of this model will serve again."""
        return self._state.lost

    @property
    def is_swapped(self) -> bool:
        """Whether requests wait for their turn."""
        return self._state.is_swapped

    @property
    def stall_s(self) -> float:
        """How long a lane with requests in flight may give no answer before it is looked at."""
        return self._state.stall_s

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `up` or `lost` changes."""
        self._listeners.append(tell)

    async def start(self) -> None:
        """Wait until a lane is up, or, of a model that takes turns, until one has been."""
        await self._client.post("/start", model=self.served_as)
        changed = asyncio.Event()
        self._listeners.append(changed.set)
        while not (self.up or self.is_swapped) and self.lost is None:
            await changed.wait()
            changed.clear()
        self._listeners.remove(changed.set)
        if self.lost is not None:
            raise EngineDeadError(self.lost)

    def turn(self, agent: str) -> AbstractAsyncContextManager[str | None]:
        """A place for one request, with the lane that it must go to."""
        return self._client.turn(self.served_as, agent) if self._state.is_swapped else nullcontext()

    def see(self, system: str) -> None:
        """Take the system message of a prompt."""
        before = self._prefix.text
        self._prefix.see(system)
        if self._prefix.text and self._prefix.text != before:
            self._post("/see", system=self._prefix.text[:_PREFIX_CHARS_MAX])

    def report_stuck(self, lane: str, why: str) -> None:
        """Say that a lane gives no reply."""
        self._report("stuck", lane, why)

    def report_broken(self, lane: str, why: str) -> None:
        """Say that a connection to a lane broke."""
        self._report("broken", lane, why)

    def adopt(self, state: ModelState) -> None:
        """Take over what the holder says."""
        before, self._state = self._state, state
        if (before.up, before.all, before.lost) != (state.up, state.all, state.lost):
            self._tell()

    def lose(self, why: str) -> None:
        """The holder has ended."""
        self._state = replace(self._state, up=(), all=(), lost=self._state.lost or why)
        self._tell()

    def cancel_posts(self) -> None:
        """Forget words to the holder that have not arrived."""
        for task in self._posts:
            task.cancel()

    def _tell(self) -> None:
        for tell in tuple(self._listeners):
            tell()

    def _report(self, kind: str, lane: str, why: str) -> None:
        self._post("/report", lane=lane, kind=kind, why=why)

    def _post(self, path: str, **fields: str) -> None:
        task = asyncio.create_task(self._send(path, fields))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _send(self, path: str, fields: dict[str, str]) -> None:
        # A holder that has ended is noticed by the poll; a lane that has retired meanwhile needs no report.
        with suppress(EngineDeadError, ConfigError):
            await self._client.post(path, model=self.served_as, **fields)
