"""One model on two processes: the bits of one, whatever the API is asked for; and no process outlives its engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import psutil
import pytest
import torch

from mac_runner.nano import (
    AsyncEngine,
    ConfigError,
    EngineConfig,
    EngineState,
    EngineStoppedError,
    ForwardBatch,
    InferenceEngine,
    MissingTensorError,
    ModelError,
    NonFiniteLogitsError,
    RankFailedError,
    SamplingParams,
    TrainingSample,
    read_model_config,
    read_state_dict,
)
from mac_runner.nano.parallel import group, members, runner
from mac_runner.nano.testing import ModelRunner, ParallelRunner, Prepared, Shard, Span, can_pack, has_ordered_memory
from tests.nano.crowds import assert_ended, assert_same_bits, finish, in_a_crowd, is_alive
from tests.nano.tiny_models import VOCAB_SIZE, ModelMaker, random_state_dict
from tests.patience import LIMIT_S, wait_for

CPU = torch.device("cpu")
PROMPT = [Random(5).randrange(VOCAB_SIZE) for _ in range(100)]
PARAMS = SamplingParams(temperature=0.9, max_tokens=12, seed=11, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=900, ignore_eos=True)

needs_packing = pytest.mark.skipif(not can_pack(torch.float32, CPU), reason="without oneDNN no bits are promised")


def start(path: Path, size: int, **changes: object) -> InferenceEngine:
    settings: dict[str, object] = {
        "model_path": str(path),
        "tensor_parallel_size": size,
        "num_threads": 1,
        "num_blocks": 400,
        "max_batch_size": 40,
        "max_tokens_per_batch": 96,
        **changes,
    }
    return InferenceEngine(EngineConfig(**settings))  # type: ignore[arg-type]


def told(samples: list[TrainingSample]) -> list[object]:
    """All that a sample says of the model's numbers and of how they came about."""
    return [
        (sample.completion_tokens, sample.logprobs, sample.version_spans, sample.num_cached_tokens)
        for sample in sorted(samples, key=lambda sample: (sample.request_id, sample.sample_index))
    ]


def ranks(engine: InferenceEngine) -> list[psutil.Process]:
    """The processes of an engine, this one left out."""
    assert isinstance(engine._runner, ParallelRunner)
    return [psutil.Process(member.process.pid) for member in engine._runner._ranks._members]


@contextmanager
def running(path: Path, **changes: object) -> Iterator[InferenceEngine]:
    """Two processes for the time of the block, and none after it."""
    with start(path, 2, **changes) as engine:
        processes = ranks(engine)
        yield engine
    assert_ended(processes)


class Pair(NamedTuple):
    """An engine in one process, and the same in two."""

    one: InferenceEngine
    two: InferenceEngine


KINDS = [
    pytest.param({"kind": "llama-biased", "cache_type": "paged"}, id="llama"),
    pytest.param({"kind": "qwen2", "cache_type": "radix", "tensor_parallel_gather": "torch"}, id="qwen2-torch"),
    pytest.param({"kind": "qwen3-wide", "cache_type": "radix", "dtype": "bfloat16"}, id="qwen3-bfloat16"),
]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, model: ModelMaker) -> Iterator[Pair]:
    settings: dict[str, object] = dict(request.param)
    path = model(str(settings.pop("kind")))
    if settings.get("dtype") == "bfloat16" and not can_pack(torch.bfloat16, CPU):
        settings["dtype"] = "float32"
    with start(path, 2, **settings) as two, start(path, 1, **settings) as one:
        yield Pair(one, two)


@pytest.fixture(scope="module")
def both(model: ModelMaker) -> Iterator[Pair]:
    """For whatever changes an engine: both are asked for the same."""
    path = model("qwen2")
    with start(path, 2) as two, start(path, 1) as one:
        for engine in (one, two):  # The thread that prepares weights begins here, and ends with the engine.
            engine.update_weights(random_state_dict(path, seed=0))
            engine.sleep()
            engine.wake()
        yield Pair(one, two)


# The same bits.


@needs_packing
def test_crowd_has_the_bits_of_one_process(pair: Pair) -> None:
    for seed in range(2):
        for engine in pair:
            engine.flush_cache()
        assert_same_bits(in_a_crowd(pair.two, seed, 33), in_a_crowd(pair.one, seed, 33))


