"""The same bits whatever else runs, on the CPU: alone or in a crowd, in any row, after a prefix hit, cut or whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from mac_runner.nano import SamplingParams, TrainingSample
from tests.nano.crowds import PROMPT, alone, finish, needs_packing
from tests.nano.tiny_models import VOCAB_SIZE, ModelMaker

Bits = tuple[tuple[int, ...], tuple[float, ...]]
Dtype = Literal["float32", "bfloat16"]

PARAMS = SamplingParams(temperature=0.9, max_tokens=12, seed=11, ignore_eos=True)
KINDS = ("llama", "qwen2-window", "qwen3")
DTYPES = ("float32", "bfloat16")
ROOMY = {"num_blocks": 400, "max_batch_size": 40, "max_tokens_per_batch": 512}

pytestmark = needs_packing


def bits(sample: TrainingSample) -> Bits:
    return sample.completion_tokens, sample.logprobs


@cache
def expected(path: Path, **changes: Any) -> Bits:
    """What the request has alone."""
    with alone(path, **ROOMY, **changes) as engine:
        return bits(engine.generate([PROMPT], PARAMS)[0])


@pytest.mark.parametrize(
    ("kind", "dtype", "cache_type", "num_threads"),
    [
        ("llama", "float32", "paged", 1),
        ("llama", "bfloat16", "radix", 1),
        ("qwen2-window", "float32", "radix", 1),
        ("qwen2-window", "bfloat16", "paged", 1),
        ("qwen3", "float32", "paged", 2),
        ("qwen3", "float32", "radix", 1),
    ],
)
def test_request_in_a_crowd_has_the_bits_it_has_alone(
    model: ModelMaker, kind: str, dtype: Dtype, cache_type: str, num_threads: int
) -> None:
    """Requests of all lengths come and go while the engine steps."""
    same = {"dtype": dtype, "num_threads": num_threads}
    # Two threads have to wait for each other, which takes long on a machine that others use too.
    seeds, size = (2, 33) if num_threads == 1 else (1, 8)
    for seed in range(seeds):
        chance, ours, found, count = Random(seed), -1, list[TrainingSample](), 0
        with alone(model(kind), **{**ROOMY, "max_tokens_per_batch": 96}, cache_type=cache_type, **same) as engine:
            for _ in range(size):
                prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 150))]
                if chance.random() < 0.3:
                    prompt = PROMPT[: chance.randrange(1, 100)] + prompt[:20]
                hot, length = chance.choice((0.0, 1.0)), chance.randrange(1, 15)
                engine.add_request(prompt, SamplingParams(temperature=hot, max_tokens=length, ignore_eos=True))
                if chance.random() < 0.7:
                    if count == 3 * seed:
                        ours = engine.add_request(PROMPT, PARAMS)
                    found += engine.step()
                    count += 1
            found += finish(engine)
        assert [bits(sample) for sample in found if sample.request_id == ours] == [expected(model(kind), **same)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*KINDS, "qwen2-deep"])
def test_any_row_of_a_batch_of_33_or_of_3_has_the_bits_of_a_request_alone(
    model: ModelMaker, kind: str, dtype: Dtype
) -> None:
    """With a single row oneDNN sums up another way, on this kind of CPU from some 1,280 summands on and in float32.

    On a CPU where it does not, the deep model says nothing of it. No other shape shows whether a row alone is padded.
    """
    with alone(model(kind), **{**ROOMY, "max_tokens_per_batch": 4096}, dtype=dtype) as engine:
        rows = [bits(sample) for size in (3, 33) for sample in engine.generate([PROMPT] * size, PARAMS)]

    assert set(rows) == {expected(model(kind), dtype=dtype)}


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("num_shared", [15, 16, 40, 64, 99, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefix_hit_changes_no_bit(
    model: ModelMaker, dtype: Dtype, cache_type: str, block_size: int, num_shared: int
) -> None:
    with alone(model("qwen2"), **ROOMY, dtype=dtype, cache_type=cache_type, block_size=block_size) as engine:
        engine.generate([[*PROMPT[:num_shared], 1, 2, 3]], SamplingParams(max_tokens=2))
        sample = engine.generate([PROMPT], PARAMS)[0]

    num_cached = min(num_shared, 99) // block_size * block_size
    assert (bits(sample), sample.num_cached_tokens) == (expected(model("qwen2"), dtype=dtype), num_cached)


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_kv_of_generated_tokens_has_the_bits_of_the_same_tokens_in_a_prompt(model: ModelMaker, cache_type: str) -> None:
    """So the next turn of a conversation finds the last one's reply."""
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with alone(model("qwen3"), cache_type=cache_type) as engine:
        first = engine.generate([PROMPT], params)[0]
        second_prompt = [*first.prompt_tokens, *first.completion_tokens, 1, 2, 3]
        second = engine.generate([second_prompt], PARAMS)[0]
        engine.flush_cache()
        again = engine.generate([second_prompt], PARAMS)[0]

    assert (second.num_cached_tokens, again.num_cached_tokens) == (144, 0)
    assert bits(second) == bits(again)


@pytest.mark.parametrize("num_blocks", [9, 13])
@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_request_that_was_preempted_has_the_bits_it_has_alone(
    model: ModelMaker, cache_type: str, num_blocks: int
) -> None:
    with alone(model("llama"), cache_type=cache_type, admission="preempt", num_blocks=num_blocks) as engine:
        for number in range(3):
            engine.add_request([number] * 30, SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True))
        ours = engine.add_request(PROMPT, PARAMS)
        found = finish(engine)

        assert engine.stats().num_preemptions > 0
    assert [bits(sample) for sample in found if sample.request_id == ours] == [expected(model("llama"))]


@pytest.mark.parametrize("max_tokens_per_batch", [2, 3, 17, 20, 48, 70, 200])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prompt_in_pieces_has_the_bits_of_a_whole_one(
    model: ModelMaker, dtype: Dtype, kind: str, max_tokens_per_batch: int
) -> None:
    with alone(model(kind), dtype=dtype, max_batch_size=1, max_tokens_per_batch=max_tokens_per_batch) as engine:
        assert bits(engine.generate([PROMPT], PARAMS)[0]) == expected(model(kind), dtype=dtype)


def test_long_prompt_has_the_same_bits_in_pieces_in_a_crowd_and_after_a_hit(model: ModelMaker) -> None:
    """Behind 512 keys the kernel begins to work in parts."""
    path, chance = model("llama"), Random(3)
    prompt = [chance.randrange(VOCAB_SIZE) for _ in range(700)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with alone(path, max_tokens_per_batch=900) as engine:
        whole = bits(engine.generate([prompt], params)[0])

    with alone(path, max_tokens_per_batch=90, num_blocks=400) as engine:
        samples = engine.generate([[5] * 60, prompt, prompt[:600], [*prompt[:300], 1], prompt], params)

    assert (bits(samples[1]), bits(samples[4])) == (whole, whole)
