"""Ranks that a launcher has started on two hosts, as they see it: they share no memory, and each has its weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from mac_runner.fleet.testing import LoopbackPorts
from mac_runner.nano import (
    DivergenceError,
    EngineConfig,
    InferenceEngine,
    RankFailedError,
    SamplingParams,
    TrainingSample,
)
from mac_runner.nano.testing import LockstepEngine, can_pack, make_engine, world_of
from tests.nano.test_replicas import bits, by_name, settings
from tests.nano.tiny_models import ModelMaker, make_model, random_state_dict
from tests.patience import LIMIT_S

PARAMS = SamplingParams(temperature=0.9, max_tokens=5, ignore_eos=True)
PROMPTS = [[number] * 20 for number in range(4)]
TOGETHER = ("--data-parallel-mode", "lock_step")

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="without oneDNN no bits are promised"
)


@contextmanager
def other_rank(path: Path, *options: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Rank 1 of 2 on host 2, as srun starts it; also the environment of rank 0 on host 1, reached at 127.0.0.2."""
    (port,) = LoopbackPorts().take(1)
    shared = {"SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "mac_runner.nano.serve_ranks", str(path), "--num-threads", "1"]
    limits = ["--max-num-seqs", "8", "--max-num-batched-tokens", "96", "--max-model-len", "8192"]
    with subprocess.Popen(
        [*command, *limits, *options],
        env={**os.environ, **shared, "SLURM_PROCID": "1", "SLURM_NODEID": "1"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield {**shared, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}, process
        finally:
            process.kill()


def same_settings(**sizes: int) -> dict[str, object]:
    """What the options of `other_rank` come to."""
    return {"num_blocks": None, "max_waiting": 1024, **sizes}


def test_two_ranks_of_a_model_on_two_hosts_have_the_bits_of_one_process_and_end_with_rank_0(model: ModelMaker) -> None:
    """Weights that change are sent to the other host."""
    path, sizes = model("qwen2"), {"tensor_parallel_size": 2}
    weights = random_state_dict(path, seed=1)
    with InferenceEngine(settings(path)) as one:
        expected = [bits(by_name(one.generate(PROMPTS, PARAMS)))]
        one.update_weights(weights, blocking=True)
        expected.append(bits(by_name(one.generate(PROMPTS, PARAMS))))
    with other_rank(path, "--tensor-parallel-size", "2") as (environ, process):
        with make_engine(settings(path, **same_settings(**sizes)), world_of(environ, **sizes)) as engine:
            found = [bits(by_name(engine.generate(PROMPTS, PARAMS)))]
            engine.update_weights(weights, blocking=True)
            found.append(bits(by_name(engine.generate(PROMPTS, PARAMS))))
        assert process.wait(LIMIT_S) == 0

    assert found == expected


def test_replica_of_another_host_that_is_killed_is_noticed_and_its_requests_are_answered(model: ModelMaker) -> None:
    path, sizes = model("qwen2"), {"data_parallel_size": 2}
    with InferenceEngine(settings(path)) as one:
        expected = bits(by_name(one.generate(PROMPTS, PARAMS)))
    with (
        other_rank(path, "--data-parallel-size", "2") as (environ, process),
        make_engine(settings(path, **same_settings(**sizes)), world_of(environ, **sizes)) as engine,
    ):
        assert engine.stats().num_replicas == 2
        numbers = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS]
        process.send_signal(signal.SIGKILL)
        samples = list[TrainingSample]()
        while len(samples) < len(numbers):
            samples += engine.step()

    assert bits(by_name(samples)) == expected


def test_replicas_of_two_hosts_in_lock_step_have_the_bits_of_one_process_until_one_is_killed_which_is_named(
    model: ModelMaker,
) -> None:
    path, sizes = model("qwen2"), {"data_parallel_size": 2}
    with InferenceEngine(settings(path)) as one:
        expected = bits(by_name(one.generate(PROMPTS, PARAMS)))
    with (
        other_rank(path, "--data-parallel-size", "2", *TOGETHER) as (environ, process),
        make_engine(together(path, **sizes), world_of(environ, **sizes)) as engine,
    ):
        assert isinstance(engine, LockstepEngine)
        found = bits(by_name(engine.generate(PROMPTS, PARAMS)))
        process.send_signal(signal.SIGKILL)
        with pytest.raises(RankFailedError, match=r"rank 1 .* gone"):
            engine.generate(PROMPTS, SamplingParams(max_tokens=8000, ignore_eos=True))

    assert found == expected
    assert all(stats.num_steps for stats in engine.replica_stats())


def together(path: Path, **sizes: int) -> EngineConfig:
    """The settings of rank 0 of replicas in lock step."""
    return settings(path, **same_settings(**sizes), data_parallel_mode="lock_step")


def test_host_with_other_weights_is_refused_on_both_with_the_file_and_the_ranks(
    model: ModelMaker, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path, sizes = model("qwen2"), {"data_parallel_size": 2}
    save_file(random_state_dict(make_model(tmp_path, "qwen2"), seed=9), str(tmp_path / "model.safetensors"))
    with other_rank(tmp_path, "--data-parallel-size", "2", *TOGETHER) as (environ, process):
        with pytest.raises(DivergenceError, match=r"rank 1 .* rank 0 .*model\.safetensors"):
            make_engine(together(path, **sizes), world_of(environ, **sizes))
        _, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 1
    assert "model.safetensors" in said


def test_rank_that_stays_away_is_named(model: ModelMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the wait for it is cut short: on a busy machine rank 0 may take long to open the store."""
    from mac_runner.nano.parallel import rendezvous

    def get(meeting: rendezvous.Rendezvous, key: str, waits_for: str, patience_s: float | None = None) -> str:
        if waits_for == "rank 1":
            monkeypatch.setattr(rendezvous, "ARRIVAL_S_MAX", 0.05)
        return original(meeting, key, waits_for, patience_s)

    original = rendezvous.Rendezvous._get
    monkeypatch.setattr(rendezvous.Rendezvous, "_get", get)
    (port,) = LoopbackPorts().take(1)
    environ = {"SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    environ |= {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}
    with pytest.raises(RankFailedError, match="rank 1 did not"):
        make_engine(settings(model("qwen2"), data_parallel_size=2), world_of(environ, data_parallel_size=2))
