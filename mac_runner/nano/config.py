"""The settings of an engine, and those of a request: how tokens are chosen, and when to stop. Frozen, and checked.

`recommended_sampling` reads the settings that a model's makers recommend, from its `generation_config.json`. Servers
begin from these where a request leaves a setting open. `InferenceEngine` itself does not look at them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from mac_runner.nano.checkpoint import read_settings
from mac_runner.nano.errors import ConfigError, InvalidRequestError, ModelError

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
LOGPROBS_MAX = 100
STOPS_MAX = 64
CHOICES_MAX = 10_000
FACTOR_MAX = 100
"""`repetition_penalty` lies between 1 / FACTOR_MAX and this. Beyond it logits exceed the precision of float32."""
PENALTY_MAX = 100
_TAKEN: dict[str, tuple[tuple[type, ...], type]] = {
    "stop": ((list,), tuple),
    "choices": ((list,), tuple),
    "stop_token_ids": ((list, tuple, set), frozenset),
}
"""The kinds that are converted, and the kind that a field holds."""
GENERATION_FILE = "generation_config.json"


def is_whole(value: object) -> bool:
    """Whether a value is an int or an integer of numpy's; a boolean is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) and each != "" for each in value)


def are_token_ids(value: object) -> bool:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen.

    Applied in this order: penalties, the constraint, temperature, `min_p`, `top_k`, `top_p`. A temperature of 0 takes
    the likeliest token. With a `seed` the choices do not depend on other requests; without it they follow from the
    engine's seed and the order of requests. `top_logprobs` is how many of the likeliest tokens to return beside the
    chosen one. `choices` and `json_schema` constrain the reply; at most one of them.

    Lists are accepted for tuples and sets, and a dict for a schema; the fields hold tuples, a frozenset, and the
    schema's text. Raises InvalidRequestError, which names the setting.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    seed: int | None = None
    choices: tuple[str, ...] = field(default=())
    json_schema: str | None = None

    def __post_init__(self) -> None:
        self._normalize()
        self._require(is_number(self.temperature) and 0.0 <= self.temperature < inf, "temperature", "is finite, from 0")
        self._require(is_whole(self.max_tokens) and self.max_tokens >= 1, "max_tokens", "is a whole number from 1")
        self._require(is_whole(self.top_k) and self.top_k >= 0, "top_k", "is a whole number; 0 means all")
        self._require(is_number(self.top_p) and 0.0 < self.top_p <= 1.0, "top_p", "is in (0, 1]")
        self._require(is_number(self.min_p) and 0.0 <= self.min_p <= 1.0, "min_p", "is in [0, 1]")
        factor = self.repetition_penalty
        is_bounded = is_number(factor) and 1 / FACTOR_MAX <= factor <= FACTOR_MAX
        self._require(is_bounded, "repetition_penalty", f"is from {1 / FACTOR_MAX} to {FACTOR_MAX}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            self._require(
                is_number(value) and abs(value) <= PENALTY_MAX, name, f"is from -{PENALTY_MAX} to {PENALTY_MAX}"
            )
        is_listed = is_whole(self.top_logprobs) and 0 <= self.top_logprobs <= LOGPROBS_MAX
        self._require(is_listed, "top_logprobs", f"is a whole number from 0 to {LOGPROBS_MAX}")
        self._require(self.seed is None or is_whole(self.seed), "seed", "is a whole number or None")
        self._require(are_token_ids(self.stop_token_ids), "stop_token_ids", "is a set of token ids")
        for name, most in (("stop", STOPS_MAX), ("choices", CHOICES_MAX)):
            texts = getattr(self, name)
            self._require(
                are_texts(texts) and len(texts) <= most, name, f"is a tuple of up to {most} texts, none empty"
            )
        self._require(
            self.json_schema is None or isinstance(self.json_schema, str), "json_schema", "is a text or a dict"
        )
        self._require(not (self.choices and self.json_schema), "json_schema", "cannot be had together with choices")

    def _normalize(self) -> None:
        """Convert lists and a schema to what the fields hold; leave other kinds to be refused."""
        for name, (kinds, held_as) in _TAKEN.items():
            if isinstance(given := getattr(self, name), kinds):
                with suppress(TypeError):  # An item that no set can hold.
                    object.__setattr__(self, name, held_as(given))
        schema: Any = self.json_schema
        if isinstance(schema, Mapping):
            try:
                object.__setattr__(self, "json_schema", json.dumps(schema))
            except (TypeError, ValueError) as error:
                raise InvalidRequestError(f"SamplingParams.json_schema cannot be written as JSON: {error}") from error

    def _require(self, is_met: bool, name: str, rule: str) -> None:
        if not is_met:
            raise InvalidRequestError(f"SamplingParams.{name} = {getattr(self, name)!r}: {name} {rule}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def has_filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar decides which tokens may follow."""
        return bool(self.choices) or self.json_schema is not None


def recommended_sampling(directory: Path, base: SamplingParams | None = None) -> SamplingParams:
    """`base` with what the model in `directory` recommends. Raises ModelError for settings that are wrong."""
    base, recommended = base or SamplingParams(), read_settings(directory / GENERATION_FILE)
    top_k = recommended.get("top_k", base.top_k)
    if not isinstance(top_k, int) or isinstance(top_k, bool):
        raise ModelError(f"{recommended.path}: top_k is {top_k!r}, and should be a whole number")
    try:
        return SamplingParams(
            temperature=recommended.number("temperature", base.temperature),
            top_p=recommended.number("top_p", base.top_p),
            min_p=recommended.number("min_p", base.min_p),
            repetition_penalty=recommended.number("repetition_penalty", base.repetition_penalty),
            top_k=max(top_k, 0),
        )
    except InvalidRequestError as error:
        raise ModelError(f"{recommended.path} recommends a wrong setting: {error}") from error
