"""How many requests an engine takes at once, from what it said of itself after its start."""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.backends.base import lookahead_for
from mac_runner.backends.vllm.protocols import EngineConfig
from mac_runner.backends.vllm.settings import VllmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an engine holds: `requests` at once and `lookahead` more that wait inside it, none over `context_tokens`.

    `token_budget` bounds the tokens of all of them when it is admitted by tokens; else it is None.
    """

    requests: int
    lookahead: int
    token_budget: int | None
    context_tokens: int


def capacity_of(config: VllmConfig, engine: EngineConfig) -> Capacity:
    """By tokens: as many requests as are allowed, while their tokens fit. Else as many as fit at full length."""
    copies = engine.parallel_config.data_parallel_size
    slots = engine.scheduler_config.max_num_seqs * copies
    tokens, context_tokens = cache_tokens(engine), engine.model_config.max_model_len
    is_by_tokens = config.admission == "token_budget"
    requests = min(config.max_num_seqs_upper_bound, slots)
    if not is_by_tokens:
        requests = max(1, min(requests, tokens // copies // context_tokens * copies))  # None lies in two copies.
    # With a slot to spare in each copy the engine would not keep them waiting, but serve them beyond the bound.
    keeps_waiting = requests > slots - copies
    return Capacity(
        requests=requests,
        lookahead=lookahead_for(requests) if keeps_waiting else 0,
        token_budget=tokens if is_by_tokens else None,
        context_tokens=context_tokens,
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
