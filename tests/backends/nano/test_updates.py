"""New weights for the engine in this process while it works, and whole runs on it or on servers of it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mac_runner
from mac_runner import Broadcast, Policy
from mac_runner.backends.nano import NanoBackend
from mac_runner.checkpoints import digest_of
from mac_runner.errors import (
    BroadcastError,
    MacRunnerError,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
)
from mac_runner.store import Disk
from mac_runner.store.testing import Layout, objects, read_state, recorded_from_json
from mac_runner.types import JsonObject, PolicySpan, Reply, Sampling
from mac_runner.weights import Weights as Kind
from mac_runner.weights import WeightUpdate
from tests.backends.nano.engines import model_of, nano, started
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S
from tests.sim.held_steps import HeldSteps
from tests.sim.held_time import real
from tests.sim.nano_model import write_other_weights
from tests.sim.nano_server import MODEL, served
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
    assert nano(model_directory).update_obstacle is None


KEY = "owner-0123456789abcdef"


GAME = """
from mac_runner import Ask, game

@game
def topics(table):
    table.rules = f"Talk about number {table.random('topic').getrandbits(64)} " + "and its many divisors. " * 20
    for name in table.agents:
        yield Ask(name, "Say something.", default="")
    return {"done": True}
"""


def cached_share(model: Path, place: Path, k: int) -> float:
    content: JsonObject = {
        "experiment_metadata": {"experiment_name": f"k{k}"},
        "conversation_config": {
            "environment": f"{place / 'topics.py'}:topics",
            "conversations": 8,
            "samples_per_task": k,
        },
        "model_definitions": {"m": model_of(model, max_num_seqs_upper_bound=1)},
        "agent_definitions": [{"agent_id": "Ann", "role": "player", "model": "m", "max_tokens": 4}],
    }
    run = mac_runner.run(content, out=place / f"k{k}", progress=False)
    turns = [turn for conversation in run for turn in conversation.turns]
    assert len(turns) >= 8
    return sum(turn.tokens.cached for turn in turns) / sum(turn.tokens.prompt for turn in turns)


def test_samples_of_a_deal_hit_the_prefix_cache(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "topics.py").write_text(GAME)

    alone, grouped = cached_share(model_directory, tmp_path, 1), cached_share(model_directory, tmp_path, 4)

    assert alone < 0.3
    assert grouped > 0.5


def experiment(model: Path, *, conversations: int = 8, rounds: int = 2) -> JsonObject:
    """Two agents send numbers back."""
    return {
        "experiment_metadata": {"experiment_name": "echoes"},
        "seed": 7,
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": rounds},
        "model_definitions": {"learner": model_of(model, max_num_seqs_upper_bound=4)},
        "agent_definitions": [
            {"agent_id": name, "role": "participant", "model": "learner", "max_tokens": 8} for name in ("a", "b")
        ],
    }


def starts_of(conversation: mac_runner.RecordedConversation) -> list[int]:
    """The version that began each reply."""
    spans = [recorded_from_json(turn).reply.policy for turn in objects(conversation.transcript, "turns")]
    return [span.start for span in spans if span is not None]


@real
async def test_versions_of_a_loop(model_directory: Path, tmp_path: Path) -> None:
    """Weights change after every two conversations; no rollout is too old, and the journal names each version."""
    weights = load_file(model_directory / "model.safetensors")
    out = tmp_path / "run"
    batch, version, lags = 0, 0, list[int]()
    policy = Policy("learner", max_lag=1, batch=2)
    async with mac_runner.stream(experiment(model_directory), policy=policy, out=out, progress=False) as run:
        async for conversation in run:
            lags.append(version - min(starts_of(conversation)))
            batch += 1
            if batch == 2:
                batch, version = 0, await run.update_weights(weights, blocking=version % 2 == 0)

    assert len(lags) == 8
    assert max(lags) <= 1
    versions = read_state(Disk(), Layout(directory=out, experiment_name="echoes")).policies["learner"]
    assert [each.version for each in versions] == [0, 1, 2, 3, 4]


@real
async def test_tensors_without_numbers_of_their_own_are_refused_and_the_run_goes_on(
    model_directory: Path, tmp_path: Path
) -> None:
    weights = load_file(model_directory / "model.safetensors")
    name = min(weights)
    content = experiment(model_directory, conversations=2, rounds=1)
    async with mac_runner.stream(content, policy=Policy("learner"), out=tmp_path / "run", progress=False) as run:
        await anext(run)
        for wrong in (weights[name].to("meta"), weights[name].to_sparse()):
            with pytest.raises(mac_runner.WeightUpdateError, match=name):
                await run.update_weights({**weights, name: wrong})
        assert await run.update_weights(weights) == 1
        assert len([conversation async for conversation in run]) == 1


class Trainers:
    """A process of trainers, each of which sends once to so many engines; see `tests/nano/trainer.py`."""

    def __init__(self, process: asyncio.subprocess.Process, model: Path) -> None:
        self._process = process
        self._model = model

    async def begin(self, fault: str, version: int) -> Broadcast:
        """A trainer that sends as soon as engines are there, and ends with this fault."""
        self._say(f"{self._model} {fault} {version}")
        source = Broadcast(await self.line(), timeout_s=LIMIT_S)
        self._say("")
        return source

    async def line(self) -> str:
        """What the trainer says next."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())


