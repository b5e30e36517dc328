from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import ClassVar, get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import (
    BackendError,
    EngineDeadError,
    MacRunnerError,
    RequestRefusedError,
    StoreError,
    TransientBackendError,
)
from mac_runner.scheduler import Progress, RequestScheduler, RetryPolicy
from mac_runner.scheduler.testing import CHECKPOINT_INTERVAL_S, ENGINE_BUSY_S_MAX, SHUTDOWN_GRACE_S
from mac_runner.types import REPLY_CHARS_MAX, JsonObject, Reply, Request, Task
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import Break, ToyEnvironment, tasks


class Raising(SimulatedEngine):
    """Raises the same error at every `every`-th request."""

    def __init__(self, error: Exception, *, every: int = 1, capacity: int = 4) -> None:
        super().__init__(capacity=capacity)
        self.error, self.every = error, every

    async def answer(self, request: Request) -> Reply:
        if len(self.sent) % self.every == 0:
            raise self.error
        return await super().answer(request)


class Hanging(SimulatedEngine):
    async def answer(self, request: Request) -> Reply:
        await asyncio.sleep(1e9)
        raise AssertionError


def accounts(recorder: MemoryRecorder) -> list[JsonObject]:
    models = recorder.checkpoints[-1]["models"]
    assert isinstance(models, dict)
    return [account for account in models.values() if isinstance(account, dict)]


def failures(recorder: MemoryRecorder) -> list[str]:
    return [str(t["failure"]) for t in recorder.transcripts.values() if t["failure"] is not None]


def test_run_publishes_every_conversation_once_and_closes_its_engines() -> None:
    stage = Stage()
    engines = stage.engines(capacity=3)
    result = stage.play()

    assert (result.finished, result.failed, result.interrupted) == (12, 0, False)
    assert sorted(stage.recorder.transcripts) == [task.task_id for task, _ in stage.work]
    assert all(engine.is_closed for engine in engines)
    assert all(engine.in_flight_max == 3 for engine in engines)


def test_run_without_work_starts_and_ends() -> None:
    assert not Stage(work=[]).play().interrupted


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
    assert [name for name, _ in stage.recorder.events][:: len(stage.recorder.events) - 1] == [
        "EVENT_RUN_START",
        "EVENT_RUN_STOP",
    ]


def test_retries_send_the_very_same_prompt_and_seed() -> None:
    stage = Stage(work=tasks(3))
    engines = stage.engines(dice=1, fault_rate=0.4)
    stage.play()
    seeds: dict[str, set[int | None]] = {}
    for engine in engines:
        for digest, seed in engine.sent:
            seeds.setdefault(f"{digest} {seed}", set()).add(seed)
    sent = sum(len(engine.sent) for engine in engines)
    turns = sum(len(replies) for replies in stage.recorder.replies.values())

    assert sent > turns
    assert len(seeds) == turns
    assert None not in set().union(*seeds.values())


def test_a_pause_before_a_retry_holds_no_slot() -> None:
    """One slot: while the first request pauses for a minute, the others are served."""
    stage = Stage(work=tasks(6, models=1))
    engine = Raising(TransientBackendError("busy", retry_after_s=50.0), every=10**6, capacity=1)
    engine.every = 1
    stage.backends = {"model-0": engine}

    async def answer(request: Request) -> Reply:
        if len(engine.sent) == 1:
            raise engine.error
        return await SimulatedEngine.answer(engine, request)

    engine.answer = answer  # type: ignore[method-assign]
    stage.play()
    times = [fields["latency_ms"] for fields in stage.recorder.named("EVENT_INFER_DONE")]
    retried = stage.recorder.named("EVENT_RETRY")

    assert len(retried) == 1
    assert max(float(str(time)) for time in times) <= 2000
    order = [fields["task"] for fields in stage.recorder.named("EVENT_INFER_DONE")]
    assert order[0] == "toy-000"  # The other turns of the very conversation go on, too.
    (transcript,) = [t for t in stage.recorder.transcripts.values() if "busy" in str(t)]
    assert transcript["status"] == "finished"


