"""A model behind the lanes of a fleet.

The data plane is that of every model behind servers. But the fleet knows which of them are up, because it owns their
processes, and says so in the same tick. So the capacity is that of the lanes that are up, and a request that departed
when the last of them went waits here for the next one.

Where models take turns on their places, requests depart while the model sleeps, as `lookahead`: a request that waits
here is how the fleet sees that the model is wanted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack

from mac_runner.backends.base import BackendRequest, uncharged
from mac_runner.backends.dialects.openai import OpenaiDialect
from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes, as_openai
from mac_runner.backends.http.data_plane import DataPlane
from mac_runner.backends.http.endpoints import Endpoint
from mac_runner.backends.http.weights import ServerWeights, VllmWeights
from mac_runner.errors import EngineDeadError, TransientBackendError
from mac_runner.secrecy import secrets_in
from mac_runner.types import Reply, Request


class FleetBackend(DataPlane):
    """One entry of `model_definitions` with the backend `fleet`."""

    def __init__(self, request: BackendRequest[FleetModelConfig]) -> None:
        """Without lanes it is only checked, and cannot start."""
        config, lanes = request.settings, request.lanes
        self._known_lanes = lanes
        # A lane has most of this process's environment.
        secrets = secrets_in(os.environ)
        openai = as_openai(config)
        if lanes is not None:
            openai = openai.model_copy(update={"stall_s": lanes.stall_s})
        weights: ServerWeights | None = None
        if config.engine == "nano" and lanes is not None:
            weights = ServerWeights(self._admin_key, secrets=secrets, keeps_broadcasts=True)
        elif config.weight_updates:
            weights = VllmWeights(lambda _url: None, secrets=secrets)
        super().__init__(
            request.name,
            OpenaiDialect(openai, has_tokens=request.record_tokens),
            key=None,
            secrets=secrets,
            weights=weights,
            clock=request.clock,
            say=request.say,
        )
        self._config = config
        self._may_send = asyncio.Event()
        self._tells: list[Callable[[], None]] = []
        self._size: tuple[int, int, bool] | None = None
        self._is_following = self._is_closed = False

    @property
    def capacity(self) -> int:
        """The slots of the lanes that take requests. Of a model that is lost it is one: its request says why."""
        return super().capacity if self._lanes.lost is None else 1

    @property
    def lookahead(self) -> int:
        """Requests that wait here, for a slot on the lane that their conversation has its home at.

        Where models take turns, the slots of the lanes that are not up: a request shows that the model is wanted.
        """
        if self._lanes.lost is not None:
            return 0
        if not self._lanes.is_swapped:
            return super().lookahead
        return max(0, sum(lane.slots for lane in self._lanes.all) - self.capacity)

    @property
    def isolates(self) -> bool:
        """Whether a request that engines died on is served alone on one lane, while the others go on.

        Where models take turns, the turn names the lane, and others may be on it.
        """
        return super().isolates and not self._lanes.is_swapped

    def on_resize(self, tell: Callable[[], None]) -> bool:
        self._tells.append(tell)
        return True

    @property
    def update_obstacle(self) -> str | None:
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
        return None if self.weights is None else self.weights.obstacle

    def _admin_key(self, url: str) -> str | None:
        return next((lane.admin_key for lane in self._lanes.all if lane.url == url), None)

    def settle(self, conversation: str, lane: str) -> None:
        for one in self._lanes.up:
            if one.name == lane:
                self.endpoints.settle(conversation, one.url)

    async def start(self) -> None:
        lanes = self._lanes
        await self.open()
        lanes.on_change(self._follow)
        await lanes.start()
        self._follow()

    async def generate(self, request: Request) -> Reply:
        lanes = self._lanes
        system = next((one.content for one in request.prompt.messages[:1] if one.role == "system"), None)
        if system is not None:
            lanes.see(system)
        async with AsyncExitStack() as stack:
            with uncharged():
                lane = await stack.enter_async_context(lanes.turn())
                await self._may_send.wait()
            if lanes.lost is not None:
                raise EngineDeadError(lanes.lost)
            try:
                return await self.send(request, lane)
            except TransientBackendError as fault:
                if not lanes.up and lanes.lost is None:
                    # The fleet is at work on it, and the next sending waits for a lane: nothing is out of reach.
                    fault.is_unreachable = False
                raise

    async def close(self) -> None:
        """Close the connections. The lanes are the fleet's, and stay up."""
        self._is_closed = True
        await super().close()

    def _follow(self) -> None:
        if self._is_closed:
            return
        self._is_following = True  # Several lanes at once are one change of size.
        lanes = self._lanes
        up, known = {lane.url: lane for lane in lanes.up}, {lane.url for lane in lanes.all}
        for endpoint in self.endpoints.all:
            if endpoint.url not in known:
                self.remove(endpoint.url)
            elif endpoint.url not in up and (not endpoint.is_held or self.is_brought(endpoint.url)):
                self.report_down(endpoint.url, "it is not up")
        for url, lane in up.items():
            self.add(url, slots=lane.slots, lane=lane.name, gpu=lane.gpu)
        if up or lanes.lost is not None:
            self._may_send.set()
        else:
            self._may_send.clear()
        self._is_following = False
        self.resized()

    def resized(self) -> None:
        if self._is_closed or self._is_following or self._known_lanes is None:
            return
        size = self.capacity, self.lookahead, self.isolates
        if size != self._size:
            self._size = size
            for tell in self._tells:
                tell()

    def stuck(self, endpoint: Endpoint, why: str) -> None:
        self._lanes.report_stuck(endpoint.label, why)

    @property
    def _lanes(self) -> ModelLanes:
        if self._known_lanes is None:
            raise EngineDeadError("it is on a fleet, and no fleet runs here")
        return self._known_lanes