@asynccontextmanager
async def trainers(model: Path, receivers: int) -> AsyncIterator[Trainers]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.nano.trainer", str(receivers), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Trainers(process, model)
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def played(model: Path, servers: int, shared: Path) -> AsyncIterator[JsonObject]:
    """An experiment on nano in this process, or on so many servers."""
    content = experiment(model, conversations=24)
    async with AsyncExitStack() as stack:
        if servers:
            urls = [(await stack.enter_async_context(served(model, admin_key=KEY))).url for _ in range(servers)]
            section: JsonObject = {
                "model": MODEL,
                "base_urls": [f"{url}/v1" for url in urls],
                "server": "vllm",
                "admin_key_env": "OWNER_KEY",
                "weights_dir": str(shared),
                "max_in_flight": 4,
            }
            content["model_definitions"] = {"learner": {"backend": "openai", "openai_config": section}}
        yield content


@pytest.mark.parametrize("servers", [0, 2])
@real
async def test_run_takes_what_a_trainer_sends_names_it_and_goes_on_with_it(
    servers: int, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that dies in the middle changes nothing. A resume accepts the weights by their digest alone."""
    monkeypatch.setenv("OWNER_KEY", KEY)
    (shared := tmp_path / "shared").mkdir()
    out, sent, other = tmp_path / "run", tmp_path / "5.safetensors", tmp_path / "6.safetensors"
    weights = random_state_dict(model_directory, seed=5)
    save_file(weights, sent)
    save_file(random_state_dict(model_directory, seed=6), other)

    bounded = Policy("learner", max_lag=0, batch=3)  # 18 conversations may begin up to version 5.

    async def first_session(content: JsonObject) -> None:
        async with (
            trainers(model_directory, servers or 1) as trainer,
            mac_runner.stream(content, policy=bounded, out=out, progress=False) as run,
        ):
            assert set(starts_of(await anext(run))) == {0}
            with pytest.raises(mac_runner.BroadcastError, match="no new weights"):
                await run.update_weights(await trainer.begin("middle", 5), version=5)
            assert set(starts_of(await anext(run))) == {0}
            update = run.update_weights(await trainer.begin("none", 5), version=5, blocking=False)
            assert (await update, await trainer.line()) == (5, "taken")
            assert set(starts_of(await anext(run))) <= {0, 5}

    async def last_session(content: JsonObject, weights: Path | None) -> list[int]:
        policy = Policy("learner", version=5, weights=weights)
        async with mac_runner.stream(content, policy=policy, out=out, progress=False) as run:
            return [start async for conversation in run for start in starts_of(conversation)]

    async with played(model_directory, servers, shared) as content:
        await first_session(content)
        named = read_state(Disk(), Layout(directory=out, experiment_name="echoes")).policies["learner"]
        assert [each.version for each in named[:2]] == [0, 5]
        assert named[-1] == (5, digest_of(weights), None)
        for wrong in (None, other):
            with pytest.raises(mac_runner.RunDirectoryError, match="weights of version 5"):
                await last_session(content, wrong)
    async with played(model_directory, servers, shared) as content:
        assert set(await last_session(content, sent)) == {0, 5}
    assert list(shared.iterdir()) == []