def test_a_request_that_is_never_answered_fails_its_conversation_at_its_deadline() -> None:
    stage = Stage(work=tasks(1), retry=RetryPolicy(request_deadline_s=30.0))
    stage.backends = {"model-0": Hanging(), "model-1": Hanging()}
    result = stage.play()

    assert result.failed == 1
    (failure,) = failures(stage.recorder)
    assert "RequestTimeoutError: model model-0: " in failure
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
        now_s = asyncio.get_running_loop().time()
        if name == "EVENT_INFER_START":
            self.started_at_s[str(fields["turn"])] = now_s
        elif name == "EVENT_INFER_DONE":
            assert now_s - self.started_at_s[str(fields["turn"])] <= 2.0
        super().event(name, fields)


@pytest.mark.parametrize("first", range(1, 12))
def test_waiting_for_the_disk_is_not_charged_to_the_engine(first: int) -> None:
    stage = Stage(work=tasks(2), recorder=SlowDisk(first=first, times=3), retry=RetryPolicy(max_attempts=50))
    stage.engines(dice=first, fault_rate=0.3)
    result = stage.play()
    busy_slot_s = [float(str(account["busy_slot_s"])) for account in accounts(stage.recorder)]

    assert (result.finished, result.failed) == (2, 0)
    assert stage.ended_at_s > 700.0
    assert sum(busy_slot_s) < 200.0


def test_a_turn_whose_conversation_failed_while_it_waited_for_the_disk_is_not_sent() -> None:
    """The second turn waits for the disk while the first is refused: its reply would be dropped.

    Which of the two waits is drawn by the loop; the draws in which it is the second are looked at.
    """
    looked_at = 0
    for loop_seed in range(16):
        stage = Stage(work=tasks(1, agents=2), recorder=SlowDisk(first=3, times=1), loop_seed=loop_seed)
        late = SimulatedEngine()
        stage.backends = {"model-0": Raising(RequestRefusedError("too long")), "model-1": late}
        stage.play()
        started = [fields["turn"] for fields in stage.recorder.named("EVENT_INFER_START")]
        (failure,) = failures(stage.recorder)
        assert failure.endswith("model-0: too long")
        if started[0] == "0/a0/0/0":
            looked_at += 1
            assert started == ["0/a0/0/0"]
            assert late.sent == []

    assert looked_at >= 3


def test_a_request_is_given_up_after_its_last_attempt() -> None:
    stage = Stage(work=tasks(1, agents=1, models=1), retry=RetryPolicy(max_attempts=3))
    engine = Raising(TransientBackendError("connection reset"))
    stage.backends = {"model-0": engine}
    stage.play()

    assert len(engine.sent) == 3
    (failure,) = failures(stage.recorder)
    assert failure.endswith("model-0: connection reset")
    assert stage.recorder.named("EVENT_GIVE_UP")[0]["sending"] == 3
    assert stage.recorder.transcripts["toy-000"]["turns"] == []


def test_an_engine_that_cannot_be_reached_is_waited_for_then_ends_the_run_and_fails_no_conversation() -> None:
    stage = Stage(work=tasks(1, agents=1, models=1), retry=RetryPolicy(max_attempts=3, engine_patience_s=600))
    stage.backends = {"model-0": Raising(ConnectionRefusedError("nobody listens"))}

    with pytest.raises(EngineDeadError, match=r"model-0 .*nobody listens"):
        stage.play()
    assert 600 <= stage.ended_at_s <= 600 + 2 * stage.retry.backoff_s_max
    assert stage.recorder.transcripts == {}


@pytest.mark.parametrize("fault", [ConnectionRefusedError("nobody listens"), TransientBackendError("busy")])
def test_an_outage_costs_no_conversation(fault: Exception) -> None:
    class Away(SimulatedEngine):
        """Answers no request for the first forty seconds."""

        async def answer(self, request: Request) -> Reply:
            if asyncio.get_running_loop().time() < 45.0:
                raise fault
            return await super().answer(request)

    stage = Stage(work=tasks(6, models=1), retry=RetryPolicy(max_attempts=3), backends={"model-0": Away(capacity=4)})
    result = stage.play()

    assert (result.finished, result.failed) == (6, 0)


@pytest.mark.parametrize("pause_s", [None, 55.0])
def test_a_service_that_counts_by_the_minute_costs_time_and_no_conversation(pause_s: float | None) -> None:
    class Metered(SimulatedEngine):
        """Answers six requests in each minute, and has no room for the others."""

        answered: ClassVar[Counter[int]] = Counter()

        async def answer(self, request: Request) -> Reply:
            minute = int(asyncio.get_running_loop().time() / 60)
            if self.answered[minute] >= 6:
                raise TransientBackendError("status 429", retry_after_s=pause_s, is_busy=True)
            self.answered[minute] += 1
            return await super().answer(request)

    stage = Stage(work=tasks(12, models=1), retry=RetryPolicy(max_attempts=3, request_deadline_s=3600.0))
    stage.backends = {"model-0": Metered(capacity=12)}
    result = stage.play()

    assert (result.finished, result.failed) == (12, 0)
    assert stage.ended_at_s > 300.0


