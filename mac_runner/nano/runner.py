"""A model and its KV memory on one device, which computes batches and decides nothing; and the weights that come next.

Weights are replaced as a whole, between two batches: `WeightSync` checks them when they are handed over, builds the new
model beside the steps, and installs it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from mac_runner.nano.architecture import ModelConfig, check_update
from mac_runner.nano.attention import ForwardBatch, KVStore, TorchKVStore, bytes_per_token
from mac_runner.nano.cache import blocks_for
from mac_runner.nano.checkpoint import StateDict, read_state_dict
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import ConfigError, EngineStoppedError, StaleVersionError
from mac_runner.nano.model import Model, build_model, can_pack, model_forward
from mac_runner.nano.parallel.group import ALONE, WHOLE, Group, Shard

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ADDRESSES = 1 << 47
"""The bytes that a process can address; libraries count in numbers that more would overflow."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Prepared:
    """A model that is ready to be installed; other processes keep it, or their parts of it, under `ticket`."""

    model: Model | None
    ticket: int = 0


class ModelRunner:
    """Computes batches, or its shard of them, on one device. It is given weights first, then KV memory."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig, shard: Shard = WHOLE) -> None:
        self.shard = shard
        self.group: Group = ALONE
        self.device = _device(config, shard)
        self.dtype = _dtype(config, model_config, self.device)
        self.max_model_len = min(config.max_model_len or model_config.max_model_len, model_config.max_model_len)
        self.num_blocks = 0
        self._config = config
        self._model_config = model_config
        self._is_compiled = self.device.type == "cpu" and config.attention != "torch"
        self._model: Model | None = None
        self._store: KVStore | None = None

    def build(self, state_dict: StateDict) -> Prepared:
        """A model of other weights; may run beside batches."""
        return Prepared(
            build_model(state_dict, self._model_config, self.dtype, self.device, self.max_model_len, self.shard)
        )

    def load(self, directory: Path) -> Prepared:
        """A model of the weights in its directory, which every host has."""
        return self.build(read_state_dict(directory))

    def replace(self, prepared: Prepared) -> None:
        self._model = prepared.model

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The logits [logit rows, vocabulary] of a batch, in float32."""
        if self._model is None or self._store is None:
            raise EngineStoppedError("the engine is asleep: wake it up first")
        with torch.inference_mode():
            return model_forward(self._model, batch, self._store, self.group)

    @property
    def has_weights(self) -> bool:
        return self._model is not None

    def drop_store(self) -> None:
        self._store = None

    def drop_weights(self) -> None:
        self._model = None

    def open_store(self, num_blocks: int) -> None:
        """Take KV memory of so many blocks, empty. Raises ConfigError where the machine does not have it."""
        self.num_blocks = num_blocks
        num_bytes = num_blocks * self._block_bytes()
        try:
            self._store = self._make_store(num_blocks, num_bytes)
        except (MemoryError, RuntimeError) as error:  # The first is numpy's, the second torch's.
            raise ConfigError(
                f"{num_blocks} blocks of KV cache are {num_bytes} bytes, which cannot be had ({error}): "
                "lower num_blocks or kv_cache_bytes"
            ) from error

    def _make_store(self, num_blocks: int, num_bytes: int) -> KVStore:
        if num_bytes >= _ADDRESSES:
            raise MemoryError("no process has as many addresses")
        return make_kv_store(
            self.shard.local(self._model_config),
            num_blocks,
            self._config.block_size,
            self.dtype,
            self.device,
            compiled=self._is_compiled,
        )

    def _block_bytes(self) -> int:
        return bytes_per_token(self.shard.local(self._model_config), self.dtype) * self._config.block_size

    def count_blocks(self) -> int:
        """The blocks that are asked for, or that fit in memory beside the weights. Raises ConfigError for none."""
        if self._config.num_blocks is not None:
            return self._config.num_blocks
        # On a CPU the ranks share one memory.
        budget = self._config.kv_cache_bytes // self.shard.size
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            budget = int(free - total * (1.0 - self._config.gpu_memory_utilization))
        per_block = self._block_bytes()
        # The most requests at once cannot fill more than this.
        most = self._config.max_batch_size * blocks_for(self.max_model_len, self._config.block_size)
        count = min(budget // per_block, most)
        if count < 1:
            raise ConfigError(f"{budget} bytes of KV cache do not hold one block of {per_block}: give it more")
        return count

    def check(self) -> None:
        """Raise EngineStoppedError if it has died; one that runs in this process has not."""

    def close(self) -> None:
        """Give everything back; may be called twice."""
        self._store = self._model = None


class ModelHolder(Protocol):
    """Builds models, also beside batches, and computes with one of them."""

    def build(self, state_dict: StateDict) -> Prepared: ...

    def replace(self, prepared: Prepared) -> None: ...


class WeightSync:
    """The weights that a runner computes with, and those that come next.

    `on_install` is called with each new version.
    """

    def __init__(self, runner: ModelHolder, model_config: ModelConfig, on_install: Callable[[int], None]) -> None:
        self.version = 0
        self._is_closed = False
        self._on_install = on_install
        self._runner = runner
        self._model_config = model_config
        self._coming: Future[Prepared] | None = None
        self._coming_version: int | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")  # Its thread starts when needed.

    def update(self, state_dict: StateDict, version: int | None) -> None:
        self.poll(wait=True)
        self.require_newer(version)
        self.install(self.prepare(state_dict), version)

    def begin(self, state_dict: StateDict, version: int | None) -> None:
        """Build a model of these weights; the first `poll` after that installs it. Until then they must not change."""
        self.poll(wait=True)
        self.require_newer(version)
        check_update(state_dict, self._model_config)
        self._coming = self._builder.submit(self._runner.build, state_dict)
        self._coming_version = version

    def poll(self, *, wait: bool = False) -> bool:
        """Install what has become ready; whether anything was."""
        if self._coming is None or not (wait or self._coming.done()):
            return False
        coming, self._coming = self._coming, None
        self.install(coming.result(), self._coming_version)
        return True

    def close(self) -> None:
        """Wait for the thread, and forget what it made."""
        self._coming, self._is_closed = None, True
        self._builder.shutdown()

    def prepare(self, state_dict: StateDict) -> Prepared:
        """A model of these weights, checked; another thread may call it beside the steps."""
        check_update(state_dict, self._model_config)
        return self._runner.build(state_dict)

    def install(self, prepared: Prepared, version: int | None = None) -> None:
        """Compute with a prepared model from now on. Raises StaleVersionError for a version that is not newer.

        Raises EngineStoppedError after the end.
        """
        if self._is_closed:
            raise EngineStoppedError("the engine was shut down: make another one")
        self.require_newer(version)
        self._runner.replace(prepared)
        self.version = self.version + 1 if version is None else version
        self._on_install(self.version)

    def require_newer(self, version: int | None) -> None:
        """Raise StaleVersionError for a version that is not above the one in use."""
        if version is not None and version <= self.version:
            raise StaleVersionError(
                f"weights of version {version}: the engine has {self.version}, and versions only grow"
            )


def _device(config: EngineConfig, shard: Shard) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = shard.size if shard.device is None else shard.device + 1
    if count < needed:
        raise ConfigError(
            f"EngineConfig.device = {config.device!r}: {needed} of kind cuda are needed, torch finds {count} here"
        )
    # Each rank has a device of its own; a process alone takes the current one.
    if shard.device is not None:
        return torch.device("cuda", shard.device)
    return torch.device("cuda", shard.rank) if shard.size > 1 else torch.device("cuda")


def _dtype(config: EngineConfig, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "float16" and device.type == "cpu":
        raise ConfigError("EngineConfig.dtype = 'float16': on a CPU it is 'bfloat16' or 'float32'")
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    wanted = _DTYPES.get(model_config.dtype, torch.float32)
    # Without instructions for it a CPU computes in half the bits at a fraction of the speed.
    return wanted if device.type != "cpu" or can_pack(wanted, device) else torch.float32


def make_kv_store(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> KVStore:
    """Memory for so many blocks. Raises ConfigError for settings that the compiled kernels do not have."""
    if compiled:
        from mac_runner.nano.cpu.attention import CompiledKVStore

        return CompiledKVStore(config, num_blocks, block_size, dtype)
    return TorchKVStore(config, num_blocks, block_size, dtype, device)
