"""One model on several processes: the bits of one, and one engine whatever the API is asked for.

Ranks have a part of the model each. Replicas have all of it; they work independently, or step together.
"""

from __future__ import annotations

import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch

from mac_runner.nano import (
    EngineConfig,
    EngineState,
    InferenceEngine,
    SamplingParams,
    TrainingSample,
    VersionSpan,
    errors,
    read_model_config,
)
from mac_runner.nano.testing import Load, ModelRunner, Prepared, Shard, can_pack, deal, make_engine
from tests.faults.tier import SCALE
from tests.nano import crowds
from tests.nano.crowds import PROMPT, alone, finish, lock_step, needs_packing, processes, replicas
from tests.nano.tiny_models import ModelMaker, random_state_dict
from tests.sim.held_steps import HeldSteps

PARAMS = SamplingParams(temperature=0.9, max_tokens=12, seed=11, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=60, ignore_eos=True)
CROWD = 40 * SCALE
PAUSED = EngineState.PAUSED
ROUNDS = 500 if SCALE > 1 else 150

Start = Callable[..., AbstractContextManager[Any]]
RANKS = {"tensor_parallel_size": 2, "max_batch_size": 40, "num_blocks": 400}
FULL = {"num_blocks": 12, "admission": "preempt"}
CASES: dict[str, tuple[Start, str, dict[str, Any]]] = {
    "ranks, paged": (processes, "llama-biased", {**RANKS, "cache_type": "paged"}),
    "ranks, radix": (processes, "qwen3-wide", {**RANKS, "cache_type": "radix", "dtype": "bfloat16"}),
    "ranks over torch": (processes, "qwen2", {**RANKS, "cache_type": "radix", "tensor_parallel_gather": "torch"}),
    "replicas": (replicas, "qwen2", {"cache_type": "paged"}),
    "replicas, radix": (replicas, "qwen2", {"cache_type": "radix"}),
    "lock step": (lock_step, "qwen2", {"cache_type": "paged"}),
    "lock step, full": (lock_step, "qwen2", {**FULL, "cache_type": "paged"}),
    "lock step of three, full": (
        lock_step,
        "qwen2",
        {**FULL, "cache_type": "radix", "data_parallel_size": 3, "sync_every": 4},
    ),
}


def of(*cases: str) -> pytest.MarkDecorator:
    """A test of these cases."""
    return pytest.mark.parametrize("pair", cases, indirect=True)


RANKED = of("ranks, paged", "ranks, radix", "ranks over torch")
REPLICATED = of("replicas", "lock step")
EACH_KIND = of("ranks over torch", "replicas", "lock step")


class Pair(NamedTuple):
    """An engine of one process, and one of several with the same model."""

    one: InferenceEngine
    group: Any
    path: Path

    @property
    def is_replicated(self) -> bool:
        """Whether each member has all of the model."""
        return bool(self.group.config.data_parallel_size > 1)

    def bring(self, seed: int) -> None:
        """The same weights for both, under the same version."""
        version = 1 + max(self.one.get_weight_version(), self.group.get_weight_version())
        for engine in (self.one, self.group):
            engine.update_weights(random_state_dict(self.path, seed), blocking=True, version=version)

    def told(self) -> list[list[object]]:
        """What each of the two says."""
        return [
            [(each.completion_tokens, each.logprobs, each.version_spans) for each in engine.generate(PROMPTS, PARAMS)]
            for engine in (self.one, self.group)
        ]


PROMPTS = [PROMPT, [7], [9] * 20]


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, model: ModelMaker) -> Iterator[Pair]:
    start, kind, changes = CASES[request.param]
    changes = dict(changes)
    if changes.get("dtype") == "bfloat16" and not can_pack(torch.bfloat16, torch.device("cpu")):
        del changes["dtype"]
    same = {name: changes[name] for name in ("dtype", "cache_type") if name in changes}
    with start(model(kind), **changes) as group, alone(model(kind), **same, num_blocks=400, max_batch_size=40) as one:
        yield Pair(one, group, model(kind))


@pytest.fixture(scope="module")
def updated(pair: Pair) -> Pair:
    """For whatever changes the weights: the threads that prepare them begin here, and end with the engines."""
    for engine in (pair.one, pair.group):
        engine.update_weights(random_state_dict(pair.path, seed=0))
        while engine.get_weight_version() == 0:
            pass
    return pair


# The same bits, before the weights change.