def test_what_an_engine_turned_away_leaves_all_attempts_to_what_it_looked_at() -> None:
    class Moody(SimulatedEngine):
        """Busy twice, broken once, then well: with each request."""

        async def answer(self, request: Request) -> Reply:
            sending = self.sent.count((request.prompt.sha256, request.sampling.seed))
            if sending <= 2:
                raise TransientBackendError("status 429", is_busy=True)
            if sending == 3:
                raise TransientBackendError("status 500")
            return await super().answer(request)

    stage = Stage(work=tasks(4, agents=1, models=1), retry=RetryPolicy(max_attempts=2))
    stage.backends = {"model-0": Moody(capacity=4)}

    assert stage.play().failed == 0


def test_an_engine_that_is_busy_is_asked_as_soon_as_it_allows_however_often_it_says_so() -> None:
    """Every third request is turned away: no retry of it waits for a budget that only answers fill."""
    stage = Stage(work=tasks(12, models=1))
    busy = TransientBackendError("status 429", retry_after_s=1.0, is_busy=True)
    stage.backends = {"model-0": Raising(busy, every=3, capacity=4)}
    result = stage.play()

    assert (result.finished, result.failed) == (12, 0)
    pauses = [float(str(fields["delay_s"])) for fields in stage.recorder.named("EVENT_RETRY")]
    assert len(pauses) > 30
    assert max(pauses) < 4.0


def test_a_service_that_is_never_anything_but_busy_ends_the_run_and_fails_no_conversation() -> None:
    stage = Stage(work=tasks(6, models=1), retry=RetryPolicy(max_attempts=3))
    stage.backends = {"model-0": Raising(TransientBackendError("status 429", is_busy=True))}

    with pytest.raises(EngineDeadError, match=r"last fault: .*status 429"):
        stage.play()
    assert ENGINE_BUSY_S_MAX <= stage.ended_at_s <= ENGINE_BUSY_S_MAX + 2 * stage.retry.engine_patience_s
    assert stage.recorder.transcripts == {}


def test_an_engine_that_answers_no_request_is_not_asked_for_ever() -> None:
    stage = Stage(work=tasks(100, agents=1, models=1))
    engine = Raising(TransientBackendError("busy"), capacity=8)
    stage.backends = {"model-0": engine}

    with pytest.raises(EngineDeadError, match="answered no request"):
        stage.play()
    assert len(engine.sent) <= 100
    assert stage.recorder.transcripts == {}


def test_a_request_without_a_retry_left_waits_while_others_are_answered() -> None:
    """Two of three sendings fail: the run slows down to what its answers allow, and loses nothing."""
    stage = Stage(work=tasks(6, models=1), retry=RetryPolicy(max_attempts=50))
    engine = SimulatedEngine(capacity=3, dice=4, fault_rate=0.6)
    stage.backends = {"model-0": engine}
    result = stage.play()

    assert (result.finished, result.failed) == (6, 0)
    pauses = [float(str(fields["delay_s"])) for fields in stage.recorder.named("EVENT_RETRY")]
    assert any(pause == stage.retry.backoff_s_max for pause in pauses)


def test_a_token_budget_bounds_what_is_in_flight_by_what_prompts_turn_out_to_need() -> None:
    stage = Stage(work=tasks(12, agents=1, models=1))
    engine = SimulatedEngine(capacity=50, token_budget=2000)
    stage.backends = {"model-0": engine}
    stage.play()
    (account,) = accounts(stage.recorder)

    # 512 tokens of a reply and 10 of what was read before: three fit. The first round is admitted unseen.
    assert account["capacity"] == 50
    assert engine.in_flight_max <= 4
    assert float(str(account["available_slot_s"])) < 50 * stage.ended_at_s / 2


