"""The shell around the scheduler: what a run sends, keeps, waits for and ends with, in simulated time."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise
from random import Random
from typing import Any, get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import interrupt_on_signals
from mac_runner.errors import (
    AlikeFailuresError,
    BackendError,
    EngineDeadError,
    RequestRefusedError,
    StoreError,
    TransientBackendError,
)
from mac_runner.failures import ALIKE_MAX
from mac_runner.scheduler import Progress, RequestScheduler
from mac_runner.scheduler.testing import CHECKPOINT_INTERVAL_S, ENGINE_BUSY_S_MAX, SHUTDOWN_GRACE_S
from mac_runner.spec import RetryConfig
from mac_runner.types import REPLY_CHARS_MAX, JsonObject, Reply, Request, Task
from tests.attacks import odd_games
from tests.faults.tier import SCALE
from tests.scheduler.conftest import Stage, alone
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import Break, ToyEnvironment, tasks


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Faulting(SimulatedEngine):
    """Raises what `fault` says of a request that was sent to it so often, and answers where it says nothing."""

    def __init__(self, fault: Callable[[int], Exception | None], *, capacity: int = 4, after_s: float = 0.0) -> None:
        super().__init__(capacity=capacity)
        self.fault, self.after_s = fault, after_s

    async def answer(self, request: Request) -> Reply:
        if self.after_s:
            await asyncio.sleep(self.after_s)
        if (error := self.fault(self.sent.count((request.prompt.sha256, request.sampling.seed)))) is not None:
            raise error
        return await super().answer(request)


def raising(error: Exception, *, every: int = 1, times: int = sys.maxsize, **more: Any) -> Faulting:
    """Raises the same error at every `every`-th request, so many times."""
    numbers = count(1)

    def fault(_sending: int) -> Exception | None:
        number = next(numbers)
        return error if number % every == 0 and number <= every * times else None

    return Faulting(fault, **more)


def hanging() -> Faulting:
    return Faulting(lambda _sending: None, after_s=1e9)


def metered(pause_s: float | None) -> Faulting:
    """Answers six requests in each minute, and has no room for the others."""
    answered = Counter[int]()

    def fault(_sending: int) -> Exception | None:
        minute = int(now_s() / 60)
        answered[minute] += 1
        is_full = answered[minute] > 6
        return TransientBackendError("status 429", retry_after_s=pause_s, is_busy=True) if is_full else None

    return Faulting(fault, capacity=12)


BROKEN = TransientBackendError("connection reset")
BUSY = TransientBackendError("status 429", is_busy=True)
AWAY = ConnectionRefusedError("nobody listens")
FEW = RetryConfig(max_attempts=3)


def test_run_publishes_every_conversation_once_and_closes_its_engines() -> None:
    stage = Stage()
    engines = stage.engines(capacity=3)

    assert stage.counts() == (12, 0)
    assert not stage.result.interrupted
    assert sorted(stage.recorder.transcripts) == [task.task_id for task, _ in stage.work]
    assert all(engine.is_closed for engine in engines)
    assert all(engine.in_flight_max == 3 for engine in engines)


def test_run_without_work_starts_its_engines_side_by_side_and_ends() -> None:
    stage = Stage(work=[])

    assert not stage.play().interrupted
    assert stage.ended_at_s == pytest.approx(5.0)


def test_concurrency_bounds_all_models_together() -> None:
    stage = Stage(concurrency=1)
    first, second = stage.engines(capacity=8)
    stage.play()

    assert first.in_flight_max == second.in_flight_max == 1
    starts_and_ends = [name for name, _ in stage.recorder.events if name.startswith("EVENT_INFER")]
    assert starts_and_ends == ["EVENT_INFER_START", "EVENT_INFER_DONE"] * (len(starts_and_ends) // 2)


def test_every_request_that_starts_ends_in_one_event() -> None:
    stage = Stage()
    stage.engines(dice=3, fault_rate=0.3, refuses=lambda digest: digest.startswith("00"))
    stage.play()
    open_requests: set[tuple[str, str]] = set()
    for name, fields in stage.recorder.events:
        request = (str(fields.get("task")), str(fields.get("turn")))
        if name == "EVENT_INFER_START":
            assert request not in open_requests
            open_requests.add(request)
        elif name in {"EVENT_INFER_DONE", "EVENT_RETRY", "EVENT_GIVE_UP"}:
            open_requests.remove(request)

    assert not open_requests
    assert stage.recorder.named("EVENT_RETRY")


def test_events_tell_what_a_request_was_and_became() -> None:
    stage = Stage(work=tasks(1))
    stage.play()
    (start, *_), (done, *_) = stage.recorder.named("EVENT_INFER_START"), stage.recorder.named("EVENT_INFER_DONE")

    subject = {"task", "agent", "turn", "model", "server", "lane", "gpu"}
    assert start.keys() == {*subject, "prompt_chars", "seed", "sending"}
    assert done.keys() == {
        *subject,
        *("tokens_out", "tokens_in", "tokens_cached", "queue_s", "latency_ms", "finish_reason", "is_dropped"),
    }
    names = [name for name, _ in stage.recorder.events]
    assert (names[0], names[-1]) == ("EVENT_RUN_START", "EVENT_RUN_STOP")


def test_retries_send_the_very_same_prompt_and_seed() -> None:
    stage = Stage(work=tasks(3))
    engines = stage.engines(dice=1, fault_rate=0.4)
    stage.play()
    sent = [one for engine in engines for one in engine.sent]
    turns = sum(len(replies) for replies in stage.recorder.replies.values())

    assert len(sent) > len(set(sent)) == turns
    assert None not in {seed for _, seed in sent}


def test_a_pause_before_a_retry_holds_no_slot() -> None:
    """One slot: while the first request pauses for a minute, the others are served."""
    stage = alone(raising(TransientBackendError("busy", retry_after_s=50.0), times=1, capacity=1), 6)
    stage.play()
    done = stage.recorder.named("EVENT_INFER_DONE")

    assert len(stage.pauses_s) == 1
    assert max(float(str(fields["latency_ms"])) for fields in done) <= 2000
    assert done[0]["task"] == "toy-000"  # The other turns of the very conversation go on, too.
    (transcript,) = [t for t in stage.recorder.transcripts.values() if "busy" in str(t)]
    assert transcript["status"] == "finished"


def test_a_request_that_is_never_answered_fails_its_conversation_at_its_deadline() -> None:
    stage = alone(hanging(), 1, retry=RetryConfig(request_deadline_s=30.0))

    assert stage.counts() == (0, 1)
    assert "RequestTimeoutError: model model-0: " in stage.failures[0]
    assert stage.ended_at_s == pytest.approx(35.0)


class SlowDisk(MemoryRecorder):
    """Everything that may wait for the disk from the `first`-th time on, for `times` times, waits 700 seconds."""

    def __init__(self, *, first: int, times: int) -> None:
        super().__init__()
        self.stalls = range(first, first + times)
        self.asked = 0
        self.started_at_s: dict[str, float] = {}

    async def flow(self) -> None:
        await super().flow()
        self.asked += 1
        if self.asked in self.stalls:
            await asyncio.sleep(700.0)

    def event(self, name: str, fields: JsonObject) -> None:
        if name == "EVENT_INFER_START":
            self.started_at_s[str(fields["turn"])] = now_s()
        elif name == "EVENT_INFER_DONE":
            assert now_s() - self.started_at_s[str(fields["turn"])] <= 2.0
        super().event(name, fields)


@pytest.mark.parametrize("first", range(1, 12))
def test_waiting_for_the_disk_is_not_charged_to_the_engine(first: int) -> None:
    stage = Stage(work=tasks(2), recorder=SlowDisk(first=first, times=3))
    stage.engines(dice=first, fault_rate=0.3)

    assert stage.counts() == (2, 0)
    assert stage.ended_at_s > 700.0
    assert sum(account["busy_slot_s"] for account in stage.accounts) < 200.0


def test_a_turn_whose_conversation_failed_while_it_waited_for_the_disk_is_not_sent() -> None:
    """The second turn waits for the disk while the first is refused: its reply would be dropped.

    Which of the two waits is drawn by the loop; the draws in which it is the second are looked at.
    """
    looked_at = 0
    for loop_seed in range(16):
        stage = Stage(work=tasks(1, agents=2), recorder=SlowDisk(first=3, times=1), loop_seed=loop_seed)
        late = SimulatedEngine()
        stage.backends = {"model-0": raising(RequestRefusedError("too long")), "model-1": late}
        stage.play()
        started = [fields["turn"] for fields in stage.recorder.named("EVENT_INFER_START")]
        (failure,) = stage.failures
        assert failure.endswith("model-0: too long")
        if started[0] == "0/a0/0/0":
            looked_at += 1
            assert started == ["0/a0/0/0"]
            assert late.sent == []

    assert looked_at >= 3


def test_a_request_is_given_up_after_its_last_attempt() -> None:
    engine = raising(BROKEN)
    stage = alone(engine, 1, agents=1, retry=FEW)
    stage.play()

    assert len(engine.sent) == 3
    (failure,) = stage.failures
    assert failure.endswith("model-0: connection reset")
    assert stage.recorder.named("EVENT_GIVE_UP")[0]["sending"] == 3
    assert stage.recorder.transcripts["toy-000"]["turns"] == []


@pytest.mark.parametrize(
    ("engine", "stage", "told", "after_s", "within_s", "sent_max"),
    [
        (
            lambda: raising(AWAY),
            {"work": 1, "agents": 1, "retry": RetryConfig(max_attempts=3, engine_patience_s=600)},
            *(r"model-0 .*nobody listens", 600.0, 60.0, 100),
        ),
        (lambda: raising(BUSY), {"work": 6, "retry": FEW}, r"last fault: .*status 429", ENGINE_BUSY_S_MAX, 120.0, 150),
        (
            lambda: raising(BROKEN, capacity=8),
            {"work": 100, "agents": 1},
            r"answered no request .*engine_patience_s says",
            60.0,
            60.0,
            100,
        ),
    ],
    ids=["cannot be reached", "is never anything but busy", "answers no request"],
)
def test_an_engine_that_serves_nothing_is_waited_for_then_ends_the_run_and_fails_no_conversation(
    engine: Callable[[], Faulting], stage: dict[str, Any], told: str, after_s: float, within_s: float, sent_max: int
) -> None:
    asked = engine()
    played = alone(asked, **stage)

    with pytest.raises(EngineDeadError, match=told):
        played.play()
    assert after_s <= played.ended_at_s <= after_s + within_s
    assert len(asked.sent) <= sent_max
    assert played.recorder.transcripts == {}


def moody(sending: int) -> Exception | None:
    """Busy twice, broken once, then well."""
    return BUSY if sending <= 2 else BROKEN if sending == 3 else None


@pytest.mark.parametrize(
    ("engine", "stage", "ends_after_s"),
    [
        (lambda: Faulting(lambda _sending: AWAY if now_s() < 45.0 else None), {"work": 6, "retry": FEW}, 45.0),
        (lambda: Faulting(lambda _sending: BROKEN if now_s() < 45.0 else None), {"work": 6, "retry": FEW}, 45.0),
        (lambda: metered(None), {"retry": RetryConfig(max_attempts=3, request_deadline_s=3600.0)}, 300.0),
        (lambda: metered(55.0), {"retry": RetryConfig(max_attempts=3, request_deadline_s=3600.0)}, 300.0),
        # What an engine turned away leaves all attempts to what it looked at.
        (lambda: Faulting(moody), {"work": 4, "agents": 1, "retry": RetryConfig(max_attempts=2)}, 5.0),
    ],
    ids=["away for a while", "broken for a while", "counts by the minute", "says for how long", "moody"],
)
def test_a_service_that_is_not_always_there_costs_time_and_no_conversation(
    engine: Callable[[], Faulting], stage: dict[str, Any], ends_after_s: float
) -> None:
    played = alone(engine(), **stage)

    assert played.counts() == (len(played.work), 0)
    assert played.ended_at_s > ends_after_s


def test_an_engine_that_is_busy_is_asked_as_soon_as_it_allows_however_often_it_says_so() -> None:
    """Every third request is turned away: no retry of it waits for a budget that only answers fill."""
    stage = alone(raising(TransientBackendError("status 429", retry_after_s=1.0, is_busy=True), every=3))

    assert stage.counts() == (12, 0)
    assert len(stage.pauses_s) > 30
    assert max(stage.pauses_s) < 4.0


def test_a_request_without_a_retry_left_waits_while_others_are_answered() -> None:
    """Two of three sendings fail: the run slows down to what its answers allow, and loses nothing."""
    stage = alone(SimulatedEngine(capacity=3, dice=4, fault_rate=0.6), 6)

    assert stage.counts() == (6, 0)
    assert stage.retry.backoff_s_max in stage.pauses_s


def test_a_token_budget_bounds_what_is_in_flight_by_what_prompts_turn_out_to_need() -> None:
    engine = SimulatedEngine(capacity=50, token_budget=2000)
    stage = alone(engine, agents=1)
    stage.play()
    (account,) = stage.accounts

    # 512 tokens of a reply and 10 of what was read before: three fit. The first round is admitted unseen.
    assert account["capacity"] == 50
    assert engine.in_flight_max <= 4
    assert account["available_slot_s"] < 50 * stage.ended_at_s / 2


def test_an_engine_with_a_line_is_handed_more_than_its_slots_and_accounted_by_its_slots() -> None:
    engine = SimulatedEngine(capacity=3, lookahead=2)
    stage = alone(engine, agents=2)
    stage.play()
    (account,) = stage.accounts

    assert engine.in_flight_max == 5
    assert account["available_slot_s"] == pytest.approx(3 * account["played_s"])
    assert account["busy_slot_s"] <= account["available_slot_s"]


def test_slots_in_effect_are_those_that_the_concurrency_leaves() -> None:
    stage = alone(SimulatedEngine(capacity=64), concurrency=2)
    stage.play()
    (account,) = stage.accounts

    assert account["capacity"] == 64
    assert account["available_slot_s"] == pytest.approx(2 * account["played_s"])


def test_neither_the_start_of_engines_nor_their_closing_counts_as_played() -> None:
    class Looking(SimulatedEngine):
        async def close(self) -> None:
            await asyncio.sleep(7.0)
            shown.append((stage.progress.elapsed_s, stage.progress.utilisation("model-0")))

    shown: list[tuple[float, float | None]] = []
    stage = alone(Looking())
    stage.play()
    (account,) = stage.accounts
    played_s = stage.recorder.checkpoints[-1]["played_s"]

    # The engine takes 5 s to start.
    assert played_s == account["played_s"] == pytest.approx(stage.ended_at_s - 12.0)
    ((elapsed_s, used_then),) = shown
    assert elapsed_s == pytest.approx(played_s)
    assert used_then == pytest.approx(account["busy_slot_s"] / account["available_slot_s"], abs=1e-4)


def test_a_second_shell_goes_on_with_the_time_of_the_first() -> None:
    stage = alone(SimulatedEngine())
    stage.play()
    first_s = stage.progress.elapsed_s
    stage.recorder, stage.backends = MemoryRecorder(), {"model-0": SimulatedEngine()}
    stage.play()

    assert stage.progress.elapsed_s == pytest.approx(2 * first_s)


def test_an_engine_that_takes_its_time_to_start_is_spoken_of(snapshot: SnapshotAssertion) -> None:
    stage = Stage(work=tasks(1))
    stage.engines(capacity=3)
    stage.play()

    assert sorted(stage.said[:2]) + sorted(stage.said[2:]) == snapshot


def test_a_refused_request_fails_its_conversation_only() -> None:
    stage = Stage()
    stage.backends = {"model-0": raising(RequestRefusedError("too long"), every=20), "model-1": SimulatedEngine()}
    finished, failed = stage.counts()

    assert 0 < failed < 12
    assert finished + failed == 12
    assert len(stage.failures) == failed


def test_a_reply_to_a_failed_conversation_is_logged_and_not_journaled() -> None:
    dropped = set[tuple[object, object]]()
    for seed in range(10):  # Whether a reply comes after the failure depends on the order of what happens at once.
        stage = Stage(environment=ToyEnvironment("receive"), loop_seed=seed)
        stage.engines(capacity=64)
        stage.play()
        done = stage.recorder.named("EVENT_INFER_DONE")
        late = {(fields["task"], fields["turn"]) for fields in done if fields["is_dropped"]}
        journaled = {(task, reply.turn_key) for task, replies in stage.recorder.replies.items() for reply in replies}
        assert not journaled & late
        dropped |= late
    assert dropped


def test_a_fault_of_a_conversation_that_has_failed_is_not_retried() -> None:
    stage = Stage(work=tasks(1, agents=2))
    late = raising(TransientBackendError("busy", retry_after_s=50.0), after_s=2.0)
    stage.backends = {"model-0": raising(RequestRefusedError("too long"), after_s=1.0), "model-1": late}
    stage.play()

    assert [fields["agent"] for fields in stage.recorder.named("EVENT_GIVE_UP")] == ["a0", "a1"]
    assert len(late.sent) == 1
    (failure,) = stage.failures
    assert failure.endswith("model-0: too long")


@pytest.mark.parametrize("breaks", get_args(Break))
def test_a_broken_environment_costs_the_broken_conversation_only(breaks: Break) -> None:
    stage = Stage(environment=ToyEnvironment(breaks))
    finished, failed = stage.counts()
    told = {
        "open": "it could not be opened: opening toy-",
        "turns": "turns: RuntimeError: turns are broken",
        "prompt": "turn 1/a1/0/0: prompt: RuntimeError: the prompt is broken",
        "receive": "nothing can follow turn 1/a2/",
        "raise": "turn 1/a1/0/0: ZeroDivisionError: a bug of the environment",
        "stuck": "it has no outcome and no turn of it can start (open turns: none)",
        "record": "its end: RuntimeError: the record is broken",
        "strange agent": "asks agent 'nobody' on model 'model-0'",
    }[breaks]

    assert 0 < failed < 12
    assert finished == 12 - failed
    assert all(told in failure for failure in stage.failures), stage.failures


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), TimeoutError()])
def test_a_lost_connection_and_a_timeout_are_asked_again(error: Exception) -> None:
    stage = alone(raising(error, every=7), 2)
    told = f"TransientBackendError: model model-0: {type(error).__name__}: {error}"

    assert stage.counts() == (2, 0)
    assert {fields["error"] for fields in stage.recorder.named("EVENT_RETRY")} == {told}


class Dud(SimulatedEngine):
    async def start(self) -> None:
        raise OSError("no such device")


@pytest.mark.parametrize(
    ("kind", "first", "told"),
    [
        (EngineDeadError, lambda: raising(EngineDeadError("out of memory"), every=7), "out of memory"),
        (EngineDeadError, lambda: raising(RuntimeError("a bug"), every=7), "a bug"),
        (EngineDeadError, lambda: raising(OSError("no such device"), every=7), "no such device"),
        # Only the three leaves are raised by engines; the base class itself ends the run.
        (BackendError, lambda: raising(BackendError("odd")), "odd"),
        (EngineDeadError, Dud, "no such device"),
        (EngineDeadError, lambda: SimulatedEngine(capacity=0), "at least one"),
    ],
    ids=["dead", "bug", "system", "odd", "does not start", "has no capacity"],
)
def test_a_dead_engine_ends_the_run_and_closes_all(
    kind: type[BackendError], first: Callable[[], SimulatedEngine], told: str
) -> None:
    engines = (first(), SimulatedEngine())
    stage = Stage(backends={f"model-{number}": engine for number, engine in enumerate(engines)})

    with pytest.raises(kind, match=f"model-0.*{told}"):
        stage.play()

    assert all(engine.is_closed for engine in engines)
    assert not engines[0].sent or len(stage.recorder.checkpoints) >= 1


@pytest.mark.parametrize("after", [0, 1, 17])
def test_a_failed_write_ends_the_run_at_once(after: int) -> None:
    stage = Stage(recorder=MemoryRecorder(fails_after=after))
    engines = stage.engines()

    with pytest.raises(StoreError, match="no space left"):
        stage.play()

    assert sum(map(len, stage.recorder.replies.values())) == after
    assert all(engine.is_closed for engine in engines)


def test_a_write_that_fails_in_another_thread_ends_the_run() -> None:
    class Telling(MemoryRecorder):
        def event(self, name: str, fields: JsonObject) -> None:
            if name == "EVENT_INFER_START" and self.failure is None:
                self.failure = StoreError("the disk is gone")
                self.callbacks[0](self.failure)

    stage = alone(hanging(), recorder=Telling())
    with pytest.raises(StoreError, match="is gone"):
        stage.play()

    assert not stage.recorder.transcripts


@pytest.mark.parametrize(
    ("engine", "stop_at_s", "earliest_s", "latest_s", "cancelled"),
    [
        # It waits for what is in flight and journals it, no longer than the grace, and for no pause between sendings.
        (SimulatedEngine, 6.0, 6.0, 8.0, 0),
        (hanging, 7.0, 7.0 + SHUTDOWN_GRACE_S, 7.0 + SHUTDOWN_GRACE_S, 4),
        (lambda: raising(TransientBackendError("busy", retry_after_s=55.0)), 7.0, 7.0, 8.0, 0),
        (SimulatedEngine, 2.0, 2.0, 2.0, 0),
    ],
    ids=["at work", "hanging", "pausing", "starting"],
)
def test_stop_ends_a_run_in_good_order(
    engine: Callable[[], SimulatedEngine], stop_at_s: float, earliest_s: float, latest_s: float, cancelled: int
) -> None:
    asked = engine()
    stage = alone(asked, stop_at_s=stop_at_s)

    assert stage.play().interrupted
    assert earliest_s - 1e-6 <= stage.ended_at_s <= latest_s + 1e-6
    ended = [len(stage.recorder.named(f"EVENT_{name}")) for name in ("INFER_DONE", "RETRY")]
    assert len(asked.sent) == sum(ended) + cancelled
    stops = stage.recorder.named("EVENT_RUN_STOP")
    assert [one["cancelled_requests"] for one in stops] == [cancelled] * bool(asked.sent)
    assert asked.is_closed


class SlowToClose(SimulatedEngine):
    """Takes its time to close, and may fail then."""

    def __init__(self, closing_s: float, fault: str | None = None) -> None:
        super().__init__()
        self.closing_s, self.fault_at_end = closing_s, fault

    async def close(self) -> None:
        await asyncio.sleep(self.closing_s)
        self.is_closed = True
        if self.fault_at_end is not None:
            raise OSError(self.fault_at_end)


def test_an_engine_that_does_not_close_is_reported_when_nothing_worse_happened() -> None:
    stage = alone(SlowToClose(1e9), 1)
    with pytest.raises(EngineDeadError, match="did not close"):
        stage.play()
    assert len(stage.recorder.transcripts) == 1

    with pytest.raises(StoreError):
        alone(SlowToClose(1e9), recorder=MemoryRecorder(fails_after=0)).play()


def test_engines_close_side_by_side_and_the_first_error_is_raised_after_all() -> None:
    engines = [SlowToClose(9.0, "the first"), SlowToClose(8.0, "the second"), SlowToClose(7.0)]
    stage = Stage(work=[], backends={f"model-{number}": engine for number, engine in enumerate(engines)})

    with pytest.raises(EngineDeadError, match=r"model-0: .*the first"):
        stage.play()

    assert all(engine.is_closed for engine in engines)
    assert stage.ended_at_s == pytest.approx(5.0 + 9.0)


def test_a_long_reply_is_cut_and_marked() -> None:
    class Endless(SimulatedEngine):
        async def answer(self, request: Request) -> Reply:
            return Reply(text="x" * (REPLY_CHARS_MAX + 1))

    stage = alone(Endless(), 1, agents=1)
    stage.play()
    reply = stage.recorder.replies["toy-000"][0].reply

    assert len(reply.text) == REPLY_CHARS_MAX
    assert reply.finish_reason == "length"


@pytest.mark.parametrize("stop_at_s", [None, 6.0])
def test_pools_are_checked_once_when_a_run_ends(stop_at_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(RequestScheduler, "validate", lambda scheduler: checked.append(scheduler.in_flight))
    Stage(stop_at_s=stop_at_s).play()

    assert checked == [0]


def test_a_leaked_slot_is_reported_when_the_run_ends() -> None:
    def leak(_sending: int) -> None:
        if stage.progress.turns == 0:
            stage.progress._scheduler._pools.models["model-0"].in_flight += 1

    stage = alone(Faulting(leak), 1, agents=1)
    with pytest.raises(AssertionError, match="slots of models"):
        stage.play()

    assert len(stage.recorder.transcripts) == 1


def test_progress_counts_all_sessions_and_this_ones_turns() -> None:
    stage = Stage(progress=Progress(planned=20, finished=7, failed=1), environment=ToyEnvironment("receive"))
    stage.engines(capacity=2)
    progress = stage.progress
    assert progress.snapshot(5).in_flight == 0
    finished, failed = stage.counts()
    turns = len(stage.recorder.named("EVENT_INFER_DONE"))

    assert (progress.planned, progress.resumed_with, progress.open) == (20, 8, 0)
    assert (progress.finished, progress.failed) == (7 + finished, 1 + failed)
    assert progress.turns == progress.turns_ended == turns
    assert progress.tokens.completion == 3 * turns


def test_accounts_are_given_at_intervals_and_at_the_end() -> None:
    stage = Stage(work=tasks(40))
    stage.engines(capacity=2)
    stage.play()
    walls = [float(str(accounts["played_s"])) for accounts in stage.recorder.checkpoints]

    assert walls == sorted(walls)
    assert all(late - early >= CHECKPOINT_INTERVAL_S for early, late in pairwise(walls[:-1]))
    assert len(walls) > 3
    assert 0.5 < stage.accounts[0]["busy_slot_s"] / stage.accounts[0]["available_slot_s"] <= 1.0


def test_accounts_are_given_while_no_conversation_ends() -> None:
    given_before_the_end: list[int] = []

    class Watching(MemoryRecorder):
        def publish(self, task: Task, transcript: JsonObject) -> None:
            given_before_the_end.append(len(self.checkpoints))
            super().publish(task, transcript)

    stage = Stage(work=tasks(1), recorder=Watching())
    stage.engines(latency_s_max=20.0)
    stage.play()

    assert stage.ended_at_s > 4 * CHECKPOINT_INTERVAL_S
    assert given_before_the_end[0] >= 2


def test_whatever_a_game_raises_or_gives_fails_its_conversations_alone() -> None:
    interrupt_on_signals()  # As in a process of ours: there an interrupt of the game can be told from one by a signal.
    wrong = {}
    for number in range(40 * SCALE):
        oddity = odd_games.drawn(Random(number))
        environment = odd_games.odd_environment(oddity, lambda task: task.index % 2 == 0)
        stage = alone(SimulatedEngine(), 4, agents=2, environment=environment)
        try:
            counts = stage.counts()
            json.dumps(stage.recorder.transcripts)
        except BaseException as fault:  # noqa: BLE001 - what it is says which draw is wrong
            counts = (-1, -1)
            stage.said.append(f"{type(fault).__name__} {traceback.format_exc()[-300:]}")
        if counts != (2, 2) or not all(stage.failures):
            wrong[number] = (oddity.member, oddity.call, type(oddity.raised).__mro__[1:2], counts, stage.said)

    assert wrong == {}


def test_run_whose_first_conversations_all_fail_for_one_reason_stops_once_for_all(snapshot: SnapshotAssertion) -> None:
    broken = odd_games.Oddity("prompt", 0, None, None)

    def played(planned: int, is_odd: Callable[[Task], bool], finished: int = 0) -> tuple[int, int]:
        environment = odd_games.odd_environment(broken, is_odd)
        stage = alone(SimulatedEngine(), planned, agents=2, environment=environment)
        stage.progress = Progress(planned=planned + finished, finished=finished)
        return stage.counts()

    with pytest.raises(AlikeFailuresError) as stopped:
        played(3 * ALIKE_MAX, lambda _: True)
    assert str(stopped.value) == snapshot
    # Nothing is left; one of the first finishes; one finished in an earlier session.
    assert played(ALIKE_MAX, lambda _: True) == (0, ALIKE_MAX)
    assert played(2 * ALIKE_MAX, lambda task: task.index != 3) == (1, 2 * ALIKE_MAX - 1)
    assert played(2 * ALIKE_MAX, lambda _: True, finished=1) == (0, 2 * ALIKE_MAX)
