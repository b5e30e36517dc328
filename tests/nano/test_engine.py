"""The engine's API: requests in and samples out, other weights, pauses, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mac_runner.nano import (
    EngineConfig,
    EngineState,
    InferenceEngine,
    SamplingParams,
    VersionSpan,
    errors,
    read_state_dict,
    scheduler,
)
from mac_runner.nano.testing import Constraint
from tests.nano.crowds import finish
from tests.nano.tiny_models import random_state_dict

GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
EngineMaker = Callable[..., InferenceEngine]


@pytest.fixture
def make(path: Path) -> Iterator[EngineMaker]:
    made = list[InferenceEngine]()

    def build(**settings: object) -> InferenceEngine:
        made.append(InferenceEngine(EngineConfig(model_path=str(path), num_threads=1, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for engine in made:
        engine._batch.cache.check()
        engine.shutdown()


def test_samples_come_in_the_order_of_prompts(make: EngineMaker) -> None:
    samples = make(max_batch_size=3).generate([[5] * 30, [1], [2, 3]], SamplingParams(max_tokens=4), 2)

    assert [(sample.prompt_tokens[0], sample.sample_index) for sample in samples] == [
        (5, 0), (5, 1), (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip
    assert all(len(sample.logprobs) == len(sample.completion_tokens) <= 4 for sample in samples)
    assert all(sample.weight_version == 0 and sample.ref_logprobs is None for sample in samples)


def test_samples_of_one_prompt_share_its_kv(make: EngineMaker) -> None:
    engine = make()
    samples = engine.generate([[7] * 60], SamplingParams(max_tokens=3, ignore_eos=True), num_samples_per_prompt=4)

    assert [sample.num_cached_tokens for sample in samples] == [0, 48, 48, 48]
    assert engine.stats().num_cached_prompt_tokens == 144


def test_samples_differ_and_the_same_seed_gives_them_again(make: EngineMaker) -> None:
    params = SamplingParams(max_tokens=12, seed=5)
    first, again = (make().generate([[1, 2, 3]], params, 4) for _ in range(2))

    assert len({sample.completion_tokens for sample in first}) == 4
    assert first == again
    assert make().generate([[1, 2, 3]], params)[0].completion_tokens == first[0].completion_tokens


def test_text_prompts_are_encoded_and_completions_decoded(make: EngineMaker) -> None:
    engine = make()
    assert engine.tokenizer is not None
    sample = engine.generate(["Hello"], GREEDY)[0]

    assert sample.prompt_tokens == tuple(engine.tokenizer.encode("Hello"))
    assert sample.text == engine.tokenizer.decode(sample.completion_tokens)


def test_stop_token_ends_a_completion_and_a_stop_text_is_cut_off(make: EngineMaker) -> None:
    engine = make()
    free = engine.generate([[1, 2, 3]], GREEDY)[0]
    last = free.completion_tokens[4]
    sample = engine.generate([[1, 2, 3]], SamplingParams(temperature=0.0, stop_token_ids=frozenset({last})))[0]

    count = free.completion_tokens.index(last) + 1
    assert (sample.finish_reason, sample.stop_reason) == ("stop", last)
    assert sample.completion_tokens == free.completion_tokens[:count]
    assert engine.tokenizer is not None
    assert sample.text == engine.tokenizer.decode(sample.completion_tokens[:-1])

    params = SamplingParams(temperature=1.0, seed=3, max_tokens=200, ignore_eos=True)
    text = engine.generate(["abc"], params)[0].text or ""
    stop = next(letter for letter in text[3:] if letter.isalnum())
    cut = engine.generate(["abc"], replace(params, stop=(stop,)))[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (text[: text.index(stop)], "stop", stop)


def test_requests_may_join_and_leave_while_others_run(make: EngineMaker) -> None:
    engine = make()
    first = engine.add_request([1] * 5, SamplingParams(max_tokens=50, ignore_eos=True))
    engine.step()
    second = engine.add_request([2] * 5, GREEDY)
    ended = engine.abort(first)
    samples = finish(engine)

    assert [(sample.request_id, sample.finish_reason) for sample in ended] == [(first, "abort")]
    assert len(ended[0].completion_tokens) == 1
    assert [(sample.request_id, sample.finish_reason) for sample in samples] == [(second, "length")]
    assert engine.abort(first) == []


def test_generate_leaves_the_samples_of_others_for_the_next_step(make: EngineMaker) -> None:
    engine = make()
    other = engine.add_request([1, 2], SamplingParams(max_tokens=2, ignore_eos=True))
    engine.generate([[3, 4]], GREEDY)

    assert engine.has_pending()
    assert [sample.request_id for sample in engine.step()] == [other]
    assert not engine.has_pending()


def test_streamed_request_tells_every_token(make: EngineMaker) -> None:
    engine = make()
    engine.add_request("abc", SamplingParams(seed=1, max_tokens=30, top_logprobs=2), stream=True)
    deltas = [delta for _ in iter(engine.has_pending, False) for delta in engine.step_deltas()]
    sample = deltas[-1].sample

    assert sample is not None
    assert tuple(token for delta in deltas for token in delta.token_ids) == sample.completion_tokens
    assert tuple(logprob for delta in deltas for logprob in delta.logprobs) == sample.logprobs
    assert tuple(top for delta in deltas for top in delta.top_logprobs) == sample.top_logprobs
    assert "".join(delta.text for delta in deltas) == sample.text


# Weights.


def test_blocking_update_counts_from_the_next_step_on(make: EngineMaker, path: Path) -> None:
    engine, other = make(), make()
    weights = random_state_dict(path, seed=1)
    before = engine.generate([[1, 2, 3]], GREEDY)[0]
    engine.update_weights(weights, blocking=True)
    after = engine.generate([[1, 2, 3]], GREEDY)[0]
    engine.update_weights(read_state_dict(path), blocking=True)
    back = engine.generate([[1, 2, 3]], GREEDY)[0]

    assert (before.weight_version, after.weight_version, engine.get_weight_version()) == (0, 1, 2)
    assert after.completion_tokens != before.completion_tokens
    assert (back.completion_tokens, back.logprobs) == (before.completion_tokens, before.logprobs)
    other.update_weights(weights, blocking=True, version=7)
    assert other.generate([[1, 2, 3]], GREEDY)[0].logprobs == after.logprobs
    assert other.get_weight_version() == 7


def test_update_in_flight_is_put_in_between_steps_and_told_in_spans(make: EngineMaker, path: Path) -> None:
    engine = make()
    engine.add_request([1, 2, 3], GREEDY)
    for _ in range(5):
        engine.step()
    engine.update_weights(random_state_dict(path, seed=1), blocking=False)
    while engine.get_weight_version() == 0:
        pass
    sample = finish(engine)[0]

    assert sample.weight_version == 0
    assert sample.version_spans == (VersionSpan(0, 0), VersionSpan(1, 5))


def test_update_of_an_idle_engine_is_seen_without_a_step_and_its_weights_may_be_changed_afterwards(
    make: EngineMaker, path: Path
) -> None:
    engine, weights = make(dtype="float32"), random_state_dict(path, seed=1)
    engine.update_weights(weights)
    while engine.get_weight_version() == 0:
        pass
    before = engine.generate([[1]], GREEDY)[0]
    for tensor in weights.values():
        tensor.zero_()

    assert before.version_spans == (VersionSpan(1, 0),)
    assert engine.generate([[1]], GREEDY)[0].logprobs == before.logprobs


def test_prefix_of_other_weights_or_from_before_a_flush_is_never_found(make: EngineMaker, path: Path) -> None:
    engine = make()
    engine.generate([[7] * 60], GREEDY)
    engine.update_weights(random_state_dict(path, seed=1), blocking=True)
    sample = engine.generate([[7] * 60], GREEDY)[0]
    engine.flush_cache()
    flushed = engine.generate([[7] * 60], GREEDY)[0]
    fresh = make()
    fresh.update_weights(random_state_dict(path, seed=1), blocking=True)

    assert (sample.num_cached_tokens, flushed.num_cached_tokens) == (0, 0)
    assert sample.logprobs == fresh.generate([[7] * 60], GREEDY)[0].logprobs


def test_weights_of_another_model_are_refused_and_the_old_ones_kept(make: EngineMaker, path: Path) -> None:
    engine, good = make(), read_state_dict(path)
    expected = engine.generate([[1, 2]], GREEDY)[0].logprobs
    wrong: list[tuple[type[errors.ModelError], dict[str, torch.Tensor]]] = [
        (errors.MissingTensorError, {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}),
        (errors.UnexpectedTensorError, {**good, "model.layers.9.mlp.up_proj.weight": torch.zeros(1)}),
        (errors.WrongShapeError, {**good, "model.norm.weight": torch.ones(3)}),
    ]
    for blocking in (True, False):
        for error, weights in wrong:
            with pytest.raises(error, match="model"):
                engine.update_weights(weights, blocking=blocking)
        with pytest.raises(errors.StaleVersionError, match=r"version 0: .* has 0"):
            engine.update_weights(good, blocking=blocking, version=0)

    assert (engine.get_weight_version(), engine.generate([[1, 2]], GREEDY)[0].logprobs) == (0, expected)


# Pauses.


def test_pause_keeps_those_who_run_or_finishes_them_or_ends_everybody(make: EngineMaker) -> None:
    engine = make(max_batch_size=1)
    expected = engine.generate([[1, 2, 3]], GREEDY)[0].logprobs
    running, waiting = (engine.add_request(prompt, GREEDY) for prompt in ([1, 2, 3], [2]))
    engine.step()
    engine.pause("keep")
    assert (engine.step(), engine.state) == ([], EngineState.PAUSED)
    engine.resume()

    samples = engine.pause("wait")
    assert [(sample.request_id, sample.logprobs) for sample in samples] == [(running, expected)]
    assert engine.stats().num_waiting == 1
    engine.resume()
    assert [sample.request_id for sample in finish(engine)] == [waiting]

    for each in (1, 2):
        engine.add_request([each], GREEDY)
    engine.step()
    assert [sample.finish_reason for sample in engine.pause("abort")] == ["abort", "abort"]
    assert not engine.has_pending()


def test_sleep_gives_memory_back_and_wake_goes_on_as_before(make: EngineMaker, path: Path) -> None:
    engine = make()
    expected = engine.generate([[1, 2, 3]], GREEDY)[0].logprobs
    engine.sleep(drop_weights=True)

    assert engine._runner._store is None
    assert not engine._runner.has_weights
    with pytest.raises(errors.ConfigError, match="asleep"):
        engine.resume()
    with pytest.raises(errors.ConfigError, match="asleep"):
        engine.generate([[1]], GREEDY)
    engine.wake()
    assert engine.generate([[1, 2, 3]], GREEDY)[0].logprobs == expected


def test_weights_that_were_dropped_are_not_taken_for_those_of_the_directory(make: EngineMaker, path: Path) -> None:
    engine = make()
    engine.update_weights(random_state_dict(path, seed=1), blocking=True)
    engine.sleep(drop_weights=True)

    with pytest.raises(errors.ModelError, match="version 1"):
        engine.wake()
    engine.update_weights(random_state_dict(path, seed=2), blocking=True)
    engine.wake()
    assert engine.generate([[1]], GREEDY)[0].weight_version == 2


def test_what_the_state_of_an_engine_forbids_is_refused_with_the_way_out(make: EngineMaker) -> None:
    engine = make()
    engine.add_request([1], GREEDY)
    engine.step()
    with pytest.raises(errors.ConfigError, match="running"):
        engine.sleep()
    assert len(finish(engine)) == 1

    engine.pause()
    with pytest.raises(errors.ConfigError, match="not asleep"):
        engine.wake()
    with pytest.raises(errors.ConfigError, match="resume it"):
        engine.generate([[1]], GREEDY)
    engine.sleep()
    with pytest.raises(errors.ConfigError, match="wake it up"):
        engine.generate([[1]], GREEDY)


# What is refused.


REFUSED: tuple[tuple[Any, dict[str, int], type[errors.NanoError], str], ...] = (
    ([], {}, errors.InvalidRequestError, "empty"),
    ([1, 272], {}, errors.InvalidRequestError, "272"),
    ([1, -1], {}, errors.InvalidRequestError, "-1"),
    ([1, "a"], {}, errors.InvalidRequestError, "'a'"),
    ([1, True], {}, errors.InvalidRequestError, "True"),
    (7, {}, errors.InvalidRequestError, "of type int"),
    (torch.tensor([1, 2]), {}, errors.InvalidRequestError, "of type Tensor"),
    ("", {}, errors.InvalidRequestError, "empty"),
    ([1] * 1024, {}, errors.PromptTooLongError, "1024"),
    ([1] * 300, {"max_tokens": 600}, errors.PromptTooLongError, "KV cache of 800"),
)


def test_request_that_cannot_be_served_is_refused_by_name(make: EngineMaker) -> None:
    engine = make(num_blocks=50)
    for prompt, params, error, named in REFUSED:
        with pytest.raises(error, match=named):
            engine.add_request(prompt, SamplingParams(**params))  # type: ignore[arg-type]

    assert len(engine.generate([[1]], GREEDY)) == 1


def test_completion_ends_at_the_window(make: EngineMaker) -> None:
    sample = make(max_model_len=20).generate([[1] * 15], SamplingParams(max_tokens=100, ignore_eos=True))[0]

    assert (len(sample.completion_tokens), sample.finish_reason) == (5, "length")


def test_queue_is_bounded(make: EngineMaker) -> None:
    engine = make(max_waiting=3)
    engine.add_request([1], GREEDY, 2)

    with pytest.raises(errors.QueueFullError, match="2 requests wait"):
        engine.add_request([1], GREEDY, 2)
    engine.add_request([1], GREEDY)


def test_generate_that_is_refused_queues_none_of_its_prompts(make: EngineMaker) -> None:
    engine = make(max_waiting=3)
    for wrong in ([9999], []):
        with pytest.raises(errors.InvalidRequestError):
            engine.generate([[1, 2], wrong], GREEDY)
    with pytest.raises(errors.InvalidRequestError, match="list of prompts"):
        engine.generate("hello", GREEDY)
    with pytest.raises(errors.QueueFullError):
        engine.generate([[1]] * 4, GREEDY)

    assert not engine.has_pending()
    assert len(engine.generate([[1]] * 3, GREEDY)) == 3


def test_logits_that_are_no_numbers_end_the_request_and_no_other(make: EngineMaker, path: Path) -> None:
    """Finite weights that are too large for their products: an update refuses others."""
    engine = make()
    weights = read_state_dict(path)
    clean = engine.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=1))[0]
    weights["model.layers.0.input_layernorm.weight"] = torch.full((64,), 3e38)
    engine.update_weights(weights, blocking=True)

    with pytest.raises(errors.NonFiniteLogitsError, match="token 3"):
        engine.generate([[1, 2, 3]], GREEDY)
    for stream in (True, False):
        engine.add_request([4] * 40, GREEDY, stream=stream)
        failed = finish(engine)[0]
        assert (failed.finish_reason, failed.completion_tokens) == ("error", ())
        assert isinstance(failed.error, errors.NonFiniteLogitsError)
    engine.update_weights(read_state_dict(path), blocking=True)
    again = engine.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=1))[0]
    assert again.logprobs == clean.logprobs


def test_engine_that_was_shut_down_says_so(make: EngineMaker) -> None:
    engine = make()
    engine.add_request([1], GREEDY)
    engine.shutdown()
    engine.shutdown()

    with pytest.raises(errors.EngineStoppedError):
        engine.add_request([1], GREEDY)
    with pytest.raises(errors.EngineStoppedError):
        engine.step()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_step_that_is_interrupted_can_be_taken_again(make: EngineMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while tokens are chosen, or before: nothing is lost, and chance goes on where it was."""
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
    expected, engine = make().generate([[1, 2, 3]], params)[0], make()
    for place in ("choose", "make_batch"):
        engine.add_request([1, 2, 3], params)
        for _ in range(3):
            engine.step()
        with monkeypatch.context() as patched:
            patched.setattr(scheduler, place, interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.step()

        (sample,) = finish(engine)
        assert (sample.completion_tokens, sample.logprobs) == (expected.completion_tokens, expected.logprobs), place


def test_generate_that_is_interrupted_takes_its_requests_out(
    make: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    others = engine.add_request([4, 5], GREEDY)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "choose", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([[1], [2]], GREEDY)

    assert [sample.request_id for sample in finish(engine)] == [others]


def test_constraint_that_breaks_down_ends_its_request_and_no_other(
    make: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    expected = engine.generate([[1, 2]], GREEDY)[0]

    def broken(self: Constraint, vocab_size: int) -> torch.Tensor:
        raise errors.ConstraintError("too many expressions")

    monkeypatch.setattr(Constraint, "allowed", broken)
    constrained = engine.add_request([7], SamplingParams(choices=("a", "b"), max_tokens=5))
    engine.add_request([1, 2], GREEDY)
    samples = {sample.request_id: sample for sample in finish(engine)}

    ended = samples.pop(constrained)
    assert (ended.finish_reason, str(ended.error)) == ("error", "too many expressions")
    assert [sample.completion_tokens for sample in samples.values()] == [expected.completion_tokens]