def test_an_engine_with_a_line_is_handed_more_than_its_slots_and_accounted_by_its_slots() -> None:
    stage = Stage(work=tasks(12, agents=2, models=1))
    engine = SimulatedEngine(capacity=3, lookahead=2)
    stage.backends = {"model-0": engine}
    stage.play()
    (account,) = accounts(stage.recorder)

    assert engine.in_flight_max == 5
    assert float(str(account["available_slot_s"])) == pytest.approx(3 * float(str(account["played_s"])))
    assert float(str(account["busy_slot_s"])) <= float(str(account["available_slot_s"]))


def test_slots_in_effect_are_those_that_the_concurrency_leaves() -> None:
    stage = Stage(work=tasks(12, models=1), concurrency=2, backends={"model-0": SimulatedEngine(capacity=64)})
    stage.play()
    (account,) = accounts(stage.recorder)

    assert account["capacity"] == 64
    assert float(str(account["available_slot_s"])) == pytest.approx(2 * float(str(account["played_s"])))


def test_neither_the_start_of_engines_nor_their_closing_counts_as_played() -> None:
    class SlowToClose(SimulatedEngine):
        async def close(self) -> None:
            await asyncio.sleep(7.0)
            shown.append((stage.progress.elapsed_s, stage.progress.utilisation("model-0")))

    shown: list[tuple[float, float | None]] = []
    stage = Stage(work=tasks(12, models=1), backends={"model-0": SlowToClose()})
    stage.play()
    (account,) = accounts(stage.recorder)
    played_s = stage.recorder.checkpoints[-1]["played_s"]
    used = float(str(account["busy_slot_s"])) / float(str(account["available_slot_s"]))

    # The engine takes 5 s to start.
    assert played_s == account["played_s"] == pytest.approx(stage.ended_at_s - 12.0)
    ((elapsed_s, used_then),) = shown
    assert elapsed_s == pytest.approx(played_s)
    assert used_then == pytest.approx(used, abs=1e-4)


def test_a_second_shell_goes_on_with_the_time_of_the_first() -> None:
    stage = Stage(work=tasks(12, models=1), backends={"model-0": SimulatedEngine()})
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
    stage.backends = {"model-0": Raising(RequestRefusedError("too long"), every=20), "model-1": SimulatedEngine()}
    result = stage.play()

    assert 0 < result.failed < 12
    assert result.finished + result.failed == 12
    assert len(failures(stage.recorder)) == result.failed


def test_a_reply_to_a_failed_conversation_is_logged_and_not_journaled() -> None:
    stage = Stage(environment=ToyEnvironment("receive"))
    stage.engines(capacity=64)
    stage.play()
    dropped = [fields for fields in stage.recorder.named("EVENT_INFER_DONE") if fields["is_dropped"]]
    journaled = {(task, reply.turn_key) for task, replies in stage.recorder.replies.items() for reply in replies}

    assert dropped
    assert not journaled & {(fields["task"], fields["turn"]) for fields in dropped}


def test_a_fault_of_a_conversation_that_has_failed_is_not_retried() -> None:
    class Late(Raising):
        async def answer(self, request: Request) -> Reply:
            await asyncio.sleep(2.0 if isinstance(self.error, TransientBackendError) else 1.0)
            raise self.error

    stage = Stage(work=tasks(1, agents=2))
    late = Late(TransientBackendError("busy", retry_after_s=50.0))
    stage.backends = {"model-0": Late(RequestRefusedError("too long")), "model-1": late}
    stage.play()

    assert [fields["agent"] for fields in stage.recorder.named("EVENT_GIVE_UP")] == ["a0", "a1"]
    assert len(late.sent) == 1
    (failure,) = failures(stage.recorder)
    assert failure.endswith("model-0: too long")


@pytest.mark.parametrize("breaks", get_args(Break))
def test_a_broken_environment_costs_the_broken_conversation_only(breaks: Break) -> None:
    stage = Stage(environment=ToyEnvironment(breaks))
    result = stage.play()
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

    assert 0 < result.failed < 12
    assert result.finished == 12 - result.failed
    assert all(told in failure for failure in failures(stage.recorder)), failures(stage.recorder)


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), TimeoutError()])
def test_a_lost_connection_and_a_timeout_are_asked_again(error: Exception) -> None:
    stage = Stage(work=tasks(2), backends={"model-0": Raising(error, every=7), "model-1": SimulatedEngine()})
    result = stage.play()
    told = {str(fields["error"]) for fields in stage.recorder.named("EVENT_RETRY")}

    assert (result.finished, result.failed) == (2, 0)
    assert told == {f"TransientBackendError: model model-0: {type(error).__name__}: {error}"}