@needs_packing
def test_request_has_the_bits_of_one_process_alone_in_33_rows_in_pieces_and_after_a_hit(pair: Pair) -> None:
    """The prompt takes two steps; the second time all but its end is found in the cache."""
    pair.one.flush_cache()
    expected = pair.one.generate([PROMPT], PARAMS)[0]
    pair.two.flush_cache()
    alone, again = (pair.two.generate([PROMPT], PARAMS)[0] for _ in range(2))
    rows = pair.two.generate([PROMPT] * 33, PARAMS)

    assert (alone.num_cached_tokens, again.num_cached_tokens) == (0, 96)
    assert {(sample.completion_tokens, sample.logprobs) for sample in (alone, again, *rows)} == {
        (expected.completion_tokens, expected.logprobs)
    }


@needs_packing
def test_weights_of_the_directory_that_were_dropped_are_read_again(pair: Pair) -> None:
    pair.two.sleep(drop_weights=True)
    pair.two.wake()
    pair.one.flush_cache()

    assert told(pair.two.generate([PROMPT], PARAMS)) == told(pair.one.generate([PROMPT], PARAMS))


def test_two_engines_at_once_do_not_meet(both: Pair, model: ModelMaker) -> None:
    expected = [both.one.generate([[seed] * 9], PARAMS)[0].logprobs for seed in range(3)]
    with running(model("qwen2"), tensor_parallel_gather="torch") as other:
        engines = (both.two, other, both.two)
        requests = [engine.add_request([seed] * 9, PARAMS) for seed, engine in enumerate(engines)]
        found = dict[tuple[InferenceEngine, int], TrainingSample]()
        while both.two.has_pending() or other.has_pending():
            for engine in (both.two, other):
                found |= {(engine, sample.request_id): sample for sample in engine.step()}

    if can_pack(torch.float32, CPU):
        assert [found[key].logprobs for key in zip(engines, requests, strict=True)] == expected


# The whole of the API.


@needs_packing
def test_blocking_update_counts_from_the_next_step_on_all_ranks(both: Pair, model: ModelMaker) -> None:
    weights = random_state_dict(model("qwen2"), seed=1)
    for engine in both:
        engine.update_weights(weights, blocking=True)
    one, two = (engine.generate([PROMPT], PARAMS) for engine in both)

    assert told(two) == told(one)
    assert two[0].weight_version == both.one.get_weight_version()


def test_update_in_flight_is_put_in_between_two_steps_of_all_ranks(both: Pair, model: ModelMaker) -> None:
    """The bits before it are the old weights', and the prefixes that they computed are found no more."""
    one, two = both
    version = two.get_weight_version()
    number = two.add_request(PROMPT, replace(ENDLESS, seed=2))
    for _ in range(5):
        two.step()
    two.update_weights(random_state_dict(model("qwen2"), seed=2))
    while two.get_weight_version() == version:
        two.step()
    for _ in range(3):
        two.step()
    sample = two.abort(number)[0]
    start = sample.version_spans[1].start
    before = one.generate([PROMPT], replace(ENDLESS, seed=2, max_tokens=start))[0].logprobs
    one.update_weights(random_state_dict(model("qwen2"), seed=2), blocking=True, version=version + 1)

    assert [span.version for span in sample.version_spans] == [version, version + 1]
    assert len(sample.logprobs) > start >= 4
    if can_pack(torch.float32, CPU):
        assert sample.logprobs[:start] == before
        assert told(two.generate([PROMPT], PARAMS)) == told(one.generate([PROMPT], PARAMS))


def test_weights_are_put_in_in_any_order_and_those_that_nobody_wants_are_forgotten(model: ModelMaker) -> None:
    path = model("qwen2")
    with running(path) as two, start(path, 1) as one:
        first, unwanted, last = (two.prepare_weights(random_state_dict(path, seed)) for seed in (1, 2, 3))
        number = unwanted.ticket
        del unwanted
        for prepared, seed in ((last, 3), (first, 1)):
            two.install_weights(prepared)
            one.update_weights(random_state_dict(path, seed), blocking=True)
            if can_pack(torch.float32, CPU):
                assert two.generate([[7]], GREEDY)[0].logprobs == one.generate([[7]], GREEDY)[0].logprobs

        two.update_weights(random_state_dict(path, seed=4), blocking=True)
        with pytest.raises(RankFailedError, match=f"rank 1 .* KeyError: {number}"):
            two.install_weights(Prepared(first.model, number))


def test_weights_of_another_model_are_refused_and_the_old_ones_kept(both: Pair, model: ModelMaker) -> None:
    before = both.two.generate([[7]], GREEDY)[0].logprobs
    weights = read_state_dict(model("qwen2"))
    del weights["model.norm.weight"]

    for blocking in (True, False):
        with pytest.raises(MissingTensorError):
            both.two.update_weights(weights, blocking=blocking)
    assert both.two.generate([[7]], GREEDY)[0].logprobs == before


