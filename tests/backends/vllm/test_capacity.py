from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from mac_runner.backends.vllm import VllmConfig
from mac_runner.backends.vllm.testing import Capacity, EngineConfig, cache_tokens, capacity_of


@dataclass
class Cache:
    num_gpu_blocks: int | None = 1000
    block_size: int = 16
    kv_cache_size_tokens: int | None = None


@dataclass
class Model:
    max_model_len: int = 4000


@dataclass
class Parallel:
    data_parallel_size: int = 1


@dataclass
class Scheduler:
    max_num_seqs: int = 64


@dataclass
class Configuration:
    cache_config: Cache = field(default_factory=Cache)
    model_config: Model = field(default_factory=Model)
    parallel_config: Parallel = field(default_factory=Parallel)
    scheduler_config: Scheduler = field(default_factory=Scheduler)


def capacity(admission: str, *, bound: int = 64, seqs: int = 64, copies: int = 1, length: int = 4000) -> Capacity:
    config = VllmConfig.model_validate(
        {"model": "m", "admission": admission, "max_num_seqs_upper_bound": bound, "data_parallel_size": copies}
    )
    engine = Configuration(
        model_config=Model(length), parallel_config=Parallel(copies), scheduler_config=Scheduler(seqs)
    )
    return capacity_of(config, cast("EngineConfig", engine))


@pytest.mark.parametrize(
    ("cache", "copies", "tokens"),
    [
        (Cache(), 1, 16_000),
        (Cache(), 2, 16_000),  # vLLM sums the blocks of all copies itself.
        (Cache(kv_cache_size_tokens=9_000), 1, 9_000),
        (Cache(kv_cache_size_tokens=9_000), 2, 18_000),
        (Cache(num_gpu_blocks=None), 1, 0),
    ],
)
def test_cache_holds_what_the_engine_says_of_each_copy_or_its_blocks(cache: Cache, copies: int, tokens: int) -> None:
    engine = Configuration(cache_config=cache, parallel_config=Parallel(copies))

    assert cache_tokens(cast("EngineConfig", engine)) == tokens


def test_by_tokens_all_that_are_allowed_share_the_cache() -> None:
    found = capacity("token_budget")

    assert (found.requests, found.token_budget, found.context_tokens) == (64, 16_000, 4000)


@pytest.mark.parametrize(("length", "requests"), [(4000, 4), (100, 64), (16_001, 1)])
def test_at_full_length_as_many_as_fit_and_one_at_least(length: int, requests: int) -> None:
    found = capacity("full_context", length=length)

    assert (found.requests, found.token_budget, found.context_tokens) == (requests, None, length)


def test_at_full_length_no_request_lies_in_two_copies() -> None:
    """Each of two copies holds 8,000 tokens of the 16,000."""
    assert capacity("full_context", length=5000, copies=2).requests == 2


@pytest.mark.parametrize(("bound", "seqs", "copies", "requests"), [(64, 8, 1, 8), (64, 8, 2, 16), (4, 8, 2, 4)])
def test_never_more_requests_than_the_bound_or_the_engines_batches(
    bound: int, seqs: int, copies: int, requests: int
) -> None:
    assert capacity("token_budget", bound=bound, seqs=seqs, copies=copies).requests == requests


@pytest.mark.parametrize(
    ("bound", "seqs", "copies", "lookahead"),
    [
        (64, 64, 1, 8),
        (3, 3, 1, 1),
        (64, 32, 2, 8),
        (65, 33, 2, 9),  # Shares are rounded up: one copy has a slot to spare that the bound does not count.
        (64, 100, 1, 0),
        (100, 64, 1, 8),
    ],
)
def test_engine_is_handed_more_only_where_its_own_bound_makes_them_wait(
    bound: int, seqs: int, copies: int, lookahead: int
) -> None:
    assert capacity("token_budget", bound=bound, seqs=seqs, copies=copies).lookahead == lookahead


def test_engine_that_is_admitted_at_full_length_and_could_take_more_is_handed_no_more() -> None:
    assert capacity("full_context", bound=64, seqs=64, length=4000) == Capacity(
        requests=4, lookahead=0, token_budget=None, context_tokens=4000
    )