@needs_packing
@of(*CASES)
def test_crowd_has_the_bits_of_one_process(pair: Pair) -> None:
    for seed in range(2):
        for engine in (pair.one, pair.group):
            engine.flush_cache()
        crowds.assert_same_bits(crowds.in_a_crowd(pair.group, seed, CROWD), crowds.in_a_crowd(pair.one, seed, CROWD))

    if pair.is_replicated:
        stats = pair.group.replica_stats()
        assert all(each.num_completion_tokens > 0 for each in stats)
        assert {(each.num_running, each.num_waiting) for each in stats} == {(0, 0)}
        assert (sum(each.num_preemptions for each in stats) > 0) == (pair.group.config.admission == "preempt")


@needs_packing
@RANKED
def test_request_has_the_bits_of_one_process_alone_in_33_rows_in_pieces_and_after_a_hit(pair: Pair) -> None:
    """The prompt takes two steps; the second time all but its end is found in the cache."""
    one, group, _ = pair
    one.flush_cache()
    expected = one.generate([PROMPT], PARAMS)[0]
    group.flush_cache()
    first, again = (group.generate([PROMPT], PARAMS)[0] for _ in range(2))
    rows = group.generate([PROMPT] * 33, PARAMS)

    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 96)
    assert {(sample.completion_tokens, sample.logprobs) for sample in (first, again, *rows)} == {
        (expected.completion_tokens, expected.logprobs)
    }


@needs_packing
@of("ranks, paged", "ranks, radix", "ranks over torch", "lock step")
def test_weights_of_the_directory_that_were_dropped_are_read_again(pair: Pair) -> None:
    pair.group.sleep(drop_weights=True)
    pair.group.wake()
    one, group = pair.told()

    assert group == one


@of("ranks over torch")
def test_two_engines_at_once_do_not_meet(pair: Pair) -> None:
    expected = [pair.one.generate([[seed] * 9], PARAMS)[0].logprobs for seed in range(3)]
    with processes(pair.path, tensor_parallel_size=2) as other:
        engines = (pair.group, other, pair.group)
        requests = [engine.add_request([seed] * 9, PARAMS) for seed, engine in enumerate(engines)]
        found = dict[tuple[InferenceEngine, int], TrainingSample]()
        while pair.group.has_pending() or other.has_pending():
            for engine in (pair.group, other):
                found |= {(engine, sample.request_id): sample for sample in engine.step()}

    if can_pack(torch.float32, torch.device("cpu")):
        assert [found[key].logprobs for key in zip(engines, requests, strict=True)] == expected


@REPLICATED
def test_each_of_two_replicas_takes_about_half_the_steps(pair: Pair, steps: HeldSteps) -> None:
    """No step is taken before all requests are there, or more steps would be of few of them."""
    prompts, params = [[seed] * 8 for seed in range(64)], replace(PARAMS, max_tokens=20)
    for engine in (pair.one, pair.group):
        engine.flush_cache()
    steps.hold(after=0)
    for prompt in prompts:
        pair.group.add_request(prompt, params)
    before = pair.group.replica_stats()
    steps.go()
    finish(pair.group)
    after = pair.group.replica_stats()
    with alone(pair.path) as one:
        one.generate(prompts, params)
        whole = one.stats().num_steps

    assert max(new.num_steps - old.num_steps for new, old in zip(after, before, strict=True)) <= 0.55 * whole


# Other weights, and the rest of the API.


@needs_packing
@EACH_KIND
def test_blocking_update_counts_from_the_next_step_on_all(updated: Pair) -> None:
    updated.bring(1)
    one, group = updated.told()

    assert group == one
    assert updated.group.get_weight_version() == updated.one.get_weight_version()


@of("ranks over torch")
def test_update_in_flight_is_put_in_between_two_steps_of_all_ranks(updated: Pair) -> None:
    """The bits before it are the old weights', and the prefixes that they computed are found no more."""
    one, group, path = updated
    updated.bring(5)
    version, params = group.get_weight_version(), SamplingParams(max_tokens=30, ignore_eos=True, seed=2)
    number = group.add_request(PROMPT, params)
    for _ in range(5):
        group.step()
    group.update_weights(random_state_dict(path, seed=2))
    while group.get_weight_version() == version:
        pass
    for _ in range(3):
        group.step()
    sample = group.abort(number)[0]
    start = sample.version_spans[1].start
    before = one.generate([PROMPT], replace(params, max_tokens=start))[0].logprobs
    one.update_weights(random_state_dict(path, seed=2), blocking=True, version=version + 1)

    assert [span.version for span in sample.version_spans] == [version, version + 1]
    assert len(sample.logprobs) > start >= 4
    if can_pack(torch.float32, torch.device("cpu")):
        assert sample.logprobs[:start] == before
        alone, together = updated.told()
        assert alone == together