def test_logits_that_are_no_numbers_end_the_request_and_no_rank(both: Pair, model: ModelMaker) -> None:
    weights = random_state_dict(model("qwen2"), seed=6)
    broken = {**weights, "model.norm.weight": torch.full((64,), 3e38)}
    both.two.update_weights(broken, blocking=True)

    with pytest.raises(NonFiniteLogitsError):
        both.two.generate([[1, 2]], GREEDY)
    both.two.update_weights(weights, blocking=True)
    assert both.two.generate([[1, 2]], GREEDY)[0].finish_reason == "length"


def test_aborted_request_leaves_the_others_as_they_would_be(both: Pair) -> None:
    expected = both.two.generate([PROMPT], PARAMS)[0].logprobs
    victim = both.two.add_request([9] * 20, ENDLESS)
    both.two.add_request(PROMPT, PARAMS)
    for _ in range(3):
        both.two.step()

    assert [sample.finish_reason for sample in both.two.abort(victim)] == ["abort"]
    assert finish(both.two)[0].logprobs == expected


@pytest.mark.parametrize("drops_weights", [False, True])
def test_engine_that_slept_goes_on_as_before(model: ModelMaker, both: Pair, drops_weights: bool) -> None:
    """Weights that were dropped must be given again, where they were not the directory's."""
    engine, weights = both.two, random_state_dict(model("qwen2"), seed=7)
    engine.update_weights(weights, blocking=True)
    expected = engine.generate([PROMPT], PARAMS)[0].logprobs
    engine.sleep(drop_weights=drops_weights)

    assert engine.state is EngineState.ASLEEP
    if drops_weights:
        with pytest.raises(ModelError, match="dropped"):
            engine.wake()
        engine.update_weights(weights, blocking=True)
    engine.wake()
    assert engine.generate([PROMPT], PARAMS)[0].logprobs == expected


def test_cache_holds_as_much_as_in_one_process(model: ModelMaker) -> None:
    """The memory it may take is that of all ranks together, and each rank has a part of every block."""
    config, shape = EngineConfig(model_path="", kv_cache_bytes=1 << 20), read_model_config(model("qwen2"))
    counts = [ModelRunner(config, shape, Shard(0, size)).count_blocks() for size in (1, 2)]

    assert counts[0] == counts[1] > 50


# What cannot be.


@pytest.mark.parametrize(
    ("kind", "size", "named"),
    [
        ("qwen2", 3, "4 attention heads, 2 KV heads, 64 numbers of hidden_size, 272 tokens of the vocabulary"),
        ("qwen2", 4, ": 2 KV heads cannot be divided among 4 ranks"),
        ("qwen2-window", 2, ": 1 KV heads cannot"),
    ],
)
def test_model_that_does_not_divide_is_refused_before_a_process_starts(
    model: ModelMaker, kind: str, size: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ConfigError, match=named):
        start(model(kind), size)


@pytest.mark.parametrize("changes", [{"tensor_parallel_size": 0}, {"tensor_parallel_gather": "pigeon"}])
def test_setting_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        EngineConfig(model_path="", **changes)  # type: ignore[arg-type]


# Failures.


def assert_over(engine: InferenceEngine, *named: str) -> RankFailedError:
    """Whatever is asked of it, the engine says why it is no more."""
    with pytest.raises(RankFailedError) as caught:
        engine.add_request([1], GREEDY)
    for ask in (engine.step, engine.stats, engine.sleep):
        with pytest.raises(RankFailedError):
            ask()
    assert all(name in str(caught.value) for name in named)
    return caught.value


def test_error_on_a_rank_ends_all_and_is_told_with_its_traceback(model: ModelMaker) -> None:
    with running(model("qwen2")) as engine:
        runner = engine._runner
        assert isinstance(runner, ParallelRunner)
        beyond = 10**6  # A token that no vocabulary has.
        span = Span(first_row=0, num_tokens=2, start=0, block_ids=(0,))
        runner._ranks.send(
            ForwardBatch(token_ids=(1, beyond), positions=(0, 1), slots=(0, 1), spans=(span,), logit_rows=())
        )
        with pytest.raises(RankFailedError):
            engine.generate([PROMPT], ENDLESS)

        error = assert_over(engine, "rank 1", "IndexError")
        assert "model_forward" in error.__notes__[0]
        assert_ended(ranks(engine))


