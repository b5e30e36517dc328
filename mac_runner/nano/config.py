"""What an engine is told once, when it is made. Frozen, and checked as it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mac_runner.nano.errors import ConfigError

KV_CACHE_BYTES = 1 << 30
WAITING_MAX = 100_000
RANKS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What `schedule()` has to respect."""

    max_batch_size: int
    max_tokens_per_batch: int
    block_size: int
    admission: Literal["reserve", "preempt"] = "reserve"
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything about one engine.

    `admission` says what is done for requests whose length is not known beforehand: `reserve` admits a request when the
    KV cache holds all it may need, `preempt` admits more and, when the cache is full, starts the latest anew. `dtype`
    "auto" is the checkpoint's, or float32 on a CPU that has no instructions for it. `attention` "auto" is that of
    compiled kernels on a CPU, which give a request the same bits whatever else runs, and torch's elsewhere.

    `tensor_parallel_size` processes share the work of each step. They gather through shared `memory` on a CPU that can,
    otherwise over `torch` (torch.distributed: gloo on a CPU, NCCL on GPUs). `num_threads` is for each of them.
    """

    model_path: str
    cache_type: Literal["paged", "radix"] = "paged"
    block_size: int = 16
    max_batch_size: int = 256
    max_tokens_per_batch: int = 512
    max_model_len: int = 8192
    max_waiting: int = WAITING_MAX
    prefix_caching: bool = True
    admission: Literal["reserve", "preempt"] = "reserve"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "torch"] = "auto"
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    tensor_parallel_gather: Literal["auto", "memory", "torch"] = "auto"
    num_blocks: int | None = None
    kv_cache_bytes: int = KV_CACHE_BYTES
    gpu_memory_utilization: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batch_size", "max_tokens_per_batch", "max_model_len", "max_waiting"):
            self._require(getattr(self, name) >= 1, name, "must be at least 1")
        self._require(self.cache_type in ("paged", "radix"), "cache_type", "is 'paged' or 'radix'")
        self._require(self.admission in ("reserve", "preempt"), "admission", "is 'reserve' or 'preempt'")
        self._require(self.num_blocks is None or self.num_blocks >= 1, "num_blocks", "must be at least 1")
        self._require(self.num_threads is None or self.num_threads >= 1, "num_threads", "must be at least 1")
        size = self.tensor_parallel_size
        self._require(1 <= size <= RANKS_MAX, "tensor_parallel_size", f"is from 1 to {RANKS_MAX}")
        gathers = ("auto", "memory", "torch")
        self._require(self.tensor_parallel_gather in gathers, "tensor_parallel_gather", f"is one of {gathers}")
        self._require(0.0 < self.gpu_memory_utilization <= 1.0, "gpu_memory_utilization", "is in (0, 1]")
        self._require(self.attention in ("auto", "torch"), "attention", "is 'auto' or 'torch'")
        # A step that is full of running requests must still have room for a piece of a prompt.
        needed = self.max_batch_size + 1
        self._require(self.max_tokens_per_batch >= needed, "max_tokens_per_batch", f"must be at least {needed}")

    def _require(self, is_met: bool, name: str, rule: str) -> None:
        if not is_met:
            raise ConfigError(f"EngineConfig.{name} = {getattr(self, name)!r}: {name} {rule}")

    def scheduling(self) -> SchedulerConfig:
        """What of this concerns `schedule()`."""
        return SchedulerConfig(
            max_batch_size=self.max_batch_size,
            max_tokens_per_batch=self.max_tokens_per_batch,
            block_size=self.block_size,
            admission=self.admission,
            prefix_caching=self.prefix_caching,
        )
