"""A fleet of real `mac-serve` processes: restarts, and models that take turns on one place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from mac_runner.backends.testing import FleetBackend
from mac_runner.checkpoints import digest_of
from mac_runner.clock import SystemClock
from mac_runner.errors import TransientBackendError
from mac_runner.fleet.testing import LaneState, LocalFleet
from mac_runner.types import PolicySpan, Sampling
from mac_runner.weights import Broadcast, WeightUpdate
from tests.fleet.real_fleet import Heard, fleet_of, lane, names_up, nano_model, plan_of, run, until
from tests.patience import LIMIT_S
from tests.sim.building import request_for
from tests.sim.nano_model import make_nano_model, write_other_weights
from tests.sim.requests import request

pytest.importorskip("torch")

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_nano_model(tmp_path_factory.mktemp("nano") / "tiny")


async def said(fleet: LocalFleet, model: str, name: str) -> str:
    """What a lane replies to a prompt."""
    url = next(address.url for address in fleet.model(model).up if address.name == name)
    body = {
        "model": fleet.plan.models[model].model,
        "messages": [{"role": "user", "content": "the town votes"}],
        "max_tokens": 8,
        "seed": 7,
    }
    async with aiohttp.ClientSession() as session, session.post(f"{url}/chat/completions", json=body) as answer:
        assert answer.status == 200
        reply = await answer.json()
    return str(reply["choices"][0]["message"]["content"])


def test_two_lanes_of_a_model_say_the_same_also_after_an_update_and_after_one_was_killed(
    model: Path, tmp_path: Path
) -> None:
    """A lane that starts later has the weights of the others before it serves.

    Also where a trainer sent them: then a lane has kept them in a file, which gives their digest too.
    """
    other = write_other_weights(model, tmp_path / "other")

    async def update(backend: FleetBackend) -> str | None:
        from safetensors.torch import load_file

        from mac_runner.nano import WeightSender

        with WeightSender("127.0.0.1:0", receivers=2) as trainer:
            source = WeightUpdate(version=4, weights=Broadcast(trainer.address, timeout_s=LIMIT_S))
            sending = asyncio.to_thread(trainer.send, load_file(other / "model.safetensors"))
            return (await asyncio.gather(backend.update_weights(source), sending))[0]

    async def said_by_each(backend: FleetBackend) -> dict[str | None, tuple[str, PolicySpan | None]]:
        found: dict[str | None, tuple[str, PolicySpan | None]] = {}
        while len(found) < 2:
            asked = request(sampling=Sampling(seed=1, max_tokens=6), conversation=f"task-{next(numbers)}")
            with suppress(TransientBackendError):
                reply = await backend.generate(asked)
                assert found.setdefault(reply.timing.lane, (reply.text, reply.policy)) == (reply.text, reply.policy)
        return found

    async def play() -> None:
        definition = nano_model(model)
        async with fleet_of(plan_of({"m": definition}, 2), Heard(), tmp_path) as fleet:
            backend = FleetBackend(request_for(definition, SystemClock(), lanes=fleet.model("m")))
            assert backend.update_obstacle is None
            try:
                await backend.start()
                await until(lambda: len(names_up(fleet, "m")) == 2)
                before = await said_by_each(backend)
                assert await backend.update_weights(WeightUpdate(version=3, weights=other, blocking=False)) is None
                assert await update(backend) == digest_of(other)
                updated = await said_by_each(backend)
                pid = lane(fleet, "m@0").pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                await until(lambda: names_up(fleet, "m") == ["m@1"])
                assert await said_by_each(backend) == updated
            finally:
                await backend.close()
        assert before.keys() == updated.keys() == {"m@0", "m@1"}
        assert {policy for _, policy in before.values()} == {PolicySpan(0, 0)}
        assert {policy for _, policy in updated.values()} == {PolicySpan(4, 4)}
        assert before["m@0"] == before["m@1"] != updated["m@0"] == updated["m@1"]
        assert before["m@0"][0] != updated["m@0"][0]

    numbers = count()
    run(play())


@asynccontextmanager
async def taking_turns(model: Path, heard: Heard, logs: Path, **swap: object) -> AsyncIterator[LocalFleet]:
    """A fleet whose models `a` and `b` share a place, one of them at a time, and have been started."""
    models = {"a": nano_model(model), "b": nano_model(model)}
    plan = plan_of(models, max_agents_per_gpu=1, swap={"residency_s": 0.2, **swap})
    async with fleet_of(plan, heard, logs) as fleet:
        await asyncio.gather(fleet.model("a").start(), fleet.model("b").start())
        yield fleet


@pytest.mark.parametrize("policy", [pytest.param("batch", marks=pytest.mark.nightly), "fifo"])
def test_models_that_share_a_place_take_turns_and_none_loses_its_weights(
    policy: str, model: Path, tmp_path: Path
) -> None:
    heard = Heard()

    async def speak(fleet: LocalFleet, name: str) -> str:
        async with fleet.model(name).turn() as granted:
            assert granted == f"{name}@0"
            assert [other for other in "ab" if fleet.model(other).up] == [name]
            return await said(fleet, name, granted)

    async def play() -> list[str]:
        async with taking_turns(model, heard, tmp_path, policy=policy) as fleet:
            assert fleet.model("a").is_swapped
            pids = [status.pid for status in fleet.status()]
            texts = [await speak(fleet, name) for name in "abba"]
            texts += await asyncio.gather(*(speak(fleet, name) for name in "aabb"))
            assert [status.pid for status in fleet.status()] == pids
            assert {status.state for status in fleet.status()} >= {LaneState.ASLEEP}
            return texts

    texts = run(play())

    assert len(texts) == 8
    assert len(set(texts)) == 1
    assert "SWAP" in heard.names("a@0")
    assert "SWAP" in heard.names("b@0")
    assert "DEAD" not in {*heard.names("a@0"), *heard.names("b@0")}


def test_lane_that_dies_asleep_serves_again_at_its_turn(model: Path, tmp_path: Path) -> None:
    heard = Heard()

    async def play() -> str:
        async with taking_turns(model, heard, tmp_path) as fleet:
            await until(lambda: any(status.state is LaneState.ASLEEP for status in fleet.status()))
            asleep = next(status for status in fleet.status() if status.state is LaneState.ASLEEP)
            assert asleep.pid is not None
            os.kill(asleep.pid, signal.SIGKILL)
            async with fleet.model(asleep.model).turn() as granted:
                assert granted == asleep.name
                assert await said(fleet, asleep.model, granted)
            return asleep.name

    name = run(play())

    assert "DEAD" in heard.names(name)
    assert heard.names(name)[-1] in ("UP", "SWAP")
