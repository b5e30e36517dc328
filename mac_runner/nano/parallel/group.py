"""Which part of a model each rank has, and how ranks gather what each has computed.

There are two ways. Over torch.distributed: gloo on a CPU, NCCL on GPUs. Or through memory that all ranks of a CPU have
mapped, in a tenth of the time; it relies on seeing another's writes in their order, which only x86-64 promises.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from tempfile import TemporaryFile
from threading import Event

import torch

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.errors import ConfigError, RankFailedError

LOCAL = "127.0.0.1"
PATIENCE_S = 300.0
"""How long a rank may keep the others waiting at a gather. The work between two takes all of them equally long."""
_SPINS = 2_000
_YIELDS = 200  # On a busy machine each may take a few milliseconds.
_NAP_S = 0.0001
_CACHE_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `rank` of `size` equal parts of a model: rows of every matrix, and with them whole heads.

    `device` is the number of its GPU on its host; None is the number of its rank.
    """

    rank: int = 0
    size: int = 1
    device: int | None = None

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's rows of a weight [outputs, inputs] or a bias [outputs]."""
        return tensor.chunk(self.size)[self.rank]

    def columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part's columns of an activation [tokens, width]: those that its rows of a weight compute."""
        return tensor.chunk(self.size, dim=-1)[self.rank] if self.size > 1 else tensor

    def local(self, config: ModelConfig) -> ModelConfig:
        """The shape of what this part attends with: its own heads."""
        heads, kv_heads = config.num_heads // self.size, config.num_kv_heads // self.size
        return replace(config, num_heads=heads, num_kv_heads=kv_heads)


WHOLE = Shard()


def require_divisible(config: ModelConfig, size: int) -> None:
    """Raise ConfigError, with all that does not divide, if a model cannot be cut into `size` equal parts."""
    counts = {
        "attention heads": config.num_heads,
        "KV heads": config.num_kv_heads,
        "numbers of hidden_size": config.hidden_size,
        "numbers of intermediate_size": config.intermediate_size,
        "tokens of the vocabulary": config.vocab_size,
    }
    uneven = [f"{count} {name}" for name, count in counts.items() if count % size]
    if uneven:
        raise ConfigError(
            f"EngineConfig.tensor_parallel_size = {size}: {', '.join(uneven)} cannot be divided among {size} ranks "
            "evenly; choose a number that divides them all"
        )


class PeerLostError(RankFailedError):
    """A rank waited in vain for others; why, only rank 0 can find out."""


class Group:
    """The ranks that compute a batch together, seen from one of them; here a single rank."""

    shard = WHOLE

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Every rank's columns [tokens, width / size], joined to [tokens, width] in the order of the ranks.

        All ranks must come, with equal shapes. Raises RankFailedError when one does not.
        """
        return part

    def abort(self) -> None:
        """Release a rank that waits in `gather`; for another thread, when a rank is lost."""

    def close(self) -> None:
        """Leave the others, when nothing is under way; may be called twice."""


ALONE = Group()


def has_ordered_memory() -> bool:
    """Whether ranks can gather through shared memory on this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def anonymous_memory(num_bytes: int) -> int:
    """A descriptor of memory without a name, all zeros; it ends with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("nano")
    else:
        with TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd


@dataclass(frozen=True, slots=True)
class GatherMemory:
    """The layout of memory in which `size` ranks gather pieces of up to `piece_bytes`.

    First comes a counter for each rank: how many gathers it has come to. Then come two places for each rank's piece,
    used in turn. A rank that comes to the next gather has read the last one. So a rank that has seen all come may
    write over it.
    """

    size: int
    piece_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.size * _CACHE_LINE_BYTES + 2 * self.size * self._place_bytes

    @property
    def _place_bytes(self) -> int:
        return -(-self.piece_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def place(self, turn: int, rank: int) -> slice:
        """Where a rank's piece lies at a turn."""
        first = self.size * _CACHE_LINE_BYTES + (turn % 2 * self.size + rank) * self._place_bytes
        return slice(first, first + self.piece_bytes)


