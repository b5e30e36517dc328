"""Replicas that step together: the bits of one process, one version per round, and one end for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from mac_runner.nano import (
    ConfigError,
    EngineState,
    EngineStoppedError,
    InferenceEngine,
    InvalidRequestError,
    ModelError,
    QueueFullError,
    RankFailedError,
    SamplingParams,
)
from mac_runner.nano.testing import LockstepEngine, can_pack
from tests.faults.tier import SCALE
from tests.nano.crowds import (
    PROMPT,
    as_processes,
    as_threads,
    assert_ended,
    assert_same_bits,
    descendants,
    finish,
    in_a_crowd,
    settings,
)
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S

CROWD = 40 * SCALE
ROUNDS = 500 if SCALE > 1 else 150
ENDLESS = SamplingParams(max_tokens=300, ignore_eos=True)
PARAMS = SamplingParams(temperature=0.9, max_tokens=12, seed=11, ignore_eos=True)

pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="without oneDNN no bits are promised"
)


@pytest.fixture
def one(path: Path) -> Iterator[InferenceEngine]:
    """One process, with a cache that holds everything."""
    changes = {"data_parallel_mode": "independent", "num_blocks": 400, "admission": "reserve"}
    with InferenceEngine(settings(path, 1, **changes)) as engine:
        yield engine


# The same bits.


@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_crowd_on_replicas_has_the_bits_of_one_process(path: Path, one: InferenceEngine, cache_type: str) -> None:
    expected = in_a_crowd(one, 1, CROWD)
    for replicas, sync_every in ((2, 1), (3, 4)):
        with as_threads(path, replicas, cache_type=cache_type, sync_every=sync_every, num_blocks=12) as engine:
            found = in_a_crowd(engine, 1, CROWD)
            stats = engine.replica_stats()

        assert_same_bits(found, expected)
        assert sum(each.num_preemptions for each in stats) > 0
        assert all(each.num_completion_tokens > 0 for each in stats)
        assert {(each.num_running, each.num_waiting) for each in stats} == {(0, 0)}


def test_idle_replica_computes_nothing_that_counts_for_hundreds_of_rounds(path: Path, one: InferenceEngine) -> None:
    """The other replica's long request has the bits of one process, and the idle one keeps its prefixes."""
    expected = one.generate([PROMPT], SamplingParams(max_tokens=ROUNDS, seed=1, ignore_eos=True))
    with as_threads(path, num_blocks=40) as engine:
        engine.add_request([7] * 20, PARAMS)  # Replica 0.
        number = engine.add_request(PROMPT, SamplingParams(max_tokens=ROUNDS, seed=1, ignore_eos=True))
        before = engine.replica_stats()[0]
        samples = {sample.request_id: sample for sample in finish(engine)}
        idle, busy = engine.replica_stats()

    assert samples[number].logprobs == expected[0].logprobs
    assert busy.num_steps >= ROUNDS
    assert idle.num_steps < before.num_steps + 15
    assert (idle.num_free_blocks, idle.num_cached_blocks) == (40 - 1, 1)


def test_replicas_take_little_more_than_half_the_steps_of_one(path: Path) -> None:
    prompts = [[seed] * 20 for seed in range(64)]
    with InferenceEngine(settings(path, 1, num_blocks=400)) as single:
        single.generate(prompts, PARAMS)
        steps = single.stats().num_steps
    with as_threads(path, num_blocks=400) as engine:
        engine.generate(prompts, PARAMS)

        assert max(each.num_steps for each in engine.replica_stats()) <= 0.55 * steps


# One version per round.


@pytest.mark.parametrize("blocking", [True, False])
def test_update_between_rounds_counts_from_the_same_round_on_all_replicas(
    path: Path, one: InferenceEngine, blocking: bool
) -> None:
    with as_threads(path) as engine:
        numbers = [engine.add_request([seed] * 9, ENDLESS, stream=True) for seed in range(4)]
        counts = [dict.fromkeys(numbers, 0)]

        def play() -> None:
            counts.append(dict(counts[-1]))
            for delta in engine.step_deltas():
                counts[-1][delta.request_id] += len(delta.token_ids)

        for _ in range(5):
            play()
        engine.update_weights(random_state_dict(path, seed=1), blocking=blocking)
        updated = None
        while updated is None or len(counts) < updated + 5:
            play()
            if updated is None and engine.get_weight_version() == 1:
                # `get_weight_version` itself installs what is ready, so that round was the last of the old weights.
                updated = len(counts)
        samples = {sample.request_id: sample for sample in engine.pause("abort")}
        engine.resume()
        one.update_weights(random_state_dict(path, seed=1), blocking=True)

        rounds = {
            next(i for i, count in enumerate(counts) if count[number] > samples[number].version_spans[1].start)
            for number in numbers
        }
        assert len(rounds) == 1
        assert [span.version for span in samples[numbers[0]].version_spans] == [0, 1]
        assert engine.generate([PROMPT], PARAMS)[0].logprobs == one.generate([PROMPT], PARAMS)[0].logprobs


