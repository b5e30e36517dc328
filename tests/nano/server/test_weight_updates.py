"""The backend `openai` has servers of nano take new weights, and knows which weights made its replies."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mac_runner import errors
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import HttpBackend, OpenaiDialect, ServerWeights
from mac_runner.clock import SystemClock
from mac_runner.nano import WeightSender
from mac_runner.types import PolicySpan, Reply, Sampling
from mac_runner.weights import Broadcast, Weights, WeightUpdate
from tests.backends.nano.engines import nano, started
from tests.nano.server.stage import Stage
from tests.nano.test_weight_transfer import has_come
from tests.patience import LIMIT_S, until
from tests.sim.held_steps import HeldSteps
from tests.sim.nano_model import write_other_weights
from tests.sim.nano_server import MODEL, Served, served
from tests.sim.requests import request

KEY = "owner-0123456789abcdef"
SHORT = Sampling(seed=1, max_tokens=6)
LONG = Sampling(seed=1, max_tokens=400)
NUMBERS = count()
BIAS = "model.layers.0.self_attn.q_proj.bias"


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(model, directory)
    return write_other_weights(model, directory)


def backend_for(*servers: Served, directory: Path | None = None, key: str | None = KEY) -> HttpBackend:
    section = {"model": MODEL, "base_urls": [f"{server.url}/v1" for server in servers], "server": "vllm"}
    where = {} if directory is None else {"weights_dir": str(directory)}
    config = OpenaiConfig.model_validate(section | where)
    weights = (
        None if key is None else ServerWeights(lambda _url: key, directory, keeps_broadcasts=directory is not None)
    )
    dialect = OpenaiDialect(config, has_tokens=True)
    return HttpBackend("m", dialect, key=None, weights=weights, clock=SystemClock(), say=lambda _line: None)


@asynccontextmanager
async def at(model: Path, number: int = 1, directory: Path | None = None) -> AsyncIterator[tuple[HttpBackend, Served]]:
    """A backend before so many servers, and the first of them."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(served(model, admin_key=KEY)) for _ in range(number)]
        backend = backend_for(*servers, directory=directory)
        stack.push_async_callback(backend.close)
        await backend.start()
        yield backend, servers[0]


async def said(backend: HttpBackend, conversation: str = "task-000000") -> Reply:
    return await backend.generate(request(sampling=SHORT, conversation=conversation))


async def from_each(backend: HttpBackend) -> dict[str, Reply]:
    """A reply of each server."""
    found: dict[str, Reply] = {}
    while len(found) < len(backend.endpoints.all):
        reply = await said(backend, f"task-{next(NUMBERS)}")  # A conversation stays where it began.
        found.setdefault(str(reply.timing.server), reply)
    return found


async def loaded(directory: Path) -> Reply:
    """What an engine that loaded these weights says."""
    async with started(nano(directory, traces=True)) as backend:
        return await backend.generate(request(sampling=SHORT))


async def test_all_servers_say_what_an_engine_that_loaded_the_weights_says(
    model: Path, other: Path, tmp_path: Path
) -> None:
    expected = await loaded(other)
    async with at(model, 2, tmp_path) as (backend, _):
        assert backend.update_obstacle is None
        assert {reply.policy for reply in (await from_each(backend)).values()} == {PolicySpan(0, 0)}
        kinds: list[Weights] = [load_file(other / "model.safetensors"), other, other / "model.safetensors"]
        for version, weights in enumerate(kinds, start=2):
            await backend.update_weights(WeightUpdate(version=version, weights=weights, blocking=version % 2 == 0))
            replies = await from_each(backend)
            for reply in replies.values():
                assert (reply.text, reply.trace) == (expected.text, expected.trace)
                assert reply.policy == PolicySpan(version, version)
            assert len(os.listdir(tmp_path)) == (version == 2)
    assert os.listdir(tmp_path) == []


async def test_reply_under_way_has_both_versions(model: Path, other: Path, steps: HeldSteps) -> None:
    async with at(model) as (backend, server):
        for version, blocking in ((1, True), (2, False)):
            made = (await server.stats()).num_completion_tokens
            steps.hold()
            long = asyncio.create_task(backend.generate(request("go on", sampling=LONG)))
            while (await server.stats()).num_completion_tokens == made:
                assert not long.done()
            await backend.update_weights(WeightUpdate(version=version, weights=other, blocking=blocking))
            steps.go()

            assert (await long).policy == PolicySpan(version - 1, version)


async def test_refused_update_says_why_and_changes_nothing(model: Path, other: Path, tmp_path: Path) -> None:
    good: Mapping[str, object] = load_file(other / "model.safetensors")
    part = {name: tensor for name, tensor in good.items() if name != BIAS}
    bad: list[tuple[Weights, int, type[errors.WeightUpdateError], str]] = [
        (part, 3, errors.WeightMismatchError, f"{BIAS} of shape .64. is missing"),
        ({**good, BIAS: [1.0]}, 3, errors.WeightMismatchError, f"{BIAS} is of type list"),
        (tmp_path / "none", 3, errors.WeightUpdateError, "none is neither"),
        (tmp_path, 3, errors.WeightUpdateError, "holds no model"),
        (tmp_path / "model.bin", 3, errors.WeightUpdateError, "other formats can run code"),
        (good, 2, errors.StaleVersionError, "version 2; give a version above it"),
        (Broadcast("localhost:1", timeout_s=0.1), 3, errors.BroadcastError, "no trainer at localhost:1"),
    ]
    async with at(model, 2) as (backend, _):
        await backend.update_weights(WeightUpdate(version=2, weights=model))
        before = await said(backend)
        for weights, version, kind, text in bad:
            with pytest.raises(errors.WeightUpdateError, match=text) as refused:
                await backend.update_weights(WeightUpdate(version=version, weights=weights))
            assert type(refused.value) is kind, text
            assert KEY not in str(refused.value)
        assert {reply.policy for reply in (await from_each(backend)).values()} == {PolicySpan(2, 2)}
        assert await said(backend) == before
        first = asyncio.create_task(backend.update_weights(WeightUpdate(version=3, weights=other)))
        await asyncio.sleep(0)
        with pytest.raises(errors.UpdateInProgressError):
            await backend.update_weights(WeightUpdate(version=4, weights=other))
        await first
        assert (await said(backend)).policy == PolicySpan(3, 3)


