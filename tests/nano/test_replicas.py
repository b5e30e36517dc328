"""Independent replicas behind one engine: the bits of one process, and no request lost with a replica."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from random import Random
from threading import Thread

import psutil
import pytest
import torch

from mac_runner.nano import (
    ConfigError,
    Delta,
    EngineConfig,
    EngineState,
    InferenceEngine,
    RankFailedError,
    SamplingParams,
    TrainingSample,
)
from mac_runner.nano.testing import (
    Begin,
    Follower,
    Load,
    Member,
    ReplicaLostError,
    ReplicatedEngine,
    can_pack,
    deal,
    make_engine,
    serve,
    serve_leader,
)
from tests.faults.tier import SCALE
from tests.nano import crowds
from tests.nano.crowds import assert_ended, assert_same_bits, finish, in_a_crowd
from tests.nano.tiny_models import VOCAB_SIZE, random_state_dict
from tests.patience import LIMIT_S, wait_for
from tests.sim.held_steps import HeldSteps

CROWD = 40 * SCALE
PROMPT = [Random(5).randrange(VOCAB_SIZE) for _ in range(60)]
ENDLESS = SamplingParams(max_tokens=60, ignore_eos=True)

needs_packing = pytest.mark.skipif(
    not can_pack(torch.float32, torch.device("cpu")), reason="without oneDNN no bits are promised"
)


def settings(path: Path, **changes: object) -> EngineConfig:
    own = {"data_parallel_mode": "independent", "num_blocks": 200, "admission": "reserve"}
    return crowds.settings(path, 1, **{**own, **changes})


@dataclass(slots=True)
class Group:
    """An engine whose replicas are threads of this process; all but the processes is real."""

    engine: ReplicatedEngine
    ends: list[socket.socket]

    def lose(self, number: int) -> None:
        """End a replica, as its host's power does."""
        self.ends[number].shutdown(socket.SHUT_RDWR)


@contextmanager
def as_threads(path: Path, size: int = 2, **changes: object) -> Iterator[Group]:
    config = settings(path, data_parallel_size=size, **changes)
    begin, ends, begins, threads = Begin(replace(config, data_parallel_size=1)), [], [], []
    for number in range(size):
        ours, theirs = socket.socketpair()
        begins.append((Member(f"replica {number}", Connection(ours.detach())), begin))
        ends.append(socket.socket(fileno=os.dup(theirs.fileno())))
        threads.append(Thread(target=_live, args=(Connection(theirs.detach()),)))
        threads[-1].start()
    with ExitStack() as stack:
        for end in ends:
            stack.enter_context(closing(end))
        with ReplicatedEngine(config, begins) as engine:
            yield Group(engine, ends)
        for thread in threads:
            thread.join(LIMIT_S)
    assert [thread for thread in threads if thread.is_alive()] == []


def _live(connection: Connection) -> None:
    with closing(connection):
        serve_leader(connection)


def by_name(samples: list[TrainingSample]) -> dict[tuple[int, int], TrainingSample]:
    return {(sample.request_id, sample.sample_index): sample for sample in samples}


def bits(samples: dict[tuple[int, int], TrainingSample]) -> dict[tuple[int, int], object]:
    return {
        name: (each.completion_tokens, each.logprobs, each.version_spans, each.finish_reason, each.text)
        for name, each in samples.items()
    }


# The same bits.


@needs_packing
@pytest.mark.parametrize("cache_type", ["paged", "radix"])
def test_crowd_has_the_bits_of_one_process(path: Path, cache_type: str) -> None:
    with InferenceEngine(settings(path, cache_type=cache_type)) as one:
        expected = in_a_crowd(one, 1, CROWD)
    with as_threads(path, cache_type=cache_type) as group:
        found = in_a_crowd(group.engine, 1, CROWD)

    assert len(expected) > CROWD
    assert_same_bits(found, expected)


def test_each_of_two_replicas_takes_about_half_the_steps(path: Path) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = [[number] * 8 for number in range(64)]
    with InferenceEngine(settings(path)) as one:
        one.generate(prompts, params)
        alone = one.stats().num_steps
    with as_threads(path) as group:
        group.engine.generate(prompts, params)
        steps = [stats.num_steps for stats in group.engine.replica_stats()]
        assert group.engine.stats().num_steps == sum(steps)

    assert max(steps) <= 0.55 * alone


