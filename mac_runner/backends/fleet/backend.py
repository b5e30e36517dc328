"""A model behind the lanes of a fleet.

The data plane is that of every model behind servers: homes of conversations, canaries, and what follows a fault. What
differs is who knows which servers are up. The fleet does, because it owns their processes, and says so in the same
tick. So the capacity is that of the lanes that are up, and a request that departed when the last of them went waits
here for the next one.

Where models take turns on their places, requests depart while the model sleeps, as `lookahead`: a request that waits
here is how the fleet sees that the model is wanted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack

from mac_runner.backends.base import Backend, uncharged
from mac_runner.backends.dialects.openai import OpenaiDialect
from mac_runner.backends.fleet.lanes import ModelLanes
from mac_runner.backends.fleet.settings import FleetModelConfig, as_openai
from mac_runner.backends.http.data_plane import DataPlane
from mac_runner.backends.http.endpoints import Endpoint
from mac_runner.backends.http.weights import ServerWeights, VllmWeights
from mac_runner.clock import Clock
from mac_runner.errors import EngineDeadError, TransientBackendError
from mac_runner.secrecy import secrets_in
from mac_runner.types import Destination, Reply, Request
from mac_runner.weights import WeightUpdate


class FleetBackend(Backend):
    """One entry of `model_definitions` with the backend `fleet`."""

    def __init__(
        self,
        name: str,
        config: FleetModelConfig,
        *,
        lanes: ModelLanes | None,
        has_tokens: bool,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`lanes` is None for a backend that is only checked; it cannot start."""
        self._known_lanes = lanes
        # A lane has most of this process's environment.
        secrets = secrets_in(os.environ)
        openai = as_openai(config)
        self._plane = DataPlane(
            name,
            OpenaiDialect(openai, has_tokens=has_tokens),
            timeout_s=config.timeout_s,
            stall_s=openai.stall_s if lanes is None else lanes.stall_s,
            key=None,
            secrets=secrets,
            clock=clock,
            say=say,
            on_stuck=self._stuck,
            on_broken=self._broken,
            on_change=self._resized,
        )
        self._config = config
        if config.engine == "nano" and lanes is not None:
            self._plane.weights = ServerWeights(self._admin_key, secrets=secrets, keeps_broadcasts=True)
        elif config.weight_updates:
            self._plane.weights = VllmWeights(lambda _url: None, secrets=secrets)
        self._may_send = asyncio.Event()
        self._tells: list[Callable[[], None]] = []
        self._size: tuple[int, int, bool] | None = None
        self._is_following = self._is_closed = False

    @property
    def capacity(self) -> int:
        """The slots of the lanes that take requests. Of a model that is lost it is one: its request says why."""
        return self._plane.endpoints.slots if self._lanes.lost is None else 1

    @property
    def lookahead(self) -> int:
        """Requests that wait here, for a slot on the lane that their conversation has its home at.

        Where models take turns, the slots of the lanes that are not up: a request shows that the model is wanted.
        """
        if self._lanes.lost is not None:
            return 0
        if not self._lanes.is_swapped:
            return self._plane.endpoints.lookahead
        return max(0, sum(lane.slots for lane in self._lanes.all) - self.capacity)

    @property
    def isolates(self) -> bool:
        """Whether a request that engines died on is served alone on one lane, while the others go on.

        Where models take turns, the turn names the lane, and others may be on it.
        """
        return self._plane.isolates and not self._lanes.is_swapped

    def on_resize(self, tell: Callable[[], None]) -> bool:
        """Call `tell` whenever `capacity`, `lookahead` or `isolates` has changed."""
        self._tells.append(tell)
        return True

    def destination(self, request: Request) -> Destination | None:
        """The lane that `request` would go to now; None while none is up."""
        return self._plane.destination(request)

    @property
    def update_obstacle(self) -> str | None:
        """What prevents updates of its weights."""
        if self._config.engine != "nano" and not self._config.weight_updates:
            is_vllm = self._config.dialect == "vllm"
            return (
                "its engines take new weights only with fleet_config.weight_updates: true"
                if is_vllm
                else "of the engines of a fleet only nano and vllm take new weights"
            )
        if self._known_lanes is not None and not all(lane.admin_key for lane in self._known_lanes.all):
            return "a fleet that other runs may use keeps its weights; leave --fleet out"
        if self._known_lanes is not None and self._known_lanes.is_swapped:
            return "models that take turns keep their weights; give each its own place"
        return None if self._plane.weights is None else self._plane.weights.obstacle

    async def update_weights(self, update: WeightUpdate) -> str | None:
        """Have all lanes take weights. One that starts later, or fails while others took them, gets them first."""
        return await self._plane.update_weights(update)

    def _admin_key(self, url: str) -> str | None:
        return next((lane.admin_key for lane in self._lanes.all if lane.url == url), None)

    def settle(self, conversation: str, lane: str) -> None:
        """Make a lane that is up the home of a conversation, in place of the one that it would get."""
        for one in self._lanes.up:
            if one.name == lane:
                self._plane.endpoints.settle(conversation, one.url)

    async def start(self) -> None:
        """Have the fleet start the lanes; over when one is up. Raises EngineDeadError or ConfigError."""
        lanes = self._lanes
        await self._plane.open()
        lanes.on_change(self._follow)
        await lanes.start()
        self._follow()

    async def generate(self, request: Request) -> Reply:
        """Send the request to one lane. Raises a BackendError."""
        lanes = self._lanes
        system = next((one.content for one in request.prompt.messages[:1] if one.role == "system"), None)
        if system is not None:
            lanes.see(system)
        async with AsyncExitStack() as stack:
            with uncharged():
                lane = await stack.enter_async_context(lanes.turn(f"{request.conversation}/{request.turn.agent}"))
                await self._may_send.wait()
            if lanes.lost is not None:
                raise EngineDeadError(lanes.lost)
            try:
                return await self._plane.generate(request, lane=lane)
            except TransientBackendError as fault:
                if not lanes.up and lanes.lost is None:
                    # The fleet is at work on it, and the next sending waits for a lane: nothing is out of reach.
                    fault.is_unreachable = False
                raise

    async def close(self) -> None:
        """Close the connections. The lanes are the fleet's, and stay up."""
        self._is_closed = True
        await self._plane.close()

    def _follow(self) -> None:
        """Take over which lanes are up."""
        if self._is_closed:
            return
        self._is_following = True  # Several lanes at once are one change of size.
        self._take_over()
        self._is_following = False
        self._resized()

    def _take_over(self) -> None:
        plane, lanes = self._plane, self._lanes
        up, known = {lane.url: lane for lane in lanes.up}, {lane.url for lane in lanes.all}
        for endpoint in plane.endpoints.all:
            if endpoint.url not in known:
                plane.remove(endpoint.url)
            elif endpoint.url not in up and (not endpoint.is_held or plane.is_brought(endpoint.url)):
                plane.report_down(endpoint.url, "it is not up")
        for url, lane in up.items():
            plane.add(url, slots=lane.slots, lane=lane.name, gpu=lane.gpu)
        if up or lanes.lost is not None:
            self._may_send.set()
        else:
            self._may_send.clear()

    def _resized(self) -> None:
        if self._is_closed or self._is_following or self._known_lanes is None:
            return
        size = self.capacity, self.lookahead, self.isolates
        if size != self._size:
            self._size = size
            for tell in self._tells:
                tell()

    def _stuck(self, endpoint: Endpoint, why: str) -> None:
        self._lanes.report_stuck(endpoint.label, why)

    def _broken(self, endpoint: Endpoint, why: str) -> None:
        self._lanes.report_broken(endpoint.label, why)

    @property
    def _lanes(self) -> ModelLanes:
        if self._known_lanes is None:
            raise EngineDeadError("it is on a fleet, and no fleet runs here")
        return self._known_lanes