# The whole of the API.


def test_engine_of_replicas_pauses_sleeps_and_wakes_as_one(path: Path, one: InferenceEngine) -> None:
    expected = [sample.logprobs for sample in one.generate([PROMPT, [4]], PARAMS, 2)]
    with as_threads(path, max_waiting=20) as engine:
        engine.add_request([1], ENDLESS)
        engine.step()
        with pytest.raises(ConfigError, match="1 requests are running"):
            engine.sleep()
        assert [sample.finish_reason for sample in engine.pause("abort")] == ["abort"]
        assert engine.state is EngineState.PAUSED
        engine.sleep(drop_weights=True)
        engine.wake()
        assert [sample.logprobs for sample in engine.generate([PROMPT, [4]], PARAMS, 2)] == expected

        engine.add_request([1], PARAMS)
        engine.step()
        engine.begin_pause("wait")
        assert len(finish(engine)) == 1
        assert engine.state is EngineState.PAUSED
        engine.resume()

        engine.flush_cache()
        assert engine.stats().num_cached_blocks == 0
        engine.update_weights(random_state_dict(path, seed=1), blocking=True)
        engine.sleep(drop_weights=True)
        with pytest.raises(ModelError, match="dropped"):
            engine.wake()
        engine.update_weights(random_state_dict(path, seed=2), blocking=True)
        engine.wake()
        with pytest.raises(QueueFullError):
            engine.generate([[1]] * 21, PARAMS)
        with pytest.raises(InvalidRequestError):
            engine.generate([[]], PARAMS)
        assert engine.generate([[1]], PARAMS)[0].weight_version == 2
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(EngineStoppedError):
            engine.add_request([1], PARAMS)


def test_engine_ends_after_any_number_of_rounds(path: Path) -> None:
    """Whatever was under way: each replica ends, and none waits for another."""
    for num_rounds in range(0, 50, 1 if SCALE > 1 else 7):
        with as_threads(path) as engine:
            for seed in range(3):
                engine.add_request([seed] * 30, ENDLESS, 2)
            for _ in range(num_rounds):
                engine.step()


# Failures.


def test_killed_replica_ends_all_and_is_named(path: Path) -> None:
    with as_processes(path) as engine:
        assert_ends_all(engine, descendants()[0], "replica 1", "SIGKILL")


VICTIMS = [
    pytest.param("radix", 1, 1, ("replica 1", "rank 1", "SIGKILL"), True, id="rank-of-a-follower-at-rest"),
    pytest.param("radix", 1, 1, ("replica 1", "rank 1", "SIGKILL"), False, id="rank-of-a-follower"),
    pytest.param("paged", 0, 1, ("rank 1", "SIGKILL"), False, id="rank-of-the-leader"),
    pytest.param("paged", 1, 0, ("replica 1", "SIGKILL"), False, id="follower"),
]


@pytest.mark.parametrize(("cache_type", "replica", "rank", "named", "at_rest"), VICTIMS if SCALE > 1 else VICTIMS[:1])
def test_replicas_of_two_ranks_have_the_bits_of_one_process_until_one_of_four_is_killed(
    path: Path, one: InferenceEngine, cache_type: str, replica: int, rank: int, named: tuple[str, ...], at_rest: bool
) -> None:
    with as_processes(path, tensor_parallel_size=2, cache_type=cache_type) as engine:
        assert_same_bits(in_a_crowd(engine, 2, CROWD // 2), in_a_crowd(one, 2, CROWD // 2))
        victim = process_of(replica, rank)
        assert_ends_all(engine, victim, *named, at_rest=at_rest)


def process_of(replica: int, rank: int) -> psutil.Process:
    """The process of a rank; that of the leader is this one."""
    ours = psutil.Process()
    (follower,) = (each for each in ours.children() if any("lockstep_follower" in word for word in each.cmdline()))
    head = follower if replica else ours
    return next(each for each in head.children() if each != follower) if rank else head


def test_leader_that_fails_while_it_packs_ends_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no more")

    with as_threads(path) as engine:
        engine.add_request([1], ENDLESS)
        engine.step()
        monkeypatch.setattr(engine, "_pack", fail)
        with pytest.raises(MemoryError, match="no more"):
            engine.step()
        with pytest.raises(RankFailedError, match="no more"):
            engine.add_request([1], PARAMS)


def assert_ends_all(engine: LockstepEngine, victim: psutil.Process, *named: str, at_rest: bool = False) -> None:
    """The engine says which process was lost, whatever it is asked for, and keeps none. At rest it finds out itself."""
    processes = descendants()
    for seed in range(0 if at_rest else 4):
        engine.add_request([seed], ENDLESS)
        engine.step()
    victim.kill()
    if at_rest:
        assert engine._ranks.is_over.wait(LIMIT_S)
    else:
        with pytest.raises(RankFailedError):
            finish(engine)
    with pytest.raises(RankFailedError) as caught:
        engine.add_request([1], PARAMS)
    assert all(name in str(caught.value) for name in named), str(caught.value)
    assert_ended(processes)
