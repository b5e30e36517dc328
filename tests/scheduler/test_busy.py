"""Services that turn away what is too much, servers that a request waits for, and engines that grow and shrink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from mac_runner.backends.testing import uncharged
from mac_runner.errors import EngineDeadError, TransientBackendError
from mac_runner.spec import RetryConfig
from mac_runner.types import Reply, Request
from tests.scheduler.conftest import Stage, alone
from tests.sim.engine import LimitedService, SimulatedEngine
from tests.sim.toy import tasks


@pytest.mark.ci
@pytest.mark.parametrize("pause_s", [None, 1.0, 20.0])
@pytest.mark.parametrize("at_once", [1, 5, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_service_of_fewer_slots_is_kept_full_and_asked_little_in_vain(at_once: int, pause_s: float | None) -> None:
    service = LimitedService(capacity=64, at_once=at_once, pause_s=pause_s)
    stage = alone(service, 4 * at_once + 8)

    assert stage.counts()[1] == 0
    assert len(service.sent) < 2.5 * service.answered
    # The last conversations cannot fill the slots, and the first minute is for finding out.
    assert service.served_s / at_once > 0.6 * (stage.ended_at_s - 60.0)


@pytest.mark.ci
@pytest.mark.parametrize("pause_s", [None, 1.0, 5.0])
@pytest.mark.parametrize("latency_s_max", [0.1, 4.0])
def test_a_service_of_so_many_a_second_answers_that_many(latency_s_max: float, pause_s: float | None) -> None:
    service = LimitedService(capacity=64, per_s=5, pause_s=pause_s)
    service.latency_s_max = latency_s_max
    stage = alone(service, 60)

    assert stage.counts()[1] == 0
    assert len(service.sent) < 3 * service.answered
    assert service.answered / stage.ended_at_s > 0.8 * 5


@pytest.mark.ci
@pytest.mark.parametrize("pause_s", [None, 1.0])
def test_a_slow_service_answers_within_a_short_deadline(pause_s: float | None) -> None:
    """But for the rare request that waits too long by the order of simultaneous events: one to four of 3,000."""
    failed = 0
    for seed in range(4):
        service = LimitedService(capacity=16, per_s=2, pause_s=pause_s)
        stage = alone(service, 60, retry=RetryConfig(max_attempts=3, request_deadline_s=40.0), loop_seed=seed)
        failed += stage.play().failed
        assert stage.ended_at_s > 300.0
    assert failed <= 2


@pytest.mark.parametrize("pause_s", [None, 1.0, 5.0])
def test_waiting_for_a_service_that_is_busy_for_all_takes_no_request_its_time(pause_s: float | None) -> None:
    """While one request is tried after the other, each of the others waits longer than its deadline allows."""
    service = LimitedService(capacity=16, pause_s=pause_s)
    service.opens_at_s = 200.0
    stage = alone(service, 60, retry=RetryConfig(request_deadline_s=30.0))

    assert stage.play().failed == 0


@pytest.mark.ci
def test_a_service_that_turns_some_requests_away_whatever_it_has_is_kept_full() -> None:
    ended_at_s = []
    for rate in (0.0, 0.05, 0.3):
        service = LimitedService(capacity=64)
        service.whim_rate = rate
        stage = alone(service, 120)
        assert stage.play().failed == 0
        ended_at_s.append(stage.ended_at_s)

    assert max(ended_at_s) < 1.3 * ended_at_s[0]


@pytest.mark.ci
@pytest.mark.parametrize("capacity", [4, 64])
def test_a_prompt_that_is_always_rejected_delays_no_other(capacity: int) -> None:
    """As with services that say "busy" to what is too large for them."""
    service = LimitedService(capacity=capacity, pause_s=1.0)
    service.denied = "toy-003"
    stage = alone(service, 100)

    assert stage.counts() == (99, 1)
    assert service.last_answer_at_s < 1.2 * service.served_s / capacity + 60.0


DEADLINE_S = 60.0

WORK = tasks(4, agents=1, models=1)


class Queueing(SimulatedEngine):
    """Has each request wait for a place, and faults the first sending of each."""

    def __init__(self, *, waits_s: float, works_s: float, faults: bool = False) -> None:
        super().__init__(capacity=2)
        self.waits_s, self.works_s, self.faults = waits_s, works_s, faults

    async def answer(self, request: Request) -> Reply:
        with uncharged():
            await asyncio.sleep(self.waits_s / 2)
            with uncharged():  # It may call others that wait.
                await asyncio.sleep(self.waits_s / 2)
        await asyncio.sleep(self.works_s)
        if self.faults and self.sent.count((request.prompt.sha256, request.sampling.seed)) == 1:
            raise TransientBackendError("connection reset")
        return Reply(text="word")


def played(engine: Queueing) -> Stage:
    retry = RetryConfig(request_deadline_s=DEADLINE_S, engine_patience_s=6e5)
    stage = alone(engine, WORK, retry=retry)
    stage.play()
    return stage


def test_time_that_a_request_waits_for_a_server_is_charged_to_no_deadline() -> None:
    for faults in (False, True):
        stage = played(Queueing(waits_s=10 * DEADLINE_S, works_s=DEADLINE_S / 10, faults=faults))

        assert not stage.recorder.named("EVENT_GIVE_UP"), faults
        assert len(stage.recorder.transcripts) == len(WORK)


def test_time_that_a_request_waits_for_a_server_is_not_the_time_that_the_engine_took() -> None:
    stage = played(Queueing(waits_s=100.0, works_s=5.0))

    for done in stage.recorder.named("EVENT_INFER_DONE"):
        assert float(str(done["latency_ms"])) == 5000.0
        assert float(str(done["queue_s"])) >= 100.0


def test_deadline_goes_on_after_the_wait() -> None:
    stage = played(Queueing(waits_s=100.0, works_s=DEADLINE_S + 1.0))

    assert len(stage.recorder.named("EVENT_GIVE_UP")) == len(WORK)


class Changing(SimulatedEngine):
    """An engine that says when it changes its size; it is asked for nothing while it serves nothing."""

    def __init__(self, sizes: Mapping[float, tuple[int, int]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.sizes = sizes
        self.sent_at_s: list[float] = []

    def on_resize(self, tell: Callable[[], None]) -> bool:
        loop = asyncio.get_running_loop()
        for at_s, size in self.sizes.items():
            loop.call_at(at_s, self.resize, size, tell)
        return True

    def resize(self, size: tuple[int, int], tell: Callable[[], None]) -> None:
        self.capacity, self.lookahead = size
        tell()

    async def answer(self, request: Request) -> Reply:
        self.sent_at_s.append(asyncio.get_running_loop().time())
        return await super().answer(request)


def test_run_waits_for_an_engine_that_serves_nothing_and_does_not_count_the_time_against_it() -> None:
    engine = Changing({10.0: (0, 0), 5000.0: (2, 0), 5010.0: (9, 0)}, capacity=4, fault_rate=0.3)
    stage = alone(engine)

    assert sum(stage.counts()) == 12
    assert not [at_s for at_s in engine.sent_at_s if 10.0 < at_s < 5000.0]
    assert stage.accounts[0]["capacity"] == 9
    assert stage.accounts[0]["available_slot_s"] < 4 * 5000.0 / 2
    # A fault before the pause, and one after it, do not make it an engine that was silent in between.
    assert stage.pauses_s


def test_run_begins_with_an_engine_that_serves_nothing_yet_if_it_says_when_it_does() -> None:
    assert alone(Changing({100.0: (4, 0)}, capacity=0), 3).counts() == (3, 0)

    with pytest.raises(EngineDeadError, match="serves 0 requests"):
        alone(SimulatedEngine(capacity=0), 3).play()


def test_run_stops_in_good_order_while_no_engine_serves_anything() -> None:
    stage = alone(Changing({10.0: (0, 0)}, capacity=4), stop_at_s=60.0)

    assert sum(stage.counts()) < 12
    assert stage.ended_at_s == 60.0


def test_an_engine_that_waits_for_its_turn_has_requests_and_conversations_and_no_slots() -> None:
    """Six models share 64 slots: each gets 64 requests, which wait inside it, and so 400 conversations are open."""
    engines = {f"model-{number}": Changing({}, capacity=0, lookahead=64) for number in range(6)}
    engines["model-0"].capacity, engines["model-0"].lookahead = 64, 0
    work = [
        (replace(task, agents=tuple(replace(agent, model=f"model-{task.index % 6}") for agent in task.agents)), replies)
        for task, replies in tasks(1000, agents=1, models=1)
    ]
    stage = Stage(work=work, backends=engines, stop_at_s=5.5)
    for engine in engines.values():
        engine.latency_s_max = 1000.0
    stage.play()
    waiting = stage.accounts[1]

    assert [len(engine.sent_at_s) for engine in engines.values()] == [64] * 6
    assert waiting["busy_slot_s"] == waiting["available_slot_s"] == 0.0
