"""The same bits whatever else runs, on the CPU: alone or in a crowd, in any row, after a prefix hit, cut or whole."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

import pytest
import torch

from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams, TrainingSample
from mac_runner.nano.testing import Linear, can_pack
from tests.nano.tiny_models import VOCAB_SIZE, ModelMaker

Bits = tuple[tuple[int, ...], tuple[float, ...]]
Dtype = Literal["float32", "bfloat16"]

PROMPT = [Random(5).randrange(VOCAB_SIZE) for _ in range(100)]
PARAMS = SamplingParams(temperature=0.9, max_tokens=12, seed=11, ignore_eos=True)
KINDS = ("llama", "qwen2-window", "qwen3")
DTYPES = ("float32", "bfloat16")

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="oneDNN is not there, and nothing is promised without it"
)


def config(path: object, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {"model_path": str(path), "max_batch_size": 40, "num_threads": 1, **changes}
    return EngineConfig(**settings)  # type: ignore[arg-type]


def bits(sample: TrainingSample) -> Bits:
    return sample.completion_tokens, sample.logprobs


def alone(path: object, **changes: object) -> Bits:
    with InferenceEngine(config(path, **changes)) as engine:
        return bits(engine.generate([PROMPT], PARAMS)[0])


def crowd(engine: InferenceEngine, seed: int, size: int) -> Iterator[set[int]]:
    """Requests of all lengths that come and go while the engine steps; yields their numbers before each step."""
    chance = Random(seed)
    numbers = set[int]()
    for _ in range(size):
        prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 150))]
        if chance.random() < 0.3:
            prompt = PROMPT[: chance.randrange(1, 100)] + prompt[:20]
        params = SamplingParams(
            temperature=chance.choice((0.0, 1.0)), max_tokens=chance.randrange(1, 15), ignore_eos=True
        )
        numbers.add(engine.add_request(prompt, params))
        if chance.random() < 0.7:
            yield numbers


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
    settings: dict[str, object] = {"dtype": dtype, "cache_type": cache_type, "num_threads": num_threads}
    expected = alone(model(kind), **settings)

    # Two threads have to wait for each other, which takes long on a machine that others use too.
    for seed in range(2 if num_threads == 1 else 1):
        with InferenceEngine(config(model(kind), max_tokens_per_batch=96, **settings)) as engine:
            found = list[TrainingSample]()
            ours = -1
            for count, _ in enumerate(crowd(engine, seed, 33 if num_threads == 1 else 8)):
                if count == 3 * seed:
                    ours = engine.add_request(PROMPT, PARAMS)
                found += engine.step()
            while engine.has_pending():
                found += engine.step()
        assert [bits(sample) for sample in found if sample.request_id == ours] == [expected]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_row_of_a_batch_of_33_has_the_same_bits(model: ModelMaker, kind: str, dtype: Dtype) -> None:
    expected = alone(model(kind), dtype=dtype)

    with InferenceEngine(config(model(kind), max_tokens_per_batch=4096, dtype=dtype)) as engine:
        samples = engine.generate([PROMPT] * 33, PARAMS)

    assert {bits(sample) for sample in samples} == {expected}


def test_request_alone_has_the_bits_it_has_in_company_where_sums_are_long(model: ModelMaker) -> None:
    """With a single row oneDNN sums up another way, on this kind of CPU from some 1,280 summands on and in float32.

    On a CPU where it does not, this test says nothing. No other shape shows whether a row that is alone is padded.
    """
    path = model("qwen2-deep")
    expected = alone(path)

    with InferenceEngine(config(path, max_tokens_per_batch=1024)) as engine:
        samples = engine.generate([PROMPT] * 3, PARAMS)

    assert {bits(sample) for sample in samples} == {expected}


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("num_shared", [15, 16, 40, 64, 99, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefix_hit_changes_no_bit(
    model: ModelMaker, dtype: Dtype, cache_type: str, block_size: int, num_shared: int
) -> None:
    expected = alone(model("qwen2"), dtype=dtype)

    with InferenceEngine(config(model("qwen2"), dtype=dtype, cache_type=cache_type, block_size=block_size)) as engine:
        engine.generate([[*PROMPT[:num_shared], 1, 2, 3]], SamplingParams(max_tokens=2))
        sample = engine.generate([PROMPT], PARAMS)[0]

    assert (bits(sample), sample.num_cached_tokens) == (expected, min(num_shared, 99) // block_size * block_size)


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_kv_of_generated_tokens_has_the_bits_of_the_same_tokens_in_a_prompt(model: ModelMaker, cache_type: str) -> None:
    """So the next turn of a conversation finds the last one's reply."""
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with InferenceEngine(config(model("qwen3"), cache_type=cache_type)) as engine:
        first = engine.generate([PROMPT], params)[0]
        second_prompt = [*first.prompt_tokens, *first.completion_tokens, 1, 2, 3]
        second = engine.generate([second_prompt], PARAMS)[0]
    with InferenceEngine(config(model("qwen3"), cache_type=cache_type)) as engine:
        alone_again = engine.generate([second_prompt], PARAMS)[0]

    assert second.num_cached_tokens == 144
    assert bits(second) == bits(alone_again)


