"""Whole runs whose weights a trainer in another process sends, on nano in this process and through servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from safetensors.torch import save_file

import mac_runner
from mac_runner import Broadcast, Policy
from mac_runner.checkpoints import digest_of
from mac_runner.store import Disk
from mac_runner.store.testing import Layout, read_state
from mac_runner.types import JsonObject
from tests.backends.nano.test_stream_updates import experiment, starts_of
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S
from tests.sim.nano_server import MODEL, served

KEY = "owner-0123456789abcdef"


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
def test_run_takes_what_a_trainer_sends_names_it_and_goes_on_with_it(
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

    async def main() -> None:
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

    asyncio.run(main())