def test_requests_go_home_unless_only_others_have_room_and_else_to_the_fewest_tokens() -> None:
    loads = {0: Load(900, 3), 1: Load(100, 8), 2: Load(500, 1)}

    assert deal(loads, home=0, num_places=8) == 0
    assert deal(loads, home=1, num_places=8) == 2  # All places at home are taken.
    assert deal(loads, home=1, num_places=1) == 1  # They are everywhere.
    assert deal(loads, home=7, num_places=9) == 1  # It was lost.
    assert deal(loads, home=None, num_places=9) == 1


def test_turns_of_a_conversation_find_their_prefix_where_it_was_computed(path: Path) -> None:
    with as_threads(path) as group:
        cached = dict[str, list[int]]()
        for turn, order in enumerate(("abcd", "dabc", "cdab")):
            for name in order:
                prompt = [ord(name)] * 16 + PROMPT[: 16 + 16 * turn]
                request = group.engine.prepare_request(prompt, SamplingParams(max_tokens=2), conversation=name)
                group.engine.add_prepared(request)
            for number, sample in enumerate(by_name(finish(group.engine)).values()):
                cached.setdefault(order[number], []).append(sample.num_cached_tokens)

        assert list(cached.values()) == [[0, 32, 48]] * 4
        assert all(stats.num_steps for stats in group.engine.replica_stats())


# A replica is lost.


@needs_packing
@pytest.mark.parametrize("lost", [0, 1])
def test_requests_of_a_lost_replica_are_computed_by_another_with_the_same_bits(
    path: Path, lost: int, steps: HeldSteps
) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=40, ignore_eos=True)
    with InferenceEngine(settings(path)) as one:
        for number in range(12):
            one.add_request([number] * 9, params, 2)
        expected = bits(by_name(finish(one)))
    with as_threads(path) as group:
        steps.hold()
        for number in range(12):
            group.engine.add_request([number] * 9, params, 2)
        wait_for(
            lambda: all(each.num_completion_tokens for each in group.engine.replica_stats()), "some tokens of each"
        )
        group.lose(lost)
        steps.go()
        samples = group.engine.step()
        samples += finish(group.engine)

        assert bits(by_name(samples)) == expected
        assert len(samples) == 24
        assert group.engine.stats().num_replicas == 1


@needs_packing
def test_stream_goes_on_where_it_was_when_its_replica_is_lost(path: Path, steps: HeldSteps) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=60, ignore_eos=True, seed=4)
    with InferenceEngine(settings(path)) as one:
        expected = one.generate([PROMPT], params)[0]
    with as_threads(path) as group:
        steps.hold()
        request = group.engine.add_request(PROMPT, params, stream=True)
        deltas = group.engine.step_deltas()
        group.lose(group.engine._dealt[request].replica.number)
        steps.go()
        while group.engine.has_pending():
            deltas += group.engine.step_deltas()

    assert [token for delta in deltas for token in delta.token_ids] == list(expected.completion_tokens)
    assert "".join(delta.text for delta in deltas) == expected.text
    assert [delta.sample is not None for delta in deltas].count(True) == 1


@needs_packing
def test_stream_that_no_replica_continues_ends_with_an_error(path: Path, steps: HeldSteps) -> None:
    with as_threads(path) as group:
        engine = group.engine
        steps.hold()
        request = engine.add_request(PROMPT, replace(ENDLESS, temperature=0.0), stream=True)
        deltas = list[Delta]()
        while sum(len(delta.token_ids) for delta in deltas) < 3:
            deltas += engine.step_deltas()
        engine.update_weights(random_state_dict(path, seed=1), blocking=True)
        group.lose(engine._dealt[request].replica.number)
        while engine.has_pending():
            deltas += engine.step_deltas()

    assert deltas[-1].sample is not None
    assert isinstance(deltas[-1].sample.error, ReplicaLostError)


def test_engine_without_replicas_says_how_each_was_lost(path: Path, steps: HeldSteps) -> None:
    with as_threads(path) as group:
        steps.hold()
        group.engine.add_request(PROMPT, ENDLESS)
        group.lose(0)
        group.lose(1)
        with pytest.raises(RankFailedError, match=r"(replica \d: is gone.*){2}"):
            finish(group.engine)
        with pytest.raises(RankFailedError, match="all replicas"):
            group.engine.add_request(PROMPT, ENDLESS)