@EACH_KIND
def test_weights_of_another_model_are_refused_and_the_old_ones_kept(updated: Pair) -> None:
    before, weights = updated.told()[1], random_state_dict(updated.path, seed=0)
    del weights["model.norm.weight"]

    for blocking in (True, False):
        with pytest.raises(errors.MissingTensorError):
            updated.group.update_weights(weights, blocking=blocking)
    assert updated.told()[1] == before


@EACH_KIND
def test_logits_that_are_no_numbers_end_the_request_and_no_member(updated: Pair) -> None:
    weights = random_state_dict(updated.path, seed=6)
    updated.group.update_weights({**weights, "model.norm.weight": torch.full((64,), 3e38)}, blocking=True)

    with pytest.raises(errors.NonFiniteLogitsError):
        updated.group.generate([[1, 2]], GREEDY)
    updated.group.update_weights(weights, blocking=True)
    assert updated.group.generate([[1, 2]], GREEDY)[0].finish_reason == "length"


@EACH_KIND
def test_aborted_request_leaves_the_others_as_they_would_be(updated: Pair, steps: HeldSteps) -> None:
    expected = updated.group.generate([PROMPT], PARAMS)[0].logprobs
    (victim,) = crowds.begin_streams(updated.group, 1, steps, ENDLESS)
    updated.group.add_request(PROMPT, PARAMS)

    assert [sample.finish_reason for sample in updated.group.abort(victim)] == ["abort"]
    steps.go()
    assert finish(updated.group)[0].logprobs == expected


@needs_packing
@EACH_KIND
def test_group_pauses_sleeps_and_wakes_as_one(updated: Pair, steps: HeldSteps) -> None:
    group = updated.group
    crowds.begin_streams(group, 4, steps, ENDLESS)
    group.pause("keep")
    with pytest.raises(errors.ConfigError, match="4 requests are running"):
        group.sleep()
    group.resume()
    updated.bring(3)
    assert ([sample.finish_reason for sample in group.pause("abort")], group.state) == (["abort"] * 4, PAUSED)
    steps.go()

    for drops_weights in (False, True):
        group.sleep(drop_weights=drops_weights)
        assert group.state is EngineState.ASLEEP
        if drops_weights:  # They must be given again, where they were not the directory's.
            with pytest.raises(errors.ModelError, match="dropped"):
                group.wake()
            updated.bring(7)
        group.wake()
        one, told = updated.told()
        assert told == one

    crowds.begin_streams(group, 4, steps, ENDLESS)
    group.begin_pause("wait")
    steps.go()
    assert ([sample.finish_reason for sample in finish(group)], group.state) == (["length"] * 4, PAUSED)
    group.resume()

    group.flush_cache()
    assert group.stats().num_cached_blocks == 0
    with pytest.raises(errors.QueueFullError):
        group.generate([[1]] * (group.config.max_waiting + 1), PARAMS)
    with pytest.raises(errors.InvalidRequestError):
        group.generate([[]], PARAMS)
    assert len(group.generate([[1]], PARAMS)) == 1


@pytest.mark.parametrize("start", [replicas, lock_step])
def test_replicas_that_were_shut_down_say_so(path: Path, start: Start) -> None:
    with start(path) as engine:
        engine.shutdown()
        engine.shutdown()

        with pytest.raises(errors.EngineStoppedError):
            engine.add_request([1], PARAMS)


# What is of one kind alone.


def test_weights_are_put_in_in_any_order_and_those_that_nobody_wants_are_forgotten(path: Path) -> None:
    with processes(path, tensor_parallel_size=2) as two, alone(path) as one:
        first, unwanted, last = (two.weights.prepare(random_state_dict(path, seed)) for seed in (1, 2, 3))
        number = unwanted.ticket
        del unwanted
        for prepared, seed in ((last, 3), (first, 1)):
            two.weights.install(prepared)
            one.update_weights(random_state_dict(path, seed), blocking=True)
            if can_pack(torch.float32, torch.device("cpu")):
                assert two.generate([[7]], GREEDY)[0].logprobs == one.generate([[7]], GREEDY)[0].logprobs

        two.update_weights(random_state_dict(path, seed=4), blocking=True)
        with pytest.raises(errors.RankFailedError, match=f"rank 1 .* KeyError: {number}"):
            two.weights.install(Prepared(first.model, number))


