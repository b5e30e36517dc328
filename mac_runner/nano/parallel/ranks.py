"""A model and its KV memory on all ranks of an engine, as if it were on one: rank 0's side, and that of each other.

Each call goes to the other ranks and is then done here, with this rank's own part. From the first batch on the ranks
are in step. So when one of them fails in it, this one included, none can go on.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

import torch

from mac_runner.nano.architecture import ModelConfig, check_state_dict, expected_shapes
from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import StateDict, find_model, read_state_dict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.cpu.threads import ThreadPin
from mac_runner.nano.errors import ConfigError
from mac_runner.nano.model import MIN_ROWS
from mac_runner.nano.parallel.divergence import StepDigests, require_equal
from mac_runner.nano.parallel.group import (
    GatherMemory,
    Group,
    MemoryGroup,
    Shard,
    TorchGroup,
    anonymous_memory,
    has_ordered_memory,
    host_store,
    join_store,
    own_address,
    require_divisible,
)
from mac_runner.nano.parallel.worker import Worker
from mac_runner.nano.parallel.workers import Call, Workers, receive_memory, start
from mac_runner.nano.parallel.world import Joined
from mac_runner.nano.runner import ModelRunner, Prepared


def make_runner(
    config: EngineConfig, model_config: ModelConfig, directory: Path, num_threads: int, joined: Joined
) -> ModelRunner:
    """What an engine computes with, ready for its first batch. Raises NanoError."""
    if config.tensor_parallel_size > 1:
        return ParallelRunner(config, model_config, directory, num_threads, joined)
    runner = ModelRunner(config, model_config, Shard(device=joined.device))
    runner.replace(runner.load(directory))
    runner.open_store(runner.count_blocks())
    return runner


class ParallelRunner(ModelRunner):
    """The first of `tensor_parallel_size` ranks: what it is asked to do, all do."""

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, directory: Path, num_threads: int, joined: Joined
    ) -> None:
        size = config.tensor_parallel_size
        require_divisible(model_config, size)
        state_dict = read_state_dict(directory)
        check_state_dict(state_dict, model_config)
        super().__init__(config, model_config, Shard(0, size, joined.device))
        self._address = joined.address
        is_here = all(member.shares_memory for member in joined.members)
        gathers_in_memory = _gathers_in_memory(config, self.device, is_here=is_here)
        others = joined.members or [start("rank", rank, num_threads) for rank in range(1, size)]
        self._ranks = Workers(others, is_together=True)
        self._steps = StepDigests()
        self._installed = 0
        # An engine that is dropped without `shutdown` keeps no processes.
        self._end = weakref.finalize(self, self._ranks.close)
        try:
            begun = self._ranks.begin("begin", config, model_config, num_threads)
            # While the others load torch, the weights are packed for them.
            self.replace(self._build(state_dict, is_on_disk=True))
            del state_dict
            self._ranks.wait(begun)
            self.group = self._join_memory() if gathers_in_memory else self._join_torch()
            counts = [each for _, each in self._ranks.call("count_blocks")]
            self.open_store(min(self.count_blocks(), *counts))
        except BaseException:
            self.close()
            raise

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of other weights, ready on all ranks; may run while batches are computed."""
        return self._build(state_dict, is_on_disk=False)

    def load(self, directory: Path) -> Prepared:
        """A model of the weights in its directory; ranks on other hosts read their own."""
        return self._build(read_state_dict(directory), is_on_disk=True)

    def _build(self, state_dict: StateDict, *, is_on_disk: bool) -> Prepared:
        build = super().build
        return self._ranks.build(
            state_dict,
            expected_shapes(self._model_config),
            lambda ticket, *_: Prepared(build(state_dict).model, ticket),
            is_on_disk=is_on_disk,
        )

    def replace(self, prepared: Prepared) -> None:
        with self._ranks.in_step():
            self._ranks.call("install", prepared.ticket)
            super().replace(prepared)
            self._installed = prepared.ticket

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The logits of the rows that were asked for, in float32. Raises RankFailedError when a rank is lost."""
        with self._ranks.in_step():
            self._ranks.send(batch)
            logits = super().forward(batch)
            self._steps.add(self._installed, batch)
            if self._steps.num_steps % self._config.divergence_check_every == 0:
                self._compare()
            return logits

    def _compare(self) -> None:
        """Raise DivergenceError if another rank has computed something else than this one."""
        found = {"rank 0": self._steps.digests()}
        found |= {str(member): digests for member, digests in self._ranks.call("steps.digests")}
        require_equal(found, f"after {self._steps.num_steps} steps")

    def open_store(self, num_blocks: int) -> None:
        with self._ranks.in_step():
            self._ranks.call("open_store", num_blocks)
            super().open_store(num_blocks)

    def drop_store(self) -> None:
        with self._ranks.in_step():
            self._ranks.call("drop_store")
            super().drop_store()

    def drop_weights(self) -> None:
        with self._ranks.in_step():
            self._ranks.call("drop_weights")
            super().drop_weights()

    def check(self) -> None:
        self._ranks.check()

    def close(self) -> None:
        self._end()
        super().close()

    def _join_memory(self) -> Group:
        layout = _layout(self._config, self._model_config, self.dtype)
        fd = anonymous_memory(layout.num_bytes)
        try:
            self._ranks.call("join", layout, fd=fd)
            return MemoryGroup(self.shard, layout, fd, self.dtype, self._ranks.is_over)
        finally:
            os.close(fd)

    def _join_torch(self) -> Group:
        store, port = host_store(self.shard.size, self._address)
        # Each waits for all others, so they join while this one does.
        joining = self._ranks.begin("join", (self._address, port))
        group = TorchGroup(self.shard, self.device, store, self._address)
        self._ranks.on_loss, self._ranks.on_close = group.abort, group.close
        self._ranks.wait(joining)
        return group


class Rank(Worker, ModelRunner):
    """Another rank of a model: it carries out one message after the other, and decides nothing."""

    def __init__(
        self,
        rank: int,
        connection: Connection,
        config: EngineConfig,
        model_config: ModelConfig,
        num_threads: int,
        *,
        model_path: str | None = None,
        device: int | None = None,
    ) -> None:
        """One of another host has its own `model_path` and `device`."""
        ThreadPin(num_threads)
        Worker.__init__(self, connection, self.build, lambda: self.load(find_model(model_path or config.model_path)))
        ModelRunner.__init__(self, config, model_config, Shard(rank, config.tensor_parallel_size, device))
        self.steps = StepDigests()
        self._installed = 0

    def carry_out(self, message: Call | ForwardBatch) -> None:
        if isinstance(message, ForwardBatch):
            self.forward(message)
            self.steps.add(self._installed, message)
        else:
            super().carry_out(message)

    def join(self, by: GatherMemory | tuple[str, int]) -> None:
        """Gather with the others: through the memory that follows, or torch.distributed with this store."""
        if isinstance(by, tuple):
            store = join_store(*by, self.shard.size)
            self.group = TorchGroup(self.shard, self.device, store, own_address(by[0]))
            return
        fd = receive_memory(self._connection, by.num_bytes)
        assert fd is not None
        # A rank that waits in vain for rank 0 ends with this process, so the event is never set.
        self.group = MemoryGroup(self.shard, by, fd, self.dtype, Event())
        os.close(fd)

    def install(self, ticket: int) -> None:
        self.replace(self.take(ticket))
        self._installed = ticket


def _gathers_in_memory(config: EngineConfig, device: torch.device, *, is_here: bool) -> bool:
    is_possible = device.type == "cpu" and has_ordered_memory() and is_here
    if config.tensor_parallel_gather == "memory" and not is_possible:
        raise ConfigError(
            "EngineConfig.tensor_parallel_gather = 'memory': it needs ranks on CPUs of one host, of the kind x86-64 "
            "under Linux; take 'torch'"
        )
    return is_possible and config.tensor_parallel_gather != "torch"


def _layout(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> GatherMemory:
    """Room for the largest piece there can be. Of memory only what is used is ever taken."""
    widest = max(model.num_heads * model.head_dim, model.hidden_size, model.intermediate_size)
    most = max(config.tokens_per_step * widest, max(config.max_batch_size, MIN_ROWS) * model.vocab_size)
    return GatherMemory(config.tensor_parallel_size, most // config.tensor_parallel_size * dtype.itemsize)
