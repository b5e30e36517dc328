"""How many requests an engine takes at once, from what it said of itself after its start."""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.backends.vllm.releases import EngineConfig
from mac_runner.config import VllmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an engine holds: `requests` at once and, when it is admitted by tokens, `token_budget` of them all."""

    requests: int
    token_budget: int | None
    context_tokens: int


def capacity_of(config: VllmConfig, engine: EngineConfig) -> Capacity:
    """By tokens: as many requests as are allowed, while their tokens fit. Else as many as fit at full length."""
    allowed = min(
        config.max_num_seqs_upper_bound,
        engine.scheduler_config.max_num_seqs * engine.parallel_config.data_parallel_size,
    )
    tokens, context_tokens = cache_tokens(engine), engine.model_config.max_model_len
    if config.admission == "token_budget":
        return Capacity(requests=allowed, token_budget=tokens, context_tokens=context_tokens)
    return Capacity(
        requests=max(1, min(allowed, tokens // context_tokens)), token_budget=None, context_tokens=context_tokens
    )


def cache_tokens(engine: EngineConfig) -> int:
    """How many tokens the KV caches of all copies hold.

    Blocks times their size is right only for models that keep all tokens of all layers alike; where vLLM says
    itself what one copy holds, that is taken.
    """
    cache = engine.cache_config
    if cache.kv_cache_size_tokens is not None:
        return cache.kv_cache_size_tokens * engine.parallel_config.data_parallel_size
    return (cache.num_gpu_blocks or 0) * cache.block_size
