"""The ways to use the engine, from the whole to its parts, as one would write them down first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Literal

import pytest
import torch

from mac_runner.nano import (
    EngineConfig,
    InferenceEngine,
    KVStore,
    Model,
    PagedKVCache,
    Piece,
    SamplingParams,
    SchedulerConfig,
    Sequence,
    StopChecker,
    build_model,
    compute_block_hash,
    make_batch,
    make_kv_store,
    model_forward,
    read_model_config,
    read_state_dict,
    sample_with_logprobs,
    schedule,
)
from tests.nano.tiny_models import EOS, random_state_dict
from tests.test_package import NANO, check_modules, check_rooms

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8]]
CPU = torch.device("cpu")


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_training_loop(path: Path, cache_type: Literal["paged", "radix"]) -> None:
    """Roll out, learn, hand the weights over in flight or at once, roll out."""
    params = SamplingParams(temperature=0.7, max_tokens=16)
    engine = InferenceEngine(EngineConfig(model_path=str(path), cache_type=cache_type, block_size=16, num_threads=1))
    for sample in engine.generate(prompts=PROMPTS, sampling_params=params, num_samples_per_prompt=4):
        assert list(sample.prompt_tokens) in PROMPTS
        assert len(sample.logprobs) == len(sample.completion_tokens) >= 1
        assert (sample.weight_version, sample.ref_logprobs) == (0, None)
        assert sample.finish_reason in ("stop", "length")
    engine.update_weights(random_state_dict(path, seed=1), blocking=False)
    engine.update_weights(random_state_dict(path, seed=2), blocking=True)
    engine.flush_cache()
    samples = engine.generate(prompts=PROMPTS, sampling_params=params, num_samples_per_prompt=4)
    engine.shutdown()

    assert {sample.weight_version for sample in samples} == {engine.get_weight_version()} == {2}


def test_configurations_and_samples_cannot_be_changed(path: Path) -> None:
    params = SamplingParams()
    with InferenceEngine(EngineConfig(model_path=str(path), num_threads=1)) as engine:
        sample = engine.generate([[1]], SamplingParams(max_tokens=1))[0]

        for frozen, name in ((params, "temperature"), (engine.config, "block_size"), (sample, "logprobs")):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(frozen, name, 1)
    assert dataclasses.replace(sample, ref_logprobs=(-0.5,)).ref_logprobs == (-0.5,)
    assert hash(sample) == hash(dataclasses.replace(sample))


def test_parts_make_an_engine(path: Path) -> None:
    """Schedule, forward, sample, by hand: the same tokens, and log-probabilities, as the engine's."""
    config = EngineConfig(model_path=str(path), num_threads=1)
    with InferenceEngine(config) as engine:
        expected = engine.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=1))

    (model, store), cache = loaded(path), PagedKVCache(num_blocks=8, block_size=16)
    waiting = sequences()
    plan = schedule(waiting, [], cache, SchedulerConfig(max_batch_size=4, max_tokens_per_batch=64, block_size=16))
    tables = {each.seq_id: cache.acquire(each.seq_id, each.tokens, 32).block_ids for each in waiting}
    pieces = [Piece(waiting[seq_id].tokens, 0, count, tables[seq_id]) for seq_id, count in plan.work]
    with torch.inference_mode():
        logits = model_forward(model, make_batch(pieces, 16), store)
    tokens, logprobs = sample_with_logprobs(logits, torch.zeros(2))

    assert (plan.prefill_seqs, plan.decode_seqs, plan.preempted_seqs) == ((0, 1), (), ())
    assert tokens.tolist() == [sample.completion_tokens[0] for sample in expected]
    assert logprobs.tolist() == pytest.approx([sample.logprobs[0] for sample in expected], abs=1e-6)
    assert len({compute_block_hash(prompt, -1) for prompt in PROMPTS}) == 2


def test_forward_is_a_function_of_weights_tokens_and_store(path: Path) -> None:
    """Asked again it gives the same bits, and so it does for what follows on what is in the store."""
    model, store = loaded(path)
    tokens = list(range(40))
    start, rest, whole = (
        make_batch([Piece(tokens, first, count, table)], 16)
        for first, count, table in ((0, 32, (2, 3)), (32, 8, (2, 3, 4)), (0, 40, (5, 6, 7)))
    )
    with torch.inference_mode():
        at_once, again = (model_forward(model, whole, store) for _ in range(2))
        nothing, in_pieces = (model_forward(model, part, store) for part in (start, rest))

    assert torch.equal(at_once, again)
    assert torch.equal(at_once, in_pieces)
    assert (at_once.shape, nothing.shape) == ((1, 272), (0, 272))


def loaded(path: Path) -> tuple[Model, KVStore]:
    config = read_model_config(path)
    store = make_kv_store(config, 8, 16, torch.float32, CPU, compiled=True)
    return build_model(read_state_dict(path), config, torch.float32, CPU, 64), store


def sequences() -> list[Sequence]:
    params = SamplingParams(max_tokens=1)
    return [
        Sequence(
            seq_id=index,
            request_id=index,
            sample_index=0,
            tokens=list(prompt),
            num_prompt_tokens=len(prompt),
            num_tokens_max=len(prompt) + 1,
            params=params,
            random=Random(index),
            stopping=StopChecker(params=params, eos_token_ids=frozenset({EOS})),
        )
        for index, prompt in enumerate(PROMPTS)
    ]


# The modules of nano and of its backend, which the tests of the package leave out.


def test_public_names_of_a_room_are_those_listed(subtests: pytest.Subtests) -> None:
    check_rooms(NANO, subtests)


def test_module_can_be_imported_and_says_what_it_is(subtests: pytest.Subtests) -> None:
    check_modules(NANO, subtests)
