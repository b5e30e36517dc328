"""New weights for the engine in this process, while it works."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mac_runner.backends.nano.backend import NanoBackend
from mac_runner.backends.testing import Updating, updating
from mac_runner.errors import (
    BroadcastError,
    MacRunnerError,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
)
from mac_runner.types import PolicySpan, Reply, Sampling
from mac_runner.weights import Broadcast, WeightUpdate
from mac_runner.weights import Weights as Kind
from tests.backends.nano.engines import nano, started
from tests.sim.held_steps import HeldSteps
from tests.sim.held_time import real
from tests.sim.nano_model import write_other_weights
from tests.sim.requests import request

LONG = Sampling(seed=1, max_tokens=200)
SHORT = Sampling(seed=1, max_tokens=8)
BIAS, MATRIX = "model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.down_proj.weight"

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def other(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like the model's, with other weights."""
    directory = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(model_directory, directory)
    return write_other_weights(model_directory, directory)


def weights_of(directory: Path) -> Weights:
    found: Weights = load_file(directory / "model.safetensors")
    return found


async def short(backend: NanoBackend) -> Reply:
    return await backend.generate(request(sampling=SHORT))


async def decoding(backend: NanoBackend) -> asyncio.Task[Reply]:
    """A long reply that has begun."""
    assert backend._engine is not None
    stats = backend._engine._engine.stats
    made = (await stats()).num_completion_tokens
    long = asyncio.create_task(backend.generate(request("go on", sampling=LONG)))
    while (await stats()).num_completion_tokens == made:
        assert not long.done()
    return long


@pytest.mark.parametrize("size", [1, 2])
@real
async def test_updated_engine_says_what_one_that_loaded_these_weights_says(
    model_directory: Path, other: Path, size: int
) -> None:
    kinds: list[Kind] = [other, weights_of(other), other / "model.safetensors"]
    loaded, updated = list[Reply](), list[Reply]()
    async with started(nano(other, traces=True)) as backend:
        loaded.append(await short(backend))
    async with started(nano(model_directory, {"tensor_parallel_size": size}, traces=True)) as backend:
        loaded.append(await short(backend))
        for version, weights in enumerate(kinds, start=2):
            await backend.update_weights(WeightUpdate(version=version, weights=weights, blocking=version % 2 == 0))
            updated.append(await short(backend))

    assert loaded[0].trace != loaded[1].trace
    assert [reply.policy for reply in loaded] == [PolicySpan(0, 0)] * 2
    for version, reply in enumerate(updated, start=2):
        assert (reply.text, reply.trace) == (loaded[0].text, loaded[0].trace)
        assert reply.policy == PolicySpan(version, version)


@real
async def test_reply_under_way_goes_on_with_the_new_weights(
    model_directory: Path, other: Path, steps: HeldSteps
) -> None:
    async with started(nano(model_directory, traces=True)) as backend:
        whole = await backend.generate(request("go on", sampling=LONG))
        assert whole.tokens.completion == LONG.max_tokens
        assert whole.trace is not None
        for version, blocking in ((1, True), (3, False)):
            steps.hold()
            long = await decoding(backend)
            await backend.update_weights(WeightUpdate(version=version, weights=other, blocking=blocking))
            steps.go()
            mixed = await long

            assert mixed.policy == PolicySpan(version - 1, version)
            assert mixed.trace is not None
            assert mixed.trace.prompt_ids == whole.trace.prompt_ids
            assert mixed.trace.completion_ids[0] == whole.trace.completion_ids[0]
            assert mixed.trace.completion_ids != whole.trace.completion_ids
            await backend.update_weights(WeightUpdate(version=version + 1, weights=model_directory))


@real
async def test_weights_that_change_after_the_update_change_no_reply(model_directory: Path, other: Path) -> None:
    async with started(nano(model_directory, traces=True)) as backend:
        weights = weights_of(other)
        await backend.update_weights(WeightUpdate(version=1, weights=weights))
        before = await short(backend)
        for tensor in weights.values():
            tensor.zero_()

        assert await short(backend) == before


def _without(weights: Weights, name: str) -> Weights:
    return {key: tensor for key, tensor in weights.items() if key != name}


