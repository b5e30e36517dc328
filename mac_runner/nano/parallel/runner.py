"""A model and its KV memory on all ranks of an engine, as if it were on one: rank 0's side.

Each call is told to the other ranks and then done here, with this rank's own part. From the first batch on the ranks
are in step; so when one of them fails in it, this one included, none can go on.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from contextlib import suppress
from itertools import count

import torch

from mac_runner.nano.architecture import ModelConfig, check_state_dict, expected_shapes
from mac_runner.nano.attention import ForwardBatch
from mac_runner.nano.checkpoint import StateDict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import ConfigError
from mac_runner.nano.model import MIN_ROWS
from mac_runner.nano.parallel.group import (
    GatherMemory,
    Group,
    MemoryGroup,
    Shard,
    TorchGroup,
    anonymous_memory,
    has_ordered_memory,
    host_store,
    require_divisible,
)
from mac_runner.nano.parallel.ranks import Begin, Build, Install, Join, OpenStore, Plain, Ranks, pack
from mac_runner.nano.runner import ModelRunner, Prepared, Runner


def make_runner(config: EngineConfig, model_config: ModelConfig, state_dict: StateDict, num_threads: int) -> Runner:
    """What an engine computes with, ready for its first batch. Raises NanoError."""
    if config.tensor_parallel_size > 1:
        return ParallelRunner(config, model_config, state_dict, num_threads)
    runner = ModelRunner(config, model_config)
    runner.replace(runner.build(state_dict))
    runner.open_store(runner.count_blocks())
    return runner


class ParallelRunner:
    """Computes batches on `tensor_parallel_size` ranks, of which it is the first."""

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, state_dict: StateDict, num_threads: int
    ) -> None:
        require_divisible(model_config, config.tensor_parallel_size)
        check_state_dict(state_dict, model_config)
        self._config = config
        self._model_config = model_config
        self._own = ModelRunner(config, model_config, Shard(0, config.tensor_parallel_size))
        self._tickets = count(1)
        self._forgotten = deque[int]()
        gathers_in_memory = _gathers_in_memory(config, self._own.device)
        self._ranks = Ranks(config.tensor_parallel_size, num_threads)
        # Whoever drops an engine without a word keeps no processes.
        self._end = weakref.finalize(self, self._ranks.close)
        try:
            begun = self._ranks.begin(Begin(config, model_config, num_threads))
            # While the others load torch, the weights are packed for them.
            self.replace(self.build(state_dict))
            self._ranks.wait(begun)
            self._own.group = self._join_memory() if gathers_in_memory else self._join_torch()
            self._ranks.on_loss = self._own.group.abort
            self._open_store(min(self._own.count_blocks(), *self._ranks.ask(Plain.COUNT_BLOCKS)))
        except BaseException:
            self.close()
            raise

    @property
    def max_model_len(self) -> int:
        """The longest context, in tokens."""
        return self._own.max_model_len

    @property
    def num_blocks(self) -> int:
        """The blocks of the KV memory, as many on each rank."""
        return self._own.num_blocks

    @property
    def has_weights(self) -> bool:
        """Whether there is a model in memory."""
        return self._own.has_weights

    @property
    def has_store(self) -> bool:
        """Whether there is KV memory."""
        return self._own.has_store

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of other weights, ready on all ranks; may run while batches are computed."""
        ticket, unwanted = next(self._tickets), self._take_forgotten()
        parcel, fd = pack(state_dict, expected_shapes(self._model_config))
        try:
            number = self._ranks.begin(Build(ticket, parcel, unwanted), fd)
        finally:
            os.close(fd)
        try:
            prepared = Prepared(self._own.build(state_dict).model, ticket)
        except BaseException:
            self._forgotten.append(ticket)
            raise
        # A finalizer may run anywhere, so it only takes note; the next order carries it.
        weakref.finalize(prepared, self._forgotten.append, ticket).atexit = False
        self._ranks.wait(number)
        return prepared

    def replace(self, prepared: Prepared) -> None:
        """Compute with this model from now on."""
        with self._ranks.in_step():
            self._ranks.ask(Install(prepared.ticket))
            self._own.replace(prepared)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The logits of the rows that were asked for, in float32. Raises RankFailedError when a rank is lost."""
        with self._ranks.in_step():
            self._ranks.tell(batch)
            return self._own.forward(batch)

    def drop_store(self) -> None:
        """Give the KV memory back."""
        with self._ranks.in_step():
            self._ranks.ask(Plain.DROP_STORE)
            self._own.drop_store()

    def drop_weights(self) -> None:
        """Give the weights' memory back."""
        with self._ranks.in_step():
            self._ranks.ask(Plain.DROP_WEIGHTS)
            self._own.drop_weights()

    def restore_store(self) -> None:
        """Take KV memory again, empty."""
        if not self.has_store:
            self._open_store(self.num_blocks)

    def check(self) -> None:
        """Raises RankFailedError when a rank was lost."""
        self._ranks.check()

    def close(self) -> None:
        """End the other ranks and give everything back; may be called twice."""
        self._end()
        self._own.close()

    def _take_forgotten(self) -> tuple[int, ...]:
        taken = list[int]()
        with suppress(IndexError):  # Another thread may take some of them.
            while True:
                taken.append(self._forgotten.popleft())
        return tuple(taken)

    def _open_store(self, num_blocks: int) -> None:
        with self._ranks.in_step():
            self._ranks.ask(OpenStore(num_blocks))
            self._own.open_store(num_blocks)

    def _join_memory(self) -> Group:
        layout = _layout(self._config, self._model_config, self._own.dtype)
        fd = anonymous_memory(layout.num_bytes)
        try:
            self._ranks.ask(Join(layout), fd)
            return MemoryGroup(self._shard, layout, fd, self._own.dtype, self._ranks.is_over)
        finally:
            os.close(fd)

    def _join_torch(self) -> Group:
        store, port = host_store(self._config.tensor_parallel_size)
        # Each waits for all others, so they join while this one does.
        number = self._ranks.begin(Join(port))
        group = TorchGroup(self._shard, self._own.device, store)
        self._ranks.wait(number)
        return group

    @property
    def _shard(self) -> Shard:
        return Shard(0, self._config.tensor_parallel_size)


def _gathers_in_memory(config: EngineConfig, device: torch.device) -> bool:
    is_possible = device.type == "cpu" and has_ordered_memory()
    if config.tensor_parallel_gather == "memory" and not is_possible:
        raise ConfigError(
            "EngineConfig.tensor_parallel_gather = 'memory': it needs ranks on CPUs of the kind x86-64 under Linux; "
            "take 'torch'"
        )
    return is_possible and config.tensor_parallel_gather != "torch"


def _layout(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> GatherMemory:
    """Room for the largest piece there can be. Of memory only what is used is ever taken."""
    widest = max(model.num_heads * model.head_dim, model.hidden_size, model.intermediate_size)
    most = max(config.tokens_per_step * widest, max(config.max_batch_size, MIN_ROWS) * model.vocab_size)
    return GatherMemory(config.tensor_parallel_size, most // config.tensor_parallel_size * dtype.itemsize)
