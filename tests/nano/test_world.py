"""Which rank a process is: from the environment of torchrun or srun, or the only one."""

from __future__ import annotations

import pytest

from mac_runner.nano import ConfigError, EngineConfig, InferenceEngine
from mac_runner.nano.parallel.world import ALONE
from mac_runner.nano.testing import World, world_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "MASTER_ADDR": "10.0.0.1",
}


def test_environment_without_a_launcher_is_one_process() -> None:
    for environ in ({}, {"SLURM_NTASKS": "4"}, {"MASTER_ADDR": "10.0.0.1"}):
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


@pytest.mark.parametrize(
    ("environ", "sizes", "named"),
    [
        (TORCHRUN, (2, 1), "torchrun started 4 ranks, and data_parallel_size = 2 .* are 2: start 2 ranks"),
        (SRUN, (1, 3), "srun started 4 ranks, and .* tensor_parallel_size = 3 are 3"),
        ({**TORCHRUN, "RANK": "4"}, (2, 2), "RANK is 4, and 4 ranks are numbered 0 to 3"),
        ({**TORCHRUN, "LOCAL_RANK": "one"}, (2, 2), "LOCAL_RANK is 'one'"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, (2, 2), "MASTER_PORT is '0'"),
        ({name: value for name, value in SRUN.items() if name != "MASTER_ADDR"}, (2, 2), "MASTER_ADDR is not set"),
    ],
)
def test_world_of_the_wrong_size_or_without_a_meeting_place_is_refused(
    environ: dict[str, str], sizes: tuple[int, int], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        world_of(environ, data_parallel_size=sizes[0], tensor_parallel_size=sizes[1])


def test_engine_of_one_replica_refuses_a_config_of_several() -> None:
    with pytest.raises(ConfigError, match="data_parallel_size = 2"):
        InferenceEngine(EngineConfig(model_path="", data_parallel_size=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"data_parallel_size": 0},
        {"data_parallel_mode": "together"},
        {"divergence_check_every": 0},
        {"sync_every": 0},
        {"sync_every": 4, "data_parallel_size": 2},
    ],
)
def test_setting_of_replicas_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        EngineConfig(model_path="", **changes)  # type: ignore[arg-type]
