"""Whole runs on nano: samples of a deal share a cache, and new weights come while a run plays, from its trainer's loop
or from another process, to an engine in this process or to servers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import mac_runner
from mac_runner import Broadcast, Policy
from mac_runner.checkpoints import digest_of
from mac_runner.store import Disk
from mac_runner.store.testing import Layout, objects, read_state, recorded_from_json
from mac_runner.types import JsonObject
from tests.backends.nano.engines import model_of
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S
from tests.sim.held_time import real
from tests.sim.nano_server import MODEL, served

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