def test_cache_of_ranks_holds_as_much_as_in_one_process(path: Path) -> None:
    """The memory it may take is that of all ranks together, and each rank has a part of every block."""
    config, shape = EngineConfig(model_path="", kv_cache_bytes=1 << 20), read_model_config(path)
    counts = [ModelRunner(config, shape, Shard(0, size)).count_blocks() for size in (1, 2)]

    assert counts[0] == counts[1] > 50


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
    with pytest.raises(errors.ConfigError, match=named), processes(model(kind), tensor_parallel_size=size):
        pass


def test_world_of_one_has_no_socket_no_store_and_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr(socket, "socketpair", None)
    monkeypatch.setattr(Thread, "start", None)
    monkeypatch.setattr(torch.distributed, "TCPStore", None)
    with make_engine(crowds.settings(path)) as engine:
        assert len(engine.generate([PROMPT], SamplingParams(max_tokens=2))) == 1


def test_requests_go_home_unless_only_others_have_room_and_else_to_the_fewest_tokens() -> None:
    loads = {0: Load(900, 3), 1: Load(100, 8), 2: Load(500, 1)}

    assert deal(loads, home=0, num_places=8) == 0
    assert deal(loads, home=1, num_places=8) == 2  # All places at home are taken.
    assert deal(loads, home=1, num_places=1) == 1  # They are everywhere.
    assert deal(loads, home=7, num_places=9) == 1  # It was lost.
    assert deal(loads, home=None, num_places=9) == 1


def test_turns_of_a_conversation_find_their_prefix_where_it_was_computed(path: Path) -> None:
    cached = dict[str, list[int]]()
    with replicas(path) as engine:
        for turn, order in enumerate(("abcd", "dabc", "cdab")):
            for name in order:
                prompt = [ord(name)] * 16 + PROMPT[: 16 + 16 * turn]
                request = engine.prepare_request(prompt, SamplingParams(max_tokens=2), conversation=name)
                engine.add_prepared(request)
            samples = sorted(finish(engine), key=lambda sample: sample.request_id)
            for name, sample in zip(order, samples, strict=True):
                cached.setdefault(name, []).append(sample.num_cached_tokens)

        assert list(cached.values()) == [[0, 32, 48]] * 4
        assert all(stats.num_steps for stats in engine.replica_stats())


@needs_packing
def test_idle_replica_in_lock_step_computes_nothing_that_counts_for_hundreds_of_rounds(path: Path) -> None:
    """The other replica's long request has the bits of one process, and the idle one keeps its prefixes."""
    params = SamplingParams(max_tokens=ROUNDS, seed=1, ignore_eos=True)
    with alone(path) as one:
        expected = one.generate([PROMPT], params)[0]
    with lock_step(path, num_blocks=40) as engine:
        engine.add_request([7] * 20, PARAMS)  # Replica 0.
        number = engine.add_request(PROMPT, params)
        before = engine.replica_stats()[0]
        samples = {sample.request_id: sample for sample in finish(engine)}
        idle, busy = engine.replica_stats()

    assert samples[number].logprobs == expected.logprobs
    assert busy.num_steps >= ROUNDS
    assert idle.num_steps < before.num_steps + 15
    assert (idle.num_free_blocks, idle.num_cached_blocks) == (40 - 1, 1)


@needs_packing
@pytest.mark.parametrize("blocking", [True, False])
def test_update_between_rounds_counts_from_the_same_round_on_all_replicas(path: Path, blocking: bool) -> None:
    with lock_step(path) as engine:
        for seed in range(4):
            engine.add_request([seed] * 9, ENDLESS, stream=True)
        before = Counter[int]()
        for delta in (delta for _ in range(5) for delta in engine.step_deltas()):
            before[delta.request_id] += len(delta.token_ids)
        engine.update_weights(random_state_dict(path, seed=1), blocking=blocking)
        while engine.get_weight_version() == 0:
            pass
        for _ in range(5):
            engine.step_deltas()
        samples = engine.pause("abort")

    assert len(samples) == 4
    for sample in samples:
        assert sample.version_spans == (VersionSpan(0, 0), VersionSpan(1, before[sample.request_id]))


def test_replicas_in_lock_step_end_after_any_number_of_rounds(path: Path) -> None:
    """Whatever was under way: each replica ends, and none waits for another."""
    for num_rounds in range(0, 50, 1 if SCALE > 1 else 7):
        with lock_step(path) as engine:
            for seed in range(3):
                engine.add_request([seed] * 30, SamplingParams(max_tokens=300, ignore_eos=True), 2)
            for _ in range(num_rounds):
                engine.step()