def spoiled(tensor: torch.Tensor, number: float) -> torch.Tensor:
    """A copy with one other number."""
    copy = tensor.clone()
    copy.view(-1)[-1] = number
    return copy


@real
async def test_refused_update_says_why_and_changes_nothing(model_directory: Path, other: Path, tmp_path: Path) -> None:
    good = weights_of(other)
    (tmp_path / "model.bin").write_bytes(b"\x80\x04K\x07.")
    save_file(_without(good, BIAS), tmp_path / "part.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:5000])
    bad: list[tuple[Kind, int, type[WeightUpdateError], str]] = [
        (_without(good, BIAS), 3, WeightMismatchError, f"{BIAS} of shape .64. is missing"),
        (good | {"extra": good[BIAS]}, 3, WeightMismatchError, "extra has no place"),
        (good | {MATRIX: good[MATRIX].T}, 3, WeightMismatchError, rf"{MATRIX} has shape \[96, 64\], expected \[64, 96"),
        (good | {BIAS: good[BIAS].int()}, 3, WeightMismatchError, f"{BIAS} is of torch.int32"),
        (good | {BIAS: good[BIAS].tolist()}, 3, WeightMismatchError, f"{BIAS} is of type list"),
        (good | {MATRIX: spoiled(good[MATRIX], float("nan"))}, 3, WeightMismatchError, f"{MATRIX} has NaN"),
        (good | {BIAS: spoiled(good[BIAS], float("-inf"))}, 3, WeightMismatchError, f"{BIAS} has NaN or an infinity"),
        (tmp_path / "part.safetensors", 3, WeightMismatchError, f"{BIAS} of shape"),
        (tmp_path / "model.bin", 3, WeightUpdateError, "model.bin is neither .* other formats can run code"),
        (tmp_path / "cut.safetensors", 3, WeightUpdateError, "cut.safetensors cannot be read"),
        (tmp_path / "none", 3, WeightUpdateError, "none"),
        (tmp_path, 3, WeightUpdateError, "holds no model"),
        (good, 2, StaleVersionError, "version 2: the engine has version 2; give a version above it"),
        (good, 1, StaleVersionError, "version 1: the engine has version 2"),
        (Broadcast("localhost:1", timeout_s=0.1), 3, BroadcastError, "no trainer at localhost:1"),
    ]

    async with started(nano(model_directory, traces=True)) as backend:
        await backend.update_weights(WeightUpdate(version=2, weights=weights_of(model_directory)))
        before = await short(backend)
        for weights, version, kind, text in bad:
            for blocking in (True, False):
                with pytest.raises(WeightUpdateError, match=text) as refused:
                    await backend.update_weights(WeightUpdate(version=version, weights=weights, blocking=blocking))
                assert type(refused.value) is kind, text
            assert await short(backend) == before
        assert before.policy == PolicySpan(2, 2)
        await backend.update_weights(WeightUpdate(version=3, weights=good))
        assert (await short(backend)).policy == PolicySpan(3, 3)


@real
async def test_second_update_is_refused_while_one_is_under_way(model_directory: Path, other: Path) -> None:
    async with started(nano(model_directory, traces=True)) as backend:
        first = asyncio.create_task(backend.update_weights(WeightUpdate(version=1, weights=other)))
        await asyncio.sleep(0)
        with pytest.raises(UpdateInProgressError, match="under way"):
            await backend.update_weights(WeightUpdate(version=2, weights=other))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(UpdateInProgressError):
            await backend.update_weights(WeightUpdate(version=2, weights=other))
        while (await short(backend)).policy != PolicySpan(1, 1):
            pass
        await backend.update_weights(WeightUpdate(version=2, weights=other))

        assert (await short(backend)).policy == PolicySpan(2, 2)


@real
async def test_engine_that_is_not_running_takes_no_weights(model_directory: Path, other: Path) -> None:
    async with started(nano(model_directory)) as backend:
        pass
    with pytest.raises(MacRunnerError, match="not running"):
        await backend.update_weights(WeightUpdate(version=1, weights=other))


def test_nano_is_found_as_a_backend_that_updates(model_directory: Path) -> None:
    backend = nano(model_directory)
    found: Updating = updating(backend, name="m", kind="nano")

    assert found is backend