async def test_servers_take_what_a_trainer_sends_all_of_them_or_none(model: Path, other: Path) -> None:
    good = load_file(other / "model.safetensors")
    expected = await loaded(other)
    with WeightSender("127.0.0.1:0", receivers=2) as trainer:
        source = Broadcast(trainer.address, timeout_s=LIMIT_S)
        async with at(model, 2) as (backend, _):
            for weights, kind in ((good | {BIAS: good[BIAS].int()}, errors.WeightMismatchError), (good, None)):
                update = WeightUpdate(version=3, weights=source, blocking=kind is not None)
                sending = asyncio.to_thread(trainer.send, weights, 3)
                updated, sent = await asyncio.gather(backend.update_weights(update), sending, return_exceptions=True)
                assert (type(updated), sent is None) == (kind or type(None), kind is None)
                version = 0 if kind else 3
                assert {each.policy for each in (await from_each(backend)).values()} == {PolicySpan(version, version)}
            assert {each.text for each in (await from_each(backend)).values()} == {expected.text}


async def test_broadcast_for_a_server_that_is_down_is_an_error_on_both_sides_without_a_wait(
    model: Path, other: Path
) -> None:
    weights = load_file(other / "model.safetensors")
    with WeightSender("127.0.0.1:0", receivers=2, timeout_s=LIMIT_S) as trainer:
        source = Broadcast(trainer.address, timeout_s=LIMIT_S)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(served(model, admin_key=KEY))
            async with served(model, admin_key=KEY) as second:
                backend = backend_for(first, second)
                stack.push_async_callback(backend.close)
                await backend.start()
            met = await asyncio.gather(
                backend.update_weights(WeightUpdate(version=3, weights=source)),
                asyncio.to_thread(trainer.send, weights, 3),
                return_exceptions=True,
            )
            for error in met:
                assert "receivers is 2," in str(error), met
            assert (await said(backend)).policy == PolicySpan(0, 0)


async def test_server_gives_a_receive_up_when_its_client_leaves(stage: Stage, other: Path) -> None:
    weights = {"path": str(other), "version": 4}
    with WeightSender("127.0.0.1:0") as trainer:
        asking = asyncio.create_task(stage.owner("weights/receive", {"address": trainer.address}))
        await until(lambda: has_come(trainer), "the server")
        asking.cancel()
        await asyncio.wait([asking])
        answer = await stage.owner("weights", weights)
        while answer.status_code == 409:  # The server has not seen yet that the client left.
            answer = await stage.owner("weights", weights)
        assert answer.json() == {"weight_version": 4}
        assert (await stage.owner("weights/receive", {"address": "nowhere"})).status_code == 400


@pytest.mark.parametrize("stays", [True, False], ids=["noticed", "unnoticed"])
async def test_server_that_was_away_never_serves_with_its_first_weights(model: Path, other: Path, stays: bool) -> None:
    """It was down when the others took new weights, or was started anew after it had taken them and nobody noticed."""
    async with AsyncExitStack() as stack:
        staying = [await stack.enter_async_context(served(model, admin_key=KEY))] if stays else []
        async with served(model, admin_key=KEY) as leaves:
            backend = backend_for(*staying, leaves)
            stack.push_async_callback(backend.close)
            await backend.start()
            assert len(await from_each(backend)) == 1 + len(staying)
            if not stays:
                await backend.update_weights(WeightUpdate(version=5, weights=other))
        if stays:
            await backend.update_weights(WeightUpdate(version=5, weights=other))
        async with served(model, admin_key=KEY, port=leaves.port):
            servers = set[str | None]()
            while len(servers) < 1 + len(staying):
                with suppress(errors.TransientBackendError):
                    reply = await said(backend, f"task-{next(NUMBERS)}")
                    assert reply.policy == PolicySpan(5, 5)
                    servers.add(reply.timing.server)


async def test_run_that_goes_on_finds_a_server_with_its_weights_as_it_left_it(model: Path, other: Path) -> None:
    async with served(model, admin_key=KEY) as server:
        for _ in range(2):
            backend = backend_for(server)
            await backend.start()
            await backend.update_weights(WeightUpdate(version=7, weights=other))
            assert (await said(backend)).policy == PolicySpan(7, 7)
            await backend.close()
        with pytest.raises(errors.StaleVersionError):
            await backend_for(server).update_weights(WeightUpdate(version=7, weights=model))


async def test_servers_without_a_key_for_their_owner_are_refused_at_the_start(model: Path) -> None:
    async with served(model, admin_key=KEY) as server:
        without = backend_for(server, key=None)
        await without.start()
        assert "admin_key_env" in str(without.update_obstacle)  # It could have been a vLLM.
        await without.close()
        backend = backend_for(server, key="foreign-0123456789")
        with pytest.raises(errors.ConfigError, match=r"openai_config.admin_key_env: .* missing"):
            await backend.start()
        await backend.close()