@pytest.mark.parametrize("error", [EngineDeadError("out of memory"), RuntimeError("a bug"), OSError("no such device")])
def test_a_dead_engine_ends_the_run_and_closes_all(error: Exception) -> None:
    stage = Stage()
    first, second = Raising(error, every=7), SimulatedEngine()
    stage.backends = {"model-0": first, "model-1": second}

    with pytest.raises(EngineDeadError, match=f"^model model-0: .*{error}"):
        stage.play()

    assert first.is_closed
    assert second.is_closed
    assert len(stage.recorder.checkpoints) >= 1


@pytest.mark.parametrize("after", [0, 1, 17])
def test_a_failed_write_ends_the_run_at_once(after: int) -> None:
    stage = Stage(recorder=MemoryRecorder(fails_after=after))
    engines = stage.engines()

    with pytest.raises(StoreError, match="no space left"):
        stage.play()

    assert sum(map(len, stage.recorder.replies.values())) == after
    assert all(engine.is_closed for engine in engines)


def test_a_write_that_fails_in_another_thread_ends_the_run() -> None:
    stage = Stage(backends={"model-0": Hanging(), "model-1": Hanging()})
    recorder = stage.recorder

    class Telling(MemoryRecorder):
        def event(self, name: str, fields: JsonObject) -> None:
            if name == "EVENT_INFER_START" and self.failure is None:
                self.failure = StoreError("the disk is gone")
                self.callbacks[0](self.failure)

    stage.recorder = recorder = Telling()
    with pytest.raises(StoreError, match="is gone"):
        stage.play()

    assert not recorder.transcripts


def test_stop_waits_for_what_is_in_flight_and_journals_it() -> None:
    stage = Stage(stop_at_s=6.0)
    engines = stage.engines(capacity=4)
    result = stage.play()
    sent = sum(len(engine.sent) for engine in engines)

    assert result.interrupted
    assert sent == len(stage.recorder.named("EVENT_INFER_DONE"))
    assert stage.ended_at_s < 6.0 + 2.0
    assert all(engine.is_closed for engine in engines)


def test_stop_waits_no_longer_than_the_grace() -> None:
    stage = Stage(stop_at_s=7.0, backends={"model-0": Hanging(), "model-1": Hanging()})
    result = stage.play()

    assert result.interrupted
    assert stage.ended_at_s == pytest.approx(7.0 + SHUTDOWN_GRACE_S)
    assert stage.recorder.named("EVENT_RUN_STOP")[0]["cancelled_requests"] == 8


def test_stop_does_not_wait_for_pauses_between_sendings() -> None:
    stage = Stage(stop_at_s=7.0)
    stage.backends = {f"model-{n}": Raising(TransientBackendError("busy", retry_after_s=55.0)) for n in range(2)}

    assert stage.play().interrupted
    assert stage.ended_at_s < 8.0


def test_stop_while_the_engines_start_ends_at_once() -> None:
    stage = Stage(stop_at_s=2.0)
    engines = stage.engines()

    assert stage.play().interrupted
    assert stage.ended_at_s == pytest.approx(2.0)
    assert all(engine.is_closed for engine in engines)


def test_engines_start_side_by_side() -> None:
    stage = Stage(work=[])
    stage.play()

    assert stage.ended_at_s == pytest.approx(5.0)


def test_an_engine_that_does_not_start_ends_the_run_and_closes_all() -> None:
    class Dud(SimulatedEngine):
        async def start(self) -> None:
            raise OSError("no such device")

    stage = Stage()
    dud, good = Dud(), SimulatedEngine()
    stage.backends = {"model-0": dud, "model-1": good}

    with pytest.raises(EngineDeadError, match=r"model-0: .*no such"):
        stage.play()

    assert dud.is_closed
    assert good.is_closed


def test_an_engine_without_capacity_is_refused() -> None:
    stage = Stage()
    stage.engines(capacity=0)

    with pytest.raises(EngineDeadError, match="at least one"):
        stage.play()


def test_an_engine_that_does_not_close_is_reported_when_nothing_worse_happened() -> None:
    class Clinging(SimulatedEngine):
        async def close(self) -> None:
            await asyncio.sleep(1e9)

    stage = Stage(work=tasks(1), backends={"model-0": Clinging(), "model-1": SimulatedEngine()})
    with pytest.raises(EngineDeadError, match="did not close"):
        stage.play()
    assert len(stage.recorder.transcripts) == 1

    stage = Stage(recorder=MemoryRecorder(fails_after=0))
    stage.backends = {"model-0": Clinging(), "model-1": SimulatedEngine()}
    with pytest.raises(StoreError):
        stage.play()


