"""What becomes of an engine that loses a process: ranks end with each other, and replicas go on for one another."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from mac_runner.nano import (
    AsyncEngine,
    Delta,
    EngineStoppedError,
    ForwardBatch,
    InferenceEngine,
    RankFailedError,
    SamplingParams,
)
from mac_runner.nano.parallel import group, workers
from mac_runner.nano.parallel import replicas as replicas_module
from mac_runner.nano.testing import (
    Member,
    ModelRunner,
    ParallelRunner,
    ReplicaLostError,
    ReplicatedEngine,
    Span,
    Worker,
    Workers,
    has_ordered_memory,
    serve,
)
from tests.faults.tier import SCALE
from tests.nano import crowds
from tests.nano.crowds import alone, bits, finish, lock_step, needs_packing, processes, replicas, started_with
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S, descendants, is_alive, wait_for, wait_for_ends
from tests.sim.held_steps import HeldSteps

CROWD = 20 * SCALE
PROMPT = crowds.PROMPT[:60]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=300, ignore_eos=True)
WARM = SamplingParams(temperature=0.9, max_tokens=40, ignore_eos=True)
FIXED = replace(WARM, seed=3)
RANKS = {"tensor_parallel_size": 2}
LOCK_STEP = {"data_parallel_size": 2, "data_parallel_mode": "lock_step", "num_blocks": 60, "admission": "preempt"}


# Ranks, and replicas in lock step: with one all are lost.


def process_of(replica: int | None, rank: int) -> psutil.Process:
    """The process of a rank, of a replica where there are several. The first rank of a replica is the replica's."""
    head = psutil.Process() if replica is None else child(psutil.Process(), "replica", replica)
    return child(head, "rank", rank) if rank else head


def child(process: psutil.Process, kind: str, number: int) -> psutil.Process:
    return next(each for each in process.children() if each.cmdline()[-4:-2] == [kind, str(number)])


def assert_over(engine: Any, *named: str) -> RankFailedError:
    """Whatever is asked of it, the engine says why it is no more."""
    with pytest.raises(RankFailedError) as caught:
        engine.add_request([1], GREEDY)
    for ask in (engine.step, engine.stats, engine.sleep):
        with pytest.raises(RankFailedError):
            ask()
    assert all(name in str(caught.value) for name in named), str(caught.value)
    return caught.value


TORCH = {**RANKS, "tensor_parallel_gather": "torch"}
FOUR, FOUR_PAGED = {**LOCK_STEP, **RANKS, "cache_type": "radix"}, {**LOCK_STEP, **RANKS, "cache_type": "paged"}
VICTIMS = [
    pytest.param(TORCH, None, 1, ("rank 1 (process", "SIGKILL"), False, id="rank"),
    pytest.param(RANKS, None, 1, ("rank 1", "SIGKILL"), True, id="rank-at-rest"),
    pytest.param(LOCK_STEP, 1, 0, ("replica 1", "SIGKILL"), False, id="replica"),
    pytest.param(FOUR, 1, 1, ("replica 1", "rank 1", "SIGKILL"), True, id="rank-of-a-replica-at-rest"),
    pytest.param(FOUR, 1, 1, ("replica 1", "rank 1", "SIGKILL"), False, id="rank-of-a-replica"),
    pytest.param(FOUR_PAGED, 0, 1, ("replica 0", "rank 1", "SIGKILL"), False, id="rank-of-the-first"),
    pytest.param(FOUR_PAGED, 1, 0, ("replica 1", "SIGKILL"), False, id="head-of-ranks"),
]


@pytest.mark.parametrize(("changes", "replica", "rank", "named", "at_rest"), VICTIMS[: None if SCALE > 1 else 4])
def test_group_has_the_bits_of_one_process_until_a_member_is_killed_which_ends_all_and_is_named(
    path: Path, changes: dict[str, Any], replica: int | None, rank: int, named: tuple[str, ...], at_rest: bool
) -> None:
    """At rest it finds out itself."""
    with processes(path, **changes) as engine:
        if crowds.PACKS:
            with alone(path) as one:
                crowds.assert_same_bits(crowds.in_a_crowd(engine, 2, CROWD), crowds.in_a_crowd(one, 2, CROWD))
        started, victim = descendants(), process_of(replica, rank)
        for seed in range(0 if at_rest else 4):
            engine.add_request([seed], ENDLESS)
            engine.step()
        victim.kill()
        if at_rest:
            assert (engine._runner._ranks if replica is None else engine._workers).is_over.wait(LIMIT_S)
        else:
            with pytest.raises(RankFailedError):
                finish(engine)
        assert_over(engine, *named)
        wait_for_ends(started)