@pytest.mark.parametrize("num_blocks", [9, 13])
@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_request_that_was_preempted_has_the_bits_it_has_alone(
    model: ModelMaker, cache_type: str, num_blocks: int
) -> None:
    expected = alone(model("llama"))

    with InferenceEngine(
        config(model("llama"), cache_type=cache_type, admission="preempt", num_blocks=num_blocks)
    ) as engine:
        others = [[number] * 30 for number in range(3)]
        long = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
        for prompt in others:
            engine.add_request(prompt, long)
        ours = engine.add_request(PROMPT, PARAMS)
        found = list[TrainingSample]()
        while engine.has_pending():
            found += engine.step()
        num_preemptions = engine.stats().num_preemptions

    assert num_preemptions > 0
    assert [bits(sample) for sample in found if sample.request_id == ours] == [expected]


@pytest.mark.parametrize("max_tokens_per_batch", [2, 3, 17, 20, 48, 70, 200])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prompt_in_pieces_has_the_bits_of_a_whole_one(
    model: ModelMaker, dtype: Dtype, kind: str, max_tokens_per_batch: int
) -> None:
    expected = alone(model(kind), dtype=dtype, max_batch_size=1, max_tokens_per_batch=500)

    assert alone(model(kind), dtype=dtype, max_batch_size=1, max_tokens_per_batch=max_tokens_per_batch) == expected


def test_long_prompt_has_the_same_bits_in_pieces_in_a_crowd_and_after_a_hit(model: ModelMaker) -> None:
    """Behind 512 keys the kernel begins to work in parts."""
    path, chance = model("llama"), Random(3)
    prompt = [chance.randrange(VOCAB_SIZE) for _ in range(700)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with InferenceEngine(config(path, max_tokens_per_batch=900)) as engine:
        expected = bits(engine.generate([prompt], params)[0])

    with InferenceEngine(config(path, max_tokens_per_batch=90)) as engine:
        samples = engine.generate([[5] * 60, prompt, prompt[:600], [*prompt[:300], 1], prompt], params)

    assert (bits(samples[1]), bits(samples[4])) == (expected, expected)


def test_seeded_request_does_not_depend_on_who_came_before(model: ModelMaker) -> None:
    expected = alone(model("qwen2"))

    with InferenceEngine(config(model("qwen2"))) as engine:
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=5), num_samples_per_prompt=3)
        again = engine.generate([PROMPT], PARAMS)[0]

    assert bits(again) == expected


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("operation", ["plain", "swish", "add", "mul"])
def test_packed_product_of_a_row_does_not_depend_on_the_others(num_threads: int, operation: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        generator = torch.Generator().manual_seed(0)
        linear = Linear(torch.randn(200, 72, generator=generator), torch.randn(200, generator=generator))
        inputs, others = torch.randn(600, 72, generator=generator), torch.randn(600, 200, generator=generator)

        def product(rows: slice) -> torch.Tensor:
            match operation:
                case "plain":
                    return linear(inputs[rows])
                case "swish":
                    return linear.swish(inputs[rows])
                case "add":
                    return linear.with_other(inputs[rows], others[rows], "add")
                case _:
                    return linear.with_other(inputs[rows], others[rows], "mul")

        whole = product(slice(0, 600))
        for count in (2, 3, 5, 8, 13, 31, 32, 33, 64, 100, 257, 512):
            first = count * 7 % 80
            rows = slice(first, first + count)
            assert torch.equal(product(rows), whole[rows])
    finally:
        torch.set_num_threads(before)