class MemoryGroup(Group):
    """Ranks that gather through memory they share. `is_over`, set when a rank is lost, releases those that wait."""

    def __init__(self, shard: Shard, layout: GatherMemory, fd: int, dtype: torch.dtype, is_over: Event) -> None:
        self.shard = shard
        self._is_over = is_over
        self._turn = 0
        memory = mmap.mmap(fd, layout.num_bytes)
        self._counters = memoryview(memory).cast("Q")
        self._step = _CACHE_LINE_BYTES // self._counters.itemsize
        self._others = [rank for rank in range(shard.size) if rank != shard.rank]
        every = torch.frombuffer(memory, dtype=torch.uint8)
        self._places = [
            [every[layout.place(turn, rank)].view(dtype) for rank in range(shard.size)] for turn in range(2)
        ]

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Write the own piece and count it, wait for the others' and read them all."""
        self._turn += 1
        pieces = [place[: part.numel()].view(part.shape) for place in self._places[self._turn % 2]]
        pieces[self.shard.rank].copy_(part)
        self._counters[self.shard.rank * self._step] = self._turn
        for rank in self._others:
            self._await(rank)
        return torch.cat(pieces, dim=-1)

    def _await(self, rank: int) -> None:
        """Wait until a rank has come: at first without a pause, because most come within microseconds."""
        counters, place, turn = self._counters, rank * self._step, self._turn
        for _ in range(_SPINS):
            if counters[place] >= turn:
                return
        for _ in range(_YIELDS):
            os.sched_yield()
            if counters[place] >= turn:
                return
        for _ in range(int(PATIENCE_S / _NAP_S)):
            if counters[place] >= turn:
                return
            if self._is_over.wait(_NAP_S):
                raise PeerLostError(f"rank {rank} is lost")
        raise PeerLostError(f"rank {rank} has kept the others waiting for {PATIENCE_S:.0f} s")


class TorchPeers:
    """Ranks that meet over torch.distributed.

    The group is not the process's default one: an application may have several engines, and groups of its own.
    """

    def __init__(self, shard: Shard, device: torch.device, store: object, address: str) -> None:
        """Meet the others at `store`; they reach this rank at `address`."""
        self.shard = shard
        self._group: torch.distributed.ProcessGroup | None = process_group(shard, device, store, address)

    def abort(self) -> None:
        """End what is under way. NCCL would wait for a lost rank; gloo sees by itself that its sockets are closed."""
        if (group := self._group) is not None:  # Another thread may close it.
            group.abort()

    def close(self) -> None:
        """Leave the others and wait for the group's threads, when nothing is under way; may be called twice.

        A thread that drops a tensor while the interpreter ends would abort the process: it needs Python's lock.
        """
        self._group = None


class TorchGroup(TorchPeers, Group):
    """Ranks that gather over torch.distributed."""

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Gather bytes, because not every backend knows every type."""
        assert self._group is not None
        pieces = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.shard.size)]
        try:
            self._group.allgather(
                [[piece.view(torch.uint8) for piece in pieces]], [part.contiguous().view(torch.uint8)]
            ).wait()
        except RuntimeError as error:
            raise PeerLostError(f"a gather over torch.distributed has failed: {error}") from error
        return torch.cat(pieces, dim=-1)


def process_group(
    shard: Shard, device: torch.device, store: object, address: str = LOCAL, timeout_s: float = PATIENCE_S
) -> torch.distributed.ProcessGroup:
    """The ranks that find each other at `store`, in a group of its own; they reach this one at `address`."""
    import torch.distributed as dist

    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)


def host_store(size: int, address: str = LOCAL) -> tuple[object, int]:
    """Where the ranks of a group find each other, and its port, which the system chose."""
    from torch.distributed import TCPStore

    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        fd = listener.detach()
    return TCPStore(address, port, size, is_master=True, wait_for_workers=False, master_listen_fd=fd), port


def join_store(address: str, port: int, size: int, timeout_s: float = PATIENCE_S) -> object:
    """The same store, for a rank that joins."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, size, is_master=False, timeout=timedelta(seconds=timeout_s))


def own_address(towards: str) -> str:
    """The address of this host that is used to reach another one, so that others can reach this host by it."""
    family, kind, *_, where = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)  # Nothing is sent.
        return str(probe.getsockname()[0])