# What reaches all replicas.


@needs_packing
def test_weights_pauses_and_sleep_reach_all_replicas(path: Path, steps: HeldSteps) -> None:
    weights = random_state_dict(path, seed=1)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    prompts = [[number] * 9 for number in range(6)]
    with InferenceEngine(settings(path)) as one:
        one.update_weights(weights, blocking=True)
        expected = [sample.logprobs for sample in one.generate(prompts, params)]
    with as_threads(path) as group:
        engine = group.engine
        begin_streams(engine, 4, steps)
        engine.pause("keep")
        with pytest.raises(ConfigError, match="4 requests are running"):
            engine.sleep()
        engine.resume()
        engine.update_weights(weights, blocking=True)
        assert len(engine.pause("abort")) == 4
        steps.go()
        engine.sleep(drop_weights=False)
        assert engine.state is EngineState.ASLEEP
        engine.wake()
        samples = engine.generate(prompts, params)

        assert [sample.logprobs for sample in samples] == expected
        assert {span.version for sample in samples for span in sample.version_spans} == {1}
        assert all(stats.num_steps for stats in engine.replica_stats())


def test_pause_waits_for_what_runs_on_all_replicas(path: Path, steps: HeldSteps) -> None:
    with as_threads(path) as group:
        begin_streams(group.engine, 4, steps)
        group.engine.begin_pause("wait")
        steps.go()
        samples = finish(group.engine)

        assert [sample.finish_reason for sample in samples] == ["length"] * 4
        assert group.engine.state is EngineState.PAUSED


def begin_streams(engine: ReplicatedEngine, count: int, steps: HeldSteps) -> None:
    """Add long requests, let them begin together, and wait until each of them runs."""
    steps.hold(after=0)
    coming = {engine.add_request([number] * 5, ENDLESS, stream=True) for number in range(count)}
    wait_for(lambda: engine.stats().num_waiting == count, "all requests")
    steps.hold()
    while coming:
        coming -= {delta.request_id for delta in engine.step_deltas()}


# Real processes.


@needs_packing
@pytest.mark.parametrize("cache_type", ["radix", "paged"] if SCALE > 1 else ["radix"])
def test_engine_of_two_by_two_processes_has_the_bits_of_one_outlives_the_kill_of_a_rank_and_leaves_none(
    path: Path, cache_type: str
) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True)
    with InferenceEngine(settings(path)) as one:
        crowd = in_a_crowd(one, 1, CROWD)
        expected = bits(by_name(one.generate([[number] * 9 for number in range(8)], params)))
    with make_engine(settings(path, data_parallel_size=2, tensor_parallel_size=2, cache_type=cache_type)) as engine:
        assert isinstance(engine, ReplicatedEngine)
        assert_same_bits(in_a_crowd(engine, 1, CROWD), crowd)
        heads = [psutil.Process(replica.member.process.pid) for replica in engine._replicas.values()]
        others = [child for head in heads for child in head.children()]
        for number in range(8):
            engine.add_request([number] * 9, params)
        others[1].kill()
        samples = by_name(finish(engine))

        assert bits(samples) == expected
        assert len(others) == 2
        wait_for(lambda: engine.stats().num_replicas == 1, "the end of the replica whose rank was killed")
        heads[0].kill()
        with pytest.raises(RankFailedError, match="SIGKILL"):
            engine.generate([PROMPT], ENDLESS)
    assert_ended(heads + others)


@pytest.mark.parametrize("life", [serve_leader, lambda connection: serve(connection, Follower)])
def test_process_that_is_asked_to_end_before_it_begins_ends_in_silence(life: Callable[[Connection], None]) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        ours.send(None)
        life(theirs)

        assert not ours.poll()


def test_world_of_one_has_no_socket_no_store_and_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr(socket, "socketpair", None)
    monkeypatch.setattr(Thread, "start", None)
    monkeypatch.setattr(torch.distributed, "TCPStore", None)
    with make_engine(settings(path)) as engine:
        assert len(engine.generate([PROMPT], SamplingParams(max_tokens=2))) == 1
