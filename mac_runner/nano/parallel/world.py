"""The processes of an engine: D replicas of T ranks each, and which of them this process is.

Rank `r` is rank `r % T` of replica `r // T`. The ranks come from the environment of torchrun or srun. Without either,
the world is this process alone, and it starts the others itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mac_runner.nano.errors import ConfigError

LOCAL = "127.0.0.1"
PORT = 29500
"""torchrun's own default."""
PORT_MAX = 65535
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
}
"""The variables for a rank, the number of ranks, a rank's number on its host, and the number of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One process among `size`. `host` is the number of its host; `local_rank` counts the processes of one host.

    The ranks meet at `master_address` and `master_port`, an address of the host of rank 0.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    dp_rank: int = 0
    tp_rank: int = 0
    host: int = 0
    tensor_parallel_size: int = 1
    master_address: str = LOCAL
    master_port: int = PORT
    is_master_served: bool = False
    """Whether the launcher itself serves the store at the master's port, as torchrun does."""
    attempt: str = "0"
    """The launcher's number of this start, which a restart counts up."""

    @property
    def is_alone(self) -> bool:
        """Whether no launcher started other ranks."""
        return self.size == 1

    @property
    def data_parallel_size(self) -> int:
        """The number of replicas."""
        return self.size // self.tensor_parallel_size

    def head(self, dp_rank: int) -> int:
        """The first rank of a replica."""
        return dp_rank * self.tensor_parallel_size


ALONE = World()


def world_of(environ: Mapping[str, str], *, data_parallel_size: int = 1, tensor_parallel_size: int = 1) -> World:
    """This process's place, from the variables of torchrun or srun; `ALONE` where neither has set its own.

    Raises ConfigError where they do not fit `data_parallel_size` times `tensor_parallel_size` ranks.
    """
    launcher = next((name for name, names in _LAUNCHERS.items() if names[0] in environ and names[1] in environ), None)
    if launcher is None:
        return ALONE
    rank, size, local_rank, host = (_number(environ, name, launcher) for name in _LAUNCHERS[launcher])
    wanted = data_parallel_size * tensor_parallel_size
    if size != wanted:
        raise ConfigError(
            f"{launcher} started {size} ranks, and data_parallel_size = {data_parallel_size} times "
            f"tensor_parallel_size = {tensor_parallel_size} are {wanted}: start {wanted} ranks or change a size"
        )
    if rank >= size:
        raise ConfigError(f"{_LAUNCHERS[launcher][0]} is {rank}, and {size} ranks are numbered 0 to {size - 1}")
    if size == 1:
        return ALONE
    if "MASTER_ADDR" not in environ:
        raise ConfigError(
            "MASTER_ADDR is not set: set it to an address of the host of rank 0 that all hosts reach, "
            f"and MASTER_PORT to a free port there (default {PORT})"
        )
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        dp_rank=rank // tensor_parallel_size,
        tp_rank=rank % tensor_parallel_size,
        host=host,
        tensor_parallel_size=tensor_parallel_size,
        master_address=environ["MASTER_ADDR"],
        master_port=_port(environ),
        is_master_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )


def _number(environ: Mapping[str, str], name: str, launcher: str) -> int:
    value = environ.get(name, "")
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"{name} is {value!r}, and {launcher} sets it to a whole number")
    return int(value)


def _port(environ: Mapping[str, str]) -> int:
    value = environ.get("MASTER_PORT", str(PORT))
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= PORT_MAX):
        raise ConfigError(f"MASTER_PORT is {value!r}: it is a port from 1 to {PORT_MAX}")
    return int(value)
