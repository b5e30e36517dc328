"""Ranks that a launcher has started: which one a process is; on two hosts they share no memory, nor their weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from mac_runner.fleet.testing import LoopbackPorts
from mac_runner.nano import (
    ConfigError,
    DivergenceError,
    EngineConfig,
    InferenceEngine,
    RankFailedError,
    SamplingParams,
    TrainingSample,
)
from mac_runner.nano.parallel import world
from mac_runner.nano.parallel.world import ALONE
from mac_runner.nano.testing import World, make_engine, world_of
from tests.nano.crowds import alone, bits, forbid_farewell, needs_packing, settings
from tests.nano.tiny_models import make_model, random_state_dict
from tests.patience import LIMIT_S

PARAMS = SamplingParams(temperature=0.9, max_tokens=5, ignore_eos=True)
PROMPTS = [[number] * 20 for number in range(4)]
PORTS = LoopbackPorts()
TWO = {"data_parallel_size": 2}
TOGETHER = {**TWO, "data_parallel_mode": "lock_step"}
MASTER = {"MASTER_ADDR": "10.0.0.1"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    **MASTER,
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {**MASTER, "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


def test_environment_without_a_launcher_is_one_process() -> None:
    for environ in ({}, {"SLURM_NTASKS": "4"}, MASTER):
        assert world_of(environ, data_parallel_size=2, tensor_parallel_size=2) is ALONE
    assert world_of({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is ALONE


def test_ranks_of_torchrun_and_of_srun_are_laid_out_replica_by_replica() -> None:
    expected = World(
        rank=3,
        size=4,
        local_rank=1,
        dp_rank=1,
        tp_rank=1,
        host=1,
        tensor_parallel_size=2,
        master_address="10.0.0.1",
        master_port=29400,
        is_master_served=True,
    )
    assert world_of(TORCHRUN, data_parallel_size=2, tensor_parallel_size=2) == expected
    assert (expected.data_parallel_size, expected.head(1), expected.is_alone) == (2, 2, False)

    found = world_of(SRUN, data_parallel_size=4)
    assert (found.dp_rank, found.tp_rank, found.master_port, found.is_master_served) == (3, 0, 29500, False)


NO_WORLD: tuple[tuple[dict[str, str], tuple[int, int], str], ...] = (
    (TORCHRUN, (2, 1), "torchrun started 4 ranks, and data_parallel_size = 2 .* are 2: start 2 ranks"),
    (SRUN, (1, 3), "srun started 4 ranks, and .* tensor_parallel_size = 3 are 3"),
    ({**TORCHRUN, "RANK": "4"}, (2, 2), "RANK is 4, and 4 ranks are numbered 0 to 3"),
    ({**TORCHRUN, "LOCAL_RANK": "one"}, (2, 2), "LOCAL_RANK is 'one'"),
    ({**TORCHRUN, "MASTER_PORT": "0"}, (2, 2), "MASTER_PORT is '0'"),
    ({name: value for name, value in SRUN.items() if name not in MASTER}, (2, 2), "MASTER_ADDR is not set"),
)


def test_world_of_the_wrong_size_or_without_a_meeting_place_is_refused() -> None:
    for environ, (replicas, ranks), named in NO_WORLD:
        with pytest.raises(ConfigError, match=named):
            world_of(environ, data_parallel_size=replicas, tensor_parallel_size=ranks)


def test_engine_of_one_replica_refuses_a_config_of_several() -> None:
    with pytest.raises(ConfigError, match="data_parallel_size = 2"):
        InferenceEngine(EngineConfig(model_path="", data_parallel_size=2))


# Two hosts.


def meeting() -> dict[str, str]:
    """What rank 0 of 2 on host 1 is told, which is reached at 127.0.0.2."""
    (port,) = PORTS.take(1)
    place = {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(port)}
    return {**place, "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}


@contextmanager
def other_rank(path: Path, **sizes: Any) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Rank 1 of 2 on host 2, as srun starts it; also the environment of rank 0."""
    environ = meeting()
    command = [sys.executable, "-m", "mac_runner.nano.serve_ranks", str(path), "--num-threads", "1"]
    command += ["--max-num-seqs", "8", "--max-num-batched-tokens", "96", "--max-model-len", "8192"]
    command += [word for name, value in sizes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    there = {**os.environ, **environ, "SLURM_PROCID": "1", "SLURM_NODEID": "1"}
    with subprocess.Popen(command, env=there, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield environ, process
        finally:
            process.kill()


def rank_0(path: Path, environ: dict[str, str], **sizes: Any) -> Any:
    """An engine of both, of the same settings."""
    numbers = {name: value for name, value in sizes.items() if name.endswith("size")}
    return make_engine(
        settings(path, num_blocks=None, max_waiting=1024, admission="preempt", **sizes), world_of(environ, **numbers)
    )


@needs_packing
def test_two_ranks_of_a_model_on_two_hosts_have_the_bits_of_one_process_and_end_with_rank_0(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that change are sent to the other host. The interpreter takes no leave: threads could abort it."""
    forbid_farewell(tmp_path, monkeypatch)
    weights, sizes = random_state_dict(path, seed=1), {"tensor_parallel_size": 2}
    found = list[list[object]]()
    with alone(path) as one, other_rank(path, **sizes) as (environ, process):
        with rank_0(path, environ, **sizes) as engine:
            for each in (one, engine):
                before = bits(each.generate(PROMPTS, PARAMS))
                each.update_weights(weights, blocking=True)
                found.append([before, bits(each.generate(PROMPTS, PARAMS))])
        assert process.wait(LIMIT_S) == 0

    assert found[0] == found[1]


@needs_packing
@pytest.mark.parametrize("sizes", [TWO, TOGETHER], ids=["independent", "lock step"])
def test_replicas_of_two_hosts_have_the_bits_of_one_process_until_one_is_killed(
    path: Path, sizes: dict[str, Any]
) -> None:
    """The other answers the requests of one that works independently; in lock step it ends both, and is named."""
    with alone(path) as one:
        expected = bits(one.generate(PROMPTS, PARAMS))
    with other_rank(path, **sizes) as (environ, process), rank_0(path, environ, **sizes) as engine:
        if sizes is TOGETHER:
            samples = engine.generate(PROMPTS, PARAMS)
            assert all(stats.num_steps for stats in engine.replica_stats())
            process.send_signal(signal.SIGKILL)
            with pytest.raises(RankFailedError, match=r"rank 1 .* gone"):
                engine.generate(PROMPTS, SamplingParams(max_tokens=8000, ignore_eos=True))
        else:
            assert engine.stats().num_replicas == 2
            numbers = [engine.add_request(prompt, PARAMS) for prompt in PROMPTS]
            process.send_signal(signal.SIGKILL)
            samples = list[TrainingSample]()
            while len(samples) < len(numbers):
                samples += engine.step()

    assert bits(samples) == expected


@needs_packing
def test_host_with_other_weights_is_refused_on_both_with_the_file_and_the_ranks(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "FAREWELL_S", LIMIT_S)
    save_file(random_state_dict(make_model(tmp_path, "qwen2"), seed=9), str(tmp_path / "model.safetensors"))
    with other_rank(tmp_path, **TOGETHER) as (environ, process):
        with pytest.raises(DivergenceError, match=r"rank 1 .* rank 0 .*model\.safetensors"):
            rank_0(path, environ, **TOGETHER)
        _, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 1
    assert "model.safetensors" in said


def test_rank_that_stays_away_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the wait for it is cut short: on a busy machine rank 0 may take long to open the store."""

    def get(meeting: world.Rendezvous, key: str, waits_for: str, patience_s: float | None = None) -> str:
        if waits_for == "rank 1":
            monkeypatch.setattr(world, "ARRIVAL_S_MAX", 0.05)
        return original(meeting, key, waits_for, patience_s)

    original = world.Rendezvous._get
    monkeypatch.setattr(world.Rendezvous, "_get", get)
    with pytest.raises(RankFailedError, match="rank 1 did not"):
        make_engine(settings(path, **TWO), world_of(meeting(), **TWO))
