"""A trainer's loop: `stream` on nano in this process, with new weights while it plays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from safetensors.torch import load_file

import mac_runner
from mac_runner import Policy
from mac_runner.store import Disk
from mac_runner.store.testing import Layout, objects, read_state, recorded_from_json
from mac_runner.types import JsonObject


def experiment(model: Path, *, conversations: int = 8, rounds: int = 2) -> JsonObject:
    """Two agents send numbers back."""
    nano: JsonObject = {"model": str(model), "num_threads": 1, "kv_cache_gib": 0.02, "max_num_seqs_upper_bound": 4}
    return {
        "experiment_metadata": {"experiment_name": "echoes"},
        "seed": 7,
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": rounds},
        "model_definitions": {"learner": {"backend": "nano", "nano_config": nano}},
        "agent_definitions": [
            {"agent_id": name, "role": "participant", "model": "learner", "max_tokens": 8} for name in ("a", "b")
        ],
    }


def starts_of(conversation: mac_runner.RecordedConversation) -> list[int]:
    """The version that began each reply."""
    spans = [recorded_from_json(turn).reply.policy for turn in objects(conversation.transcript, "turns")]
    return [span.start for span in spans if span is not None]


def test_versions_of_a_loop(model_directory: Path, tmp_path: Path) -> None:
    """Weights change after every two conversations; no rollout is too old, and the journal names each version."""
    weights = load_file(model_directory / "model.safetensors")
    out = tmp_path / "run"

    async def main() -> list[int]:
        batch, version = 0, 0
        lags: list[int] = []
        policy = Policy("learner", max_lag=1, batch=2)
        async with mac_runner.stream(experiment(model_directory), policy=policy, out=out, progress=False) as run:
            async for conversation in run:
                lags.append(version - min(starts_of(conversation)))
                batch += 1
                if batch == 2:
                    batch, version = 0, await run.update_weights(weights, blocking=version % 2 == 0)
        return lags

    lags = asyncio.run(main())

    assert len(lags) == 8
    assert max(lags) <= 1
    versions = read_state(Disk(), Layout(directory=out, experiment_name="echoes")).policies["learner"]
    assert [each.version for each in versions] == [0, 1, 2, 3, 4]


def test_tensors_without_numbers_of_their_own_are_refused_and_the_run_goes_on(
    model_directory: Path, tmp_path: Path
) -> None:
    weights = load_file(model_directory / "model.safetensors")
    name = min(weights)

    async def main() -> int:
        content = experiment(model_directory, conversations=2, rounds=1)
        policy = Policy("learner")
        async with mac_runner.stream(content, policy=policy, out=tmp_path / "run", progress=False) as run:
            await anext(run)
            for wrong in (weights[name].to("meta"), weights[name].to_sparse()):
                with pytest.raises(mac_runner.WeightUpdateError, match=name):
                    await run.update_weights({**weights, name: wrong})
            assert await run.update_weights(weights) == 1
            return len([conversation async for conversation in run])

    assert asyncio.run(main()) == 1