def test_engines_close_side_by_side_and_the_first_error_is_raised_after_all() -> None:
    closed: list[str] = []

    class Slow(SimulatedEngine):
        def __init__(self, name: str, closing_s: float, fault: str | None = None) -> None:
            super().__init__()
            self._name, self._closing_s, self._fault = name, closing_s, fault

        async def close(self) -> None:
            await asyncio.sleep(self._closing_s)
            closed.append(self._name)
            if self._fault is not None:
                raise OSError(self._fault)

    stage = Stage(work=[])
    stage.backends = {
        "model-0": Slow("model-0", 9.0, "the first"),
        "model-1": Slow("model-1", 8.0, "the second"),
        "model-2": Slow("model-2", 7.0),
    }
    with pytest.raises(EngineDeadError, match=r"model-0: .*the first"):
        stage.play()

    assert closed == ["model-2", "model-1", "model-0"]


def test_a_long_reply_is_cut_and_marked() -> None:
    class Endless(SimulatedEngine):
        async def answer(self, request: Request) -> Reply:
            return Reply(text="x" * (REPLY_CHARS_MAX + 1))

    stage = Stage(work=tasks(1, agents=1, models=1), backends={"model-0": Endless()})
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
    stage = Stage(work=tasks(1))

    class Leaking(SimulatedEngine):
        async def answer(self, request: Request) -> Reply:
            if len(self.sent) == 1:
                stage.progress._scheduler._pools.models["model-0"].in_flight += 1
            return await super().answer(request)

    stage.backends = {"model-0": Leaking(), "model-1": SimulatedEngine()}
    with pytest.raises(AssertionError, match="slots of models"):
        stage.play()

    assert len(stage.recorder.transcripts) == 1


def test_progress_counts_all_sessions_and_this_ones_turns() -> None:
    stage = Stage(progress=Progress(planned=20, finished=7, failed=1), environment=ToyEnvironment("receive"))
    stage.engines(capacity=2)
    assert stage.progress.snapshot(5).in_flight == 0
    result = stage.play()
    progress = stage.progress
    turns = len(stage.recorder.named("EVENT_INFER_DONE"))

    assert (progress.planned, progress.resumed_with) == (20, 8)
    assert progress.finished == 7 + result.finished
    assert progress.failed == 1 + result.failed
    assert progress.turns == progress.turns_ended == turns
    assert progress.tokens.completion == 3 * turns
    assert progress.open == 0


def test_accounts_are_given_at_intervals_and_at_the_end() -> None:
    stage = Stage(work=tasks(40))
    stage.engines(capacity=2)
    stage.play()
    walls = [float(str(accounts["played_s"])) for accounts in stage.recorder.checkpoints]
    models = stage.recorder.checkpoints[-1]["models"]
    assert isinstance(models, dict)
    account = models["model-0"]
    assert isinstance(account, dict)

    assert walls == sorted(walls)
    assert all(late - early >= CHECKPOINT_INTERVAL_S for early, late in pairwise(walls[:-1]))
    assert len(walls) > 3
    assert 0.5 < float(str(account["busy_slot_s"])) / float(str(account["available_slot_s"])) <= 1.0


def test_accounts_are_given_while_no_conversation_ends() -> None:
    stage = Stage(work=tasks(1))
    stage.engines(latency_s_max=20.0)
    given_before_the_end: list[int] = []

    class Watching(MemoryRecorder):
        def publish(self, task: Task, transcript: JsonObject) -> None:
            given_before_the_end.append(len(self.checkpoints))
            super().publish(task, transcript)

    stage.recorder = Watching()
    stage.play()

    assert stage.ended_at_s > 4 * CHECKPOINT_INTERVAL_S
    assert given_before_the_end[0] >= 2


def test_backend_errors_carry_their_verdict_into_the_run() -> None:
    """Only the three leaves are raised by engines; the base class itself ends the run."""
    stage = Stage(backends={"model-0": Raising(BackendError("odd")), "model-1": SimulatedEngine()})
    with pytest.raises(MacRunnerError, match="odd"):
        stage.play()
