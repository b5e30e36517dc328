"""A model behind lanes that come and go: its size follows them, and its requests find one that is up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.testing import FleetBackend
from mac_runner.errors import EngineDeadError, TransientBackendError
from mac_runner.planning.testing import SimulatedClock
from mac_runner.types import Destination, Message, Prompt
from tests.backends.asking import started
from tests.sim.behaviour import Behaviour, Hang, Received, Reset, Say, echo
from tests.sim.building import request_for
from tests.sim.fake_fleet import FakeLanes, lane_at
from tests.sim.held_time import held
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

STUB = FleetModelConfig(model="stub", engine="vllm", timeout_s=10.0)


class Scene:
    """A started backend, its lanes and their servers."""

    def __init__(self, backend: FleetBackend, lanes: FakeLanes, servers: tuple[OpenaiServer, ...]) -> None:
        self.backend, self.lanes, self.servers = backend, lanes, servers
        self.sizes: list[tuple[int, int, bool]] = []
        assert backend.on_resize(self._note)

    def _note(self) -> None:
        self.sizes.append((self.backend.capacity, self.backend.lookahead, self.backend.isolates))


@asynccontextmanager
async def playing(
    count: int = 1, *, is_swapped: bool = False, script: Callable[[Received], Behaviour] = echo
) -> AsyncIterator[Scene]:
    """A scene of so many lanes, each with a server of this script."""
    async with AsyncExitStack() as stack:
        servers = tuple(OpenaiServer(script=script) for _ in range(count))
        for server in servers:
            await stack.enter_async_context(server)
        lanes = FakeLanes(
            all=tuple(lane_at(one.url, f"m@{number}", gpus=("3",)) for number, one in enumerate(servers)),
            is_swapped=is_swapped,
        )
        backend = FleetBackend(request_for(STUB, SimulatedClock(), lanes=lanes))
        scene = Scene(backend, lanes, servers)
        await stack.enter_async_context(started(backend))
        yield scene


@held
async def test_size_follows_the_lanes_that_are_up_and_every_change_of_it_is_said_once() -> None:
    async with playing(3) as scene:
        scene.sizes.clear()
        for up in (("m@0",), ("m@0",), (), ("m@1",), ("m@0", "m@1", "m@2")):
            scene.lanes.change(*up)
            assert scene.backend.capacity == 4 * len(up)
            assert scene.backend.isolates == (len(up) > 1)

        assert scene.sizes == [(4, 0, False), (0, 0, False), (4, 0, False), (12, 12, True)]


@held
async def test_reply_names_the_lane_and_its_gpu_as_its_destination_did() -> None:
    async with playing() as scene:
        asked = request()
        there = scene.backend.destination(asked)
        reply = await scene.backend.generate(asked)

        assert there == Destination(server=scene.servers[0].url, lane="m@0", gpu="3")
        assert (reply.timing.server, reply.timing.lane, reply.timing.gpu) == (there.server, "m@0", "3")


@held
async def test_request_that_departed_as_the_last_lane_went_waits_for_the_next_one() -> None:
    async with playing(2) as scene:
        scene.lanes.change()
        asked = asyncio.create_task(scene.backend.generate(request()))
        await asyncio.sleep(0)
        assert scene.backend.capacity == 0
        assert not asked.done()
        scene.lanes.change("m@1")

        assert (await asked).timing.lane == "m@1"
        assert scene.servers[0].requests == 0


@held
async def test_request_of_a_model_that_is_lost_ends_the_run_with_the_reason() -> None:
    async with playing() as scene:
        scene.lanes.change()
        waiting = asyncio.create_task(scene.backend.generate(request()))
        await asyncio.sleep(0)
        scene.lanes.lose("m@0 is retired")

        for asked in (waiting, scene.backend.generate(request())):
            with pytest.raises(EngineDeadError, match="m@0 is retired"):
                await asked
        assert (scene.backend.capacity, scene.backend.lookahead) == (1, 0)


@held
async def test_request_on_a_lane_that_dies_goes_elsewhere_at_once_and_its_conversation_stays_there() -> None:
    broken = [False]

    def script(_received: Received) -> Behaviour:
        return Reset() if broken[0] else Say()

    async with playing(2, script=script) as scene:
        first = await scene.backend.generate(request(conversation="c"))
        home = first.timing.lane
        (other,) = {"m@0", "m@1"} - {home}
        broken[0] = True
        with pytest.raises(TransientBackendError) as fault:
            await scene.backend.generate(request(conversation="c"))
        broken[0] = False
        scene.lanes.change(other)

        assert fault.value.goes_elsewhere
        assert fault.value.destination is not None
        assert fault.value.destination.lane == home
        scene.lanes.change("m@0", "m@1")
        assert (await scene.backend.generate(request(conversation="c"))).timing.lane == other


@held
async def test_fault_of_the_only_lane_that_the_fleet_restarts_is_none_of_a_lost_engine() -> None:
    is_asked = asyncio.Event()

    def hang(_received: Received) -> Behaviour:
        is_asked.set()
        return Hang()

    async with playing(script=hang) as scene:
        asked = asyncio.create_task(scene.backend.generate(request()))
        await is_asked.wait()
        scene.lanes.change()
        await scene.servers[0].__aexit__(None, None, None)

        with pytest.raises(TransientBackendError) as fault:
            await asked
        assert not fault.value.is_unreachable
        assert fault.value.is_engine_death


@held
async def test_model_that_takes_turns_waits_for_its_place_whatever_its_home() -> None:
    async with playing(2, is_swapped=True) as scene:
        assert (scene.backend.capacity, scene.backend.lookahead) == (0, 8)
        asked = asyncio.create_task(scene.backend.generate(request(conversation="c", agent="ann")))
        await asyncio.sleep(0)
        assert scene.lanes.asked == 1
        scene.lanes.change("m@1")
        assert (scene.backend.capacity, scene.backend.lookahead) == (4, 4)
        scene.lanes.is_resident.set()
        assert (await asked).timing.lane == "m@1"

        scene.lanes.change("m@0", "m@1")
        assert (await scene.backend.generate(request(conversation="c"))).timing.lane == "m@0"


@held
async def test_fleet_sees_what_prompts_begin_with() -> None:
    async with playing() as scene:
        system = Prompt(messages=(Message(role="system", content="rules"), Message(role="user", content="go")))
        await scene.backend.generate(request(prompt=system))
        await scene.backend.generate(request())

        assert scene.lanes.seen == ["rules"]


@held
async def test_changes_after_the_end_change_nothing() -> None:
    async with playing() as scene:
        await scene.backend.close()
        scene.sizes.clear()
        scene.lanes.change()

        assert scene.sizes == []