def test_leader_that_fails_while_it_calls_a_round_ends_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no more")

    with lock_step(path) as engine:
        engine.add_request([1], ENDLESS)
        engine.step()
        monkeypatch.setattr(engine._workers, "begin", fail)
        with pytest.raises(MemoryError, match="no more"):
            engine.step()
        with pytest.raises(RankFailedError, match="no more"):
            engine.add_request([1], GREEDY)


def test_error_of_rank_0_ends_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ModelRunner, batch: ForwardBatch) -> torch.Tensor:
        raise MemoryError("no more")

    with processes(path, **RANKS) as engine:
        monkeypatch.setattr(ModelRunner, "forward", fail)
        with pytest.raises(MemoryError, match="no more"):
            engine.generate([PROMPT], GREEDY)

        wait_for_ends(descendants())
        assert_over(engine, "rank 0", "no more")


def test_error_on_a_rank_ends_all_and_is_told_with_its_traceback(path: Path) -> None:
    with processes(path, **RANKS) as engine:
        beyond = 10**6  # A token that no vocabulary has.
        span = Span(first_row=0, num_tokens=2, start=0, block_ids=(0,))
        engine._runner._ranks.send(
            ForwardBatch(token_ids=(1, beyond), positions=(0, 1), slots=(0, 1), spans=(span,), logit_rows=())
        )
        with pytest.raises(RankFailedError):
            engine.generate([PROMPT], ENDLESS)

        error = assert_over(engine, "rank 1", "IndexError")
        assert "model_forward" in error.__notes__[0]
        wait_for_ends(descendants())


@pytest.mark.skipif(not has_ordered_memory(), reason="gloo's patience is fixed when it starts")
def test_rank_that_does_not_answer_is_not_waited_for_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with processes(path, **RANKS) as engine:
        monkeypatch.setattr(group, "PATIENCE_S", 0.2)
        monkeypatch.setattr(workers, "END_S_MAX", 0.2)
        rank = process_of(None, 1)
        rank.suspend()
        wait_for(lambda: rank.status() == psutil.STATUS_STOPPED, "rank 1 to stand still")
        with pytest.raises(RankFailedError, match="rank 1 has kept"):
            engine.generate([PROMPT], GREEDY)


def test_rank_that_dies_as_it_starts_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", "mac_runner.clock.missing")  # It cannot be run.
    with pytest.raises(RankFailedError, match=r"rank 1 .* exit code 1"), processes(path, **RANKS):
        pass


def test_connection_of_a_lost_rank_stays_open_for_who_may_be_sending_until_the_engine_ends() -> None:
    ours, theirs = Pipe()
    others = Workers([Member("rank 1", ours)], is_together=True)
    theirs.close()

    assert others.is_over.wait(LIMIT_S)
    assert not ours.closed
    with pytest.raises(RankFailedError, match="rank 1 is gone"):
        others.call("install")
    others.close()
    assert ours.closed


@started_with(**RANKS)
async def test_callers_of_an_engine_whose_rank_is_killed_are_told_which(steps: HeldSteps, engine: AsyncEngine) -> None:
    steps.hold()
    stream = engine.stream([1, 2], ENDLESS)
    await anext(stream)
    process_of(None, 1).kill()
    steps.go()
    with pytest.raises(EngineStoppedError, match="rank 1"):
        async for _ in stream:
            pass
    with pytest.raises(EngineStoppedError, match="rank 1"):
        await engine.generate([1], GREEDY)


def test_engine_that_is_dropped_without_a_word_keeps_no_processes(path: Path) -> None:
    engine = InferenceEngine(crowds.settings(path, **RANKS))
    started = descendants()
    assert isinstance(engine._runner, ParallelRunner)
    del engine

    assert len(started) == 1
    wait_for_ends(started)