def test_rank_that_is_killed_in_a_step_over_torch_ends_all_and_is_named(model: ModelMaker) -> None:
    with running(model("qwen2"), tensor_parallel_gather="torch") as engine:
        engine.add_request([1, 2], ENDLESS)
        for _ in range(3):
            engine.step()
        (rank,) = ranks(engine)
        rank.kill()
        with pytest.raises(RankFailedError):
            finish(engine)

        assert_over(engine, f"rank 1 (process {rank.pid})", "SIGKILL")


def test_rank_that_is_killed_at_rest_is_noticed_without_a_step(model: ModelMaker) -> None:
    with running(model("qwen2")) as engine:
        ranks(engine)[0].kill()
        runner = engine._runner
        assert isinstance(runner, ParallelRunner)
        assert runner._ranks.is_over.wait(LIMIT_S)

        assert_over(engine, "rank 1", "SIGKILL")


@pytest.mark.skipif(not has_ordered_memory(), reason="gloo's patience is fixed when it starts")
def test_rank_that_does_not_answer_is_not_waited_for_without_end(
    model: ModelMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(model("qwen2")) as engine:
        monkeypatch.setattr(group, "PATIENCE_S", 0.2)
        monkeypatch.setattr(members, "END_S_MAX", 0.2)
        (rank,) = ranks(engine)
        rank.suspend()
        wait_for(lambda: rank.status() == psutil.STATUS_STOPPED, "rank 1 to stand still")
        with pytest.raises(RankFailedError, match="rank 1 has kept"):
            engine.generate([PROMPT], PARAMS)


def test_error_of_rank_0_ends_all(model: ModelMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ModelRunner, batch: ForwardBatch) -> torch.Tensor:
        raise MemoryError("no more")

    with running(model("qwen2")) as engine:
        assert isinstance(engine._runner, ParallelRunner)
        monkeypatch.setattr(ModelRunner, "forward", fail)
        with pytest.raises(MemoryError, match="no more"):
            engine.generate([PROMPT], PARAMS)

        assert_ended(ranks(engine))
        assert_over(engine, "rank 0", "no more")


def test_rank_that_dies_as_it_starts_is_told(model: ModelMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FOLLOWER", "mac_runner.clock.missing")  # It cannot be run.
    with pytest.raises(RankFailedError, match=r"rank 1 .* exit code 1"):
        start(model("qwen2"), 2)


def test_callers_of_an_engine_whose_rank_is_killed_are_told_which(model: ModelMaker) -> None:
    async def act() -> None:
        engine = AsyncEngine(EngineConfig(model_path=str(model("qwen2")), tensor_parallel_size=2, num_threads=1))
        await engine.start()
        try:
            stream = engine.stream([1, 2], ENDLESS)
            await anext(stream)
            assert isinstance(engine.engine, InferenceEngine)
            ranks(engine.engine)[0].kill()
            with pytest.raises(EngineStoppedError, match="rank 1"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineStoppedError, match="rank 1"):
                await engine.generate([1], GREEDY)
        finally:
            await engine.shutdown()

    asyncio.run(asyncio.wait_for(act(), LIMIT_S))


def test_engine_that_is_dropped_without_a_word_keeps_no_processes(model: ModelMaker) -> None:
    engine = start(model("qwen2"), 2)
    processes = ranks(engine)
    del engine

    assert_ended(processes)


WAITING_PROGRAM = """
import sys
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams
from mac_runner.nano.architecture import read_model_config
from mac_runner.nano.attention import Piece, make_batch
engine = InferenceEngine(EngineConfig(model_path=sys.argv[1], tensor_parallel_size=2, num_threads=1, num_blocks=100))
engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
engine._runner._ranks.send(make_batch([Piece([1, 2, 3], 0, 3, [0])], 16))
print(*[member.process.pid for member in engine._runner._ranks._members], flush=True)
sys.stdin.read()
"""


def test_rank_0_that_is_killed_leaves_nobody_not_even_who_waits_for_it_in_a_step(model: ModelMaker) -> None:
    """A script needs no guard around its engine either: the other ranks do not run it again."""
    command = [sys.executable, "-c", WAITING_PROGRAM, str(model("qwen2"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (other,) = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        before_s = spent_s(other)
        if has_ordered_memory():  # Who waits there looks again and again; over gloo a rank sleeps.
            wait_for(lambda: spent_s(other) > before_s, "rank 1 to wait in the step")
        assert is_alive(other)
        process.kill()

    assert_ended([other])


def spent_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
