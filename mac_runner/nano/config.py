"""The settings of an engine, given once when it is made. Frozen, and checked as they are built."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import Literal

from mac_runner.nano.errors import ConfigError

KV_CACHE_BYTES = 1 << 30
WAITING_MAX = 100_000
RANKS_MAX = 64
REPLICAS_MAX = 256
THREADS_MAX = 512
"""For one process. More is a mistake: no machine has as many cores, and each thread takes memory."""
_COUNTS: dict[str, float] = {
    "block_size": inf,
    "max_batch_size": inf,
    "max_tokens_per_batch": inf,
    "max_model_len": inf,
    "max_waiting": inf,
    "kv_cache_bytes": inf,
    "num_blocks": inf,
    "num_threads": THREADS_MAX,
    "tensor_parallel_size": RANKS_MAX,
    "data_parallel_size": REPLICAS_MAX,
    "divergence_check_every": inf,
    "sync_every": inf,
}
"""The settings that count something, and the most they may be."""
_OPTIONAL = ("max_model_len", "num_blocks", "num_threads")
_KNOWN = {
    "cache_type": ("paged", "radix"),
    "admission": ("reserve", "preempt"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda"),
    "attention": ("auto", "torch"),
    "tensor_parallel_gather": ("auto", "memory", "torch"),
    "data_parallel_mode": ("independent", "lock_step"),
}


def is_whole(value: object) -> bool:
    """Whether a value is an int or an integer of numpy's; a boolean is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def are_texts(value: object) -> bool:
    """Whether a value is a tuple of texts, none of them empty."""
    return isinstance(value, tuple) and all(isinstance(each, str) and each != "" for each in value)


def are_token_ids(value: object) -> bool:
    """Whether a value is a frozenset of whole numbers."""
    return isinstance(value, frozenset) and all(map(is_whole, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The part of the settings that `schedule()` reads."""

    max_batch_size: int
    max_tokens_per_batch: int
    block_size: int
    admission: Literal["reserve", "preempt"] = "reserve"
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of one engine. Raises ConfigError, which names the setting.

    `max_tokens_per_batch` bounds the tokens of a step. A step that is full of running requests still has room for one
    token of a prompt. `max_model_len` is the longest context; None, or more than the model's own, is the model's own.

    `admission`: `reserve` admits a request when the KV cache holds all that it may need. `preempt` admits more; when
    the cache is full, the latest requests start again. `dtype` "auto" is the checkpoint's, or float32 on a CPU without
    instructions for it. `attention` "auto" is compiled kernels on a CPU, which give a request the same bits whatever
    else runs, and torch elsewhere.

    `tensor_parallel_size` processes share the work of each step. They gather through shared `memory` on a CPU that can,
    otherwise over `torch` (torch.distributed: gloo on a CPU, NCCL on GPUs). `num_threads` is for each process.

    `data_parallel_size` replicas, each of `tensor_parallel_size` processes, share the requests. They take their steps
    as they come (`independent`), or all together (`lock_step`): then they meet every `sync_every` steps. Ranks that
    share a model compare all that they have computed every `divergence_check_every` steps.
    """

    model_path: str
    cache_type: Literal["paged", "radix"] = "paged"
    block_size: int = 16
    max_batch_size: int = 256
    max_tokens_per_batch: int = 512
    max_model_len: int | None = 8192
    max_waiting: int = WAITING_MAX
    prefix_caching: bool = True
    admission: Literal["reserve", "preempt"] = "reserve"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "torch"] = "auto"
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    tensor_parallel_gather: Literal["auto", "memory", "torch"] = "auto"
    data_parallel_size: int = 1
    data_parallel_mode: Literal["independent", "lock_step"] = "independent"
    divergence_check_every: int = 64
    sync_every: int = 1
    num_blocks: int | None = None
    kv_cache_bytes: int = KV_CACHE_BYTES
    gpu_memory_utilization: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in _COUNTS.items():
            value = getattr(self, name)
            is_counted = is_whole(value) and 1 <= value <= most
            rule = "is a whole number from 1" + (f" to {most}" if most != inf else "")
            self._require(is_counted or (value is None and name in _OPTIONAL), name, rule)
        self._require(is_whole(self.seed), "seed", "is a whole number")
        for name, known in _KNOWN.items():
            self._require(getattr(self, name) in known, name, f"is one of {', '.join(map(repr, known))}")
        is_together = self.data_parallel_mode == "lock_step"
        self._require(is_together or self.sync_every == 1, "sync_every", "needs data_parallel_mode = 'lock_step'")
        share = self.gpu_memory_utilization
        self._require(is_number(share) and 0.0 < share <= 1.0, "gpu_memory_utilization", "is in (0, 1]")

    def _require(self, is_met: bool, name: str, rule: str) -> None:
        if not is_met:
            raise ConfigError(f"EngineConfig.{name} = {getattr(self, name)!r}: {name} {rule}")

    @property
    def tokens_per_step(self) -> int:
        return max(self.max_tokens_per_batch, self.max_batch_size + 1)

    def scheduling(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_batch_size=self.max_batch_size,
            max_tokens_per_batch=self.tokens_per_step,
            block_size=self.block_size,
            admission=self.admission,
            prefix_caching=self.prefix_caching,
        )