WAITING_PROGRAM = """
import sys
from mac_runner.nano import EngineConfig, InferenceEngine, SamplingParams
from mac_runner.nano.architecture import read_model_config
from mac_runner.nano.attention import Piece, make_batch
engine = InferenceEngine(EngineConfig(model_path=sys.argv[1], tensor_parallel_size=2, num_threads=1, num_blocks=100))
engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
engine._runner._ranks.send(make_batch([Piece([1, 2, 3], 0, 3, [0])], 16))
print(*[member.process.pid for member in engine._runner._ranks._ends], flush=True)
sys.stdin.read()
"""


def test_rank_0_that_is_killed_leaves_nobody_not_even_who_waits_for_it_in_a_step(path: Path) -> None:
    """A script needs no guard around its engine either: the other ranks do not run it again."""
    command = [sys.executable, "-c", WAITING_PROGRAM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        (other,) = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        before_s = spent_s(other)
        if has_ordered_memory():  # Who waits there looks again and again; over gloo a rank sleeps.
            wait_for(lambda: spent_s(other) > before_s, "rank 1 to wait in the step")
        assert is_alive(other)
        process.kill()

    wait_for_ends([other])


def test_call_to_ranks_that_end_unanswered_is_given_up_when_the_engine_is_closed() -> None:
    """A rank ends when it is asked to, whatever it builds beside its work."""
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as threads, closing(Connection(theirs.detach())) as rank:
        others = Workers([Member("rank 1", Connection(ours.detach()))], is_together=True)
        call = threads.submit(others.call, "begin_build")
        rank.recv()
        end = threads.submit(others.close)
        assert rank.recv() is None
        rank.close()

        with pytest.raises(RankFailedError, match="closed during a call"):
            call.result(LIMIT_S)
        end.result(LIMIT_S)


def spent_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_process_that_is_asked_to_end_before_it_begins_ends_in_silence() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        ours.send(None)
        assert serve(theirs, Worker)

        assert not ours.poll()


# Independent replicas: the others answer.


@needs_packing
@pytest.mark.parametrize("lost", [0, 1])
def test_requests_of_a_lost_replica_are_computed_by_another_with_the_same_bits(
    path: Path, lost: int, steps: HeldSteps
) -> None:
    with alone(path) as one:
        for number in range(12):
            one.add_request([number] * 9, WARM, 2)
        expected = bits(finish(one))
    with replicas(path) as engine:
        steps.hold()
        for number in range(12):
            engine.add_request([number] * 9, WARM, 2)
        wait_for(lambda: all(each.num_completion_tokens for each in engine.replica_stats()), "some tokens of each")
        crowds.lose(engine, lost)
        steps.go()
        samples = engine.step()
        samples += finish(engine)

        assert bits(samples) == expected
        assert len(samples) == 24
        assert engine.stats().num_replicas == 1


@needs_packing
def test_replica_that_hangs_is_ended_and_started_again_with_the_weights_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rest each says every second that it is there."""
    monkeypatch.setattr(workers, "LOOKS_MAX", 3)
    prompts = [[number] * 9 for number in range(8)]
    with alone(path) as one, processes(path, data_parallel_size=2) as engine:
        for each in (one, engine):
            each.update_weights(random_state_dict(path, seed=1), blocking=True)
        expected = [crowds.told(sample) for sample in one.generate(prompts, FIXED)]
        assert [crowds.told(sample) for sample in engine.generate(prompts, FIXED)] == expected
        victim = process_of(0, 0)
        victim.suspend()
        assert [crowds.told(sample) for sample in engine.generate(prompts, FIXED)] == expected

        wait_for_ends([victim])
        wait_for(lambda: engine.stats().num_replicas == 2, "another replica in its place")
        assert [crowds.told(sample) for sample in engine.generate(prompts, FIXED)] == expected
        assert all(each.num_completion_tokens for each in engine.replica_stats())
        assert len(engine._workers._ends) == 2


@pytest.mark.parametrize("is_gone", [False, True])
def test_lost_replica_is_not_started_again_from_files_that_have_changed(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    path = Path(shutil.copytree(path, tmp_path / "model"))
    with processes(path, data_parallel_size=2) as engine:
        engine.generate([PROMPT] * 4, FIXED)
        if is_gone:
            path.rename(path.with_name("elsewhere"))
        else:
            (path / "model.safetensors").touch()
        process_of(0, 0).kill()
        wait_for(lambda: engine.stats().num_replicas == 1, "the end of the replica")
        reason = "cannot be started again" if is_gone else "have changed"
        wait_for(lambda: reason in caplog.text, "the reason")

        assert engine._coming == {}
        assert len(engine.generate([PROMPT], FIXED)) == 1


def test_process_that_computes_does_not_stand_still_until_it_is_suspended() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            wait_for(lambda: workers.time_spent(process.pid) is None, "it to compute")
            psutil.Process(process.pid).suspend()
            wait_for(lambda: workers.time_spent(process.pid) is not None, "it to stand still")
            assert workers.time_spent(process.pid) == workers.time_spent(process.pid)
        finally:
            process.kill()
    assert workers.time_spent(process.pid) is None


def test_request_that_is_under_way_at_three_replicas_that_are_lost_ends_with_an_error(
    path: Path, steps: HeldSteps
) -> None:
    with replicas(path, data_parallel_size=4) as engine:
        steps.hold()
        engine.add_request(PROMPT, ENDLESS)
        for left in (3, 2, 1):
            (number,) = [number for number, replica in engine._replicas.items() if replica.load.num_samples]
            crowds.lose(engine, number)
            wait_for(lambda left=left: engine.stats().num_replicas == left, "its loss to be seen")  # type: ignore[misc]
        samples = engine.step()

        assert [type(sample.error) for sample in samples] == [ReplicaLostError]
        assert engine.stats().num_replicas == 1
        steps.go()
        assert len(engine.generate([PROMPT], GREEDY)) == 1


@needs_packing
def test_stream_goes_on_where_it_was_when_its_replica_is_lost(path: Path, steps: HeldSteps) -> None:
    params = replace(WARM, max_tokens=60, seed=4)
    with alone(path) as one:
        expected = one.generate([PROMPT], params)[0]
    with replicas(path) as engine:
        steps.hold()
        engine.add_request(PROMPT, params, stream=True)
        deltas = engine.step_deltas()
        crowds.lose(engine, [each.num_running for each in engine.replica_stats()].index(1))
        steps.go()
        while engine.has_pending():
            deltas += engine.step_deltas()

    assert [token for delta in deltas for token in delta.token_ids] == list(expected.completion_tokens)
    assert "".join(delta.text for delta in deltas) == expected.text
    assert [delta.sample is not None for delta in deltas].count(True) == 1


def test_all_requests_are_aborted_by_one_call_of_each_replica_those_too_that_are_computed_again(
    path: Path, steps: HeldSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replicas(path, data_parallel_size=3) as engine:
        numbers = crowds.begin_streams(engine, 6, steps, ENDLESS)
        crowds.lose(engine, 0)
        wait_for(lambda: engine.stats().num_replicas == 2, "its loss to be seen")
        begin, called = engine._workers.begin, list[str]()

        def noted(method: str, *arguments: object, **options: Any) -> Any:
            called.append(method)
            return begin(method, *arguments, **options)

        monkeypatch.setattr(engine._workers, "begin", noted)
        samples = engine.pause("abort")

    assert called[:2] == ["engine.abort_deltas", "begin_pause"]
    assert sorted((sample.request_id, sample.finish_reason) for sample in samples) == [
        (each, "abort") for each in numbers
    ]


@needs_packing
def test_stream_that_no_replica_continues_ends_with_an_error(path: Path, steps: HeldSteps) -> None:
    with replicas(path) as engine:
        steps.hold()
        engine.add_request(PROMPT, replace(ENDLESS, temperature=0.0), stream=True)
        deltas = list[Delta]()
        while sum(len(delta.token_ids) for delta in deltas) < 3:
            deltas += engine.step_deltas()
        engine.update_weights(random_state_dict(path, seed=1), blocking=True)
        crowds.lose(engine, [each.num_running for each in engine.replica_stats()].index(1))
        while engine.has_pending():
            deltas += engine.step_deltas()

    assert deltas[-1].sample is not None
    assert isinstance(deltas[-1].sample.error, ReplicaLostError)


def test_engine_without_replicas_says_how_each_was_lost(path: Path, steps: HeldSteps) -> None:
    with replicas(path) as engine:
        steps.hold()
        engine.add_request(PROMPT, ENDLESS)
        crowds.lose(engine, 0)
        crowds.lose(engine, 1)
        with pytest.raises(RankFailedError, match=r"(replica \d is gone.*){2}"):
            finish(engine)
        with pytest.raises(RankFailedError, match="all replicas"):
            engine.add_request(PROMPT, ENDLESS)


@needs_packing
@pytest.mark.parametrize("cache_type", ["radix", "paged"] if SCALE > 1 else ["radix"])
def test_engine_of_two_by_two_processes_has_the_bits_of_one_outlives_the_kill_of_a_rank_and_leaves_none(
    path: Path, cache_type: str
) -> None:
    with alone(path) as one:
        crowd = crowds.in_a_crowd(one, 1, 2 * CROWD)
        expected = bits(one.generate([[number] * 9 for number in range(8)], WARM))
    with processes(path, data_parallel_size=2, **RANKS, cache_type=cache_type) as engine:
        assert isinstance(engine, ReplicatedEngine)
        crowds.assert_same_bits(crowds.in_a_crowd(engine, 1, 2 * CROWD), crowd)
        heads = [psutil.Process(replica.member.process.pid) for replica in engine._replicas.values()]
        others = [child for head in heads for child in head.children()]
        for number in range(8):
            engine.add_request([number] * 9, WARM)
        others[1].kill()

        assert bits(finish(engine)) == expected
        assert len(others) == 2
        wait_for_ends([heads[1], others[1]])
        wait_for(lambda: engine.stats().num_replicas == 2, "another replica in its place")


@needs_packing
def test_requests_wait_while_all_replicas_are_started_again_until_one_has_ended_too_often_in_a_row(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "QUICK_ENDS_MAX", 2)
    monkeypatch.setattr(replicas_module, "QUICK_S", 3600.0)
    prompts = [[number] * 9 for number in range(8)]
    with processes(path, data_parallel_size=2) as engine:
        expected = [crowds.told(sample) for sample in engine.generate(prompts, FIXED)]
        for replica in list(engine._replicas.values()):
            replica.member.kill()
        wait_for(lambda: engine.stats().num_replicas == 0, "the loss of both")
        aborted, finished = engine.add_request(PROMPT, ENDLESS), engine.add_request(prompts[0], FIXED)
        assert engine.stats().num_waiting == 2
        assert [(each.request_id, each.finish_reason) for each in engine.abort(aborted)] == [(aborted, "abort")]
        assert [(each.request_id, crowds.told(each)) for each in finish(engine)] == [(finished, expected[0])]

        wait_for(lambda: engine.stats().num_replicas == 2, "both")
        assert [crowds.told(sample) for sample in engine.generate(prompts, FIXED)] == expected
        process_of(1, 0).kill()
        with pytest.raises(RankFailedError, match=r"replica 1 ended 2 times in a row .*SIGKILL"):
            engine.generate([[9] * number for number in range(1, 40)], ENDLESS)
        assert_over(engine, "2 times in a row")


def end_at_once(members: list[Member]) -> None:
    """Kill processes before anything is read of them again."""
    for member in members:
        member.kill()
    wait_for(lambda: all(member.is_gone for member in members), "their ends")


def test_replicas_that_end_as_they_load_when_no_other_is_left_end_the_engine(path: Path) -> None:
    with processes(path, data_parallel_size=2) as engine:
        engine.generate([[number] for number in range(4)], GREEDY)
        end_at_once([replica.member for replica in engine._replicas.values()])
        wait_for(lambda: engine.stats().num_replicas == 0, "the loss of both")
        engine.add_request(PROMPT, FIXED)
        end_at_once(list(engine._coming))

        with pytest.raises(RankFailedError):
            finish(engine)


async def test_cancel_that_meets_a_loss_too_many_ends_every_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "QUICK_ENDS_MAX", 1)
    monkeypatch.setattr(replicas_module, "QUICK_S", 3600.0)
    engine = AsyncEngine(crowds.settings(path, data_parallel_size=2))
    await engine.start()
    cancelled, other = await engine.submit([1, 2, 3], ENDLESS), await engine.submit([4, 5], ENDLESS)
    await anext(cancelled)

    def lose_all() -> None:
        assert isinstance(engine._engine, ReplicatedEngine)
        end_at_once([replica.member for replica in engine._engine._replicas.values()])

    engine._tell(lose_all)
    cancelled.cancel()

    with pytest.raises(EngineStoppedError):
        await engine.stats()
    with pytest.raises(EngineStoppedError):
        async for _ in other:
            pass
    await engine.shutdown()
