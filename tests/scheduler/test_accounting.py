"""What a run says of its slots, the pace of its event loop, and what a conversation more costs, counted."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

import pytest

from mac_runner.backends.testing import ScriptedConfig
from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.testing import EchoConfig
from mac_runner.plan import plan_tasks
from mac_runner.registry import ConversationConfig
from mac_runner.scheduler import Accounting, Progress
from mac_runner.scheduler.testing import LOOP_PASS_S_MAX, OPEN_CONVERSATIONS_PER_SLOT_MAX, LoopFairness
from mac_runner.spec import AgentDefinition, ExperimentMetadata, RetryConfig
from mac_runner.types import JsonObject, RecordedReply, Reply, Request, Task, TokenCount
from tests.backends.building import defined
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder


def test_busy_slot_time_is_the_integral_of_requests_in_flight() -> None:
    cpu_s = iter([3.0, 3.5])
    accounting = Accounting(started_at_s=100.0, concurrency=None, cpu_s=lambda: next(cpu_s))
    accounting.open("m", 4)
    accounting.departed("m", 100.0)
    accounting.departed("m", 102.0)
    accounting.landed("m", 105.0, TokenCount(prompt=10, cached=2, completion=3))
    accounting.landed("m", 106.0, None)

    # One in flight for 2 s, two for 3 s, one for 1 s, of four slots for 10 s.
    assert accounting.utilisation("m", 110.0) == 9 / 40
    assert accounting.as_json(110.0) == {
        "played_s": 10.0,
        "cpu_s": 0.5,
        "disk_turn_s": 0.0,
        "models": {
            "m": {
                "capacity": 4,
                "played_s": 10.0,
                "busy_slot_s": 9.0,
                "available_slot_s": 40.0,
                "waiting_turn_s": 0.0,
                "requests": 1,
                "faults": 1,
                "tokens": {"prompt": 10, "cached": 2, "completion": 3},
            }
        },
    }
    assert accounting.tokens == TokenCount(prompt=10, cached=2, completion=3)


def test_requests_still_in_flight_count_up_to_now() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=2)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)

    assert accounting.utilisation("m", 4.0) == 0.5
    assert accounting.utilisation("m", 8.0) == 0.5


def test_slots_that_come_and_go_count_while_they_are_there() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=8)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)
    accounting.set_pool("m", capacity=2, waiting=5, now_s=1.0)
    accounting.set_pool("m", capacity=64, waiting=0, now_s=3.0)

    # Eight slots for 1 s, two for 2 s, eight for 1 s.
    assert accounting.utilisation("m", 4.0) == 4 / 20
    assert accounting.usage(4.0).models["m"].waiting_turn_s == 10.0


def test_models_that_answer_without_a_count_are_silent() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    for model, tokens in (("counts", TokenCount(prompt=7)), ("silent", TokenCount()), ("failing", None)):
        accounting.open(model, 1)
        accounting.departed(model, 0.0)
        accounting.landed(model, 1.0, tokens)

    assert accounting.silent_models == ("silent",)


def test_utilisation_is_unknown_at_the_very_start() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    accounting.open("m", 1)

    assert accounting.utilisation("m", 0.0) is None


WORKERS = 40

WORK_S = 2.0**-8  # Sums of it are exact.


class WorkClock:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def utc_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


async def burst(clock: WorkClock, pace: LoopFairness) -> tuple[list[int], list[float]]:
    """Many who all have something to do now: in which order they did it, and how long a bystander was kept waiting."""
    order: list[int] = []
    waits: list[float] = []

    async def work(number: int) -> None:
        await pace.turn()
        clock.now_s += WORK_S
        order.append(number)

    async def stand_by() -> None:
        while len(order) < WORKERS:
            before_s = clock.now_s
            await asyncio.sleep(0)
            waits.append(clock.now_s - before_s)

    async with asyncio.TaskGroup() as group:
        group.create_task(stand_by())
        for number in range(WORKERS):
            group.create_task(work(number))
    return order, waits


def test_a_burst_delays_others_by_a_pass_and_one_piece_of_work_at_most() -> None:
    clock = WorkClock()
    _, waits = asyncio.run(burst(clock, LoopFairness(clock)))
    assert LOOP_PASS_S_MAX / 2 < max(waits) <= LOOP_PASS_S_MAX + WORK_S
    assert sum(waits) == WORKERS * WORK_S


def test_all_get_their_turn_in_the_order_they_came() -> None:
    clock = WorkClock()
    order, _ = asyncio.run(burst(clock, LoopFairness(clock)))
    assert order == list(range(WORKERS))


def test_a_reply_that_waits_for_its_turn_is_kept_when_the_run_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From some moment on no reply is applied any more, and the run is stopped."""

    async def turn(_pace: LoopFairness) -> None:
        await asyncio.sleep(0.0 if asyncio.get_running_loop().time() < 10.0 else 1e9)

    monkeypatch.setattr(LoopFairness, "turn", turn)
    played = Stage(stop_at_s=20.0)
    engines = played.engines(capacity=4)
    assert played.play().interrupted

    assert not any(engine.in_flight for engine in engines)
    recorded = sum(len(replies) for replies in played.recorder.replies.values())
    assert recorded == sum(len(engine.sent) for engine in engines) > 0


def test_one_who_comes_alone_does_not_wait() -> None:
    async def passes() -> int:
        clock, count = WorkClock(), 0
        pace = LoopFairness(clock)

        async def count_passes() -> None:
            nonlocal count
            while True:
                await asyncio.sleep(0)
                count += 1

        counting = asyncio.create_task(count_passes())
        for _ in range(3):
            await pace.turn()
            await pace.turn()
        counting.cancel()
        return count

    assert asyncio.run(passes()) == 0


SLOTS = 50


class Watching(SimulatedEngine):
    """Counts at each request how many asyncio tasks there are, and how many conversations are open."""

    def __init__(self, progress: Progress, looks_at: Collection[int]) -> None:
        super().__init__(capacity=SLOTS)
        self.looks_at = looks_at
        self.progress = progress
        self.asked = 0
        self.tasks_max = 0
        self.open_max = 0
        self.kept_objects: dict[int, int] = {}

    async def generate(self, request: Request) -> Reply:
        self.asked += 1
        if self.asked % 100 == 0:
            self.tasks_max = max(self.tasks_max, len(asyncio.all_tasks()))
            self.open_max = max(self.open_max, self.progress.open)
        if self.asked in self.looks_at:
            # What waits for the collector of cycles is not kept, and how much waits depends on the tests before.
            gc.collect()
            self.kept_objects[self.asked] = sys.getallocatedblocks()
        await asyncio.sleep(self.random.random())
        return Reply(text="1")


class Forgetful(MemoryRecorder):
    """Takes everything and keeps nothing."""

    def reply(self, task: Task, recorded: RecordedReply) -> None: ...

    def publish(self, task: Task, transcript: JsonObject) -> None: ...

    def event(self, name: str, fields: JsonObject) -> None: ...

    def checkpoint(self, accounting: JsonObject) -> None: ...


def experiment(conversations: int) -> Experiment:
    return Experiment.model_validate(
        {
            "experiment_metadata": ExperimentMetadata(experiment_name="many"),
            "model_definitions": {"m": defined(ScriptedConfig(policy="echo"))},
            "agent_definitions": (AgentDefinition(agent_id="a", role="r", model="m"),),
            "conversation_config": ConversationConfig(environment="echo", conversations=conversations),
            "echo": EchoConfig(rounds=1),
        }
    )


def play(conversations: int, drawn: list[int] | deque[int], looks_at: Collection[int] = ()) -> Watching:
    """Play so many conversations of one turn on simulated time; `drawn` gets how many of the plan were drawn when."""
    setup = experiment(conversations)
    progress = Progress(planned=conversations)
    engine = Watching(progress, looks_at)

    def work() -> Iterator[tuple[Task, tuple[RecordedReply, ...]]]:
        for task in plan_tasks(setup, None):
            drawn.append(task.index - progress.finished)
            yield task, ()

    Stage(
        work=work(),  # type: ignore[arg-type]
        environment=build_environment(setup),
        backends={"m": engine},
        recorder=Forgetful(),
        retry=RetryConfig(),
        progress=progress,
    ).play()
    assert progress.finished == conversations
    return engine


@pytest.mark.ci
def test_tasks_and_open_conversations_follow_the_slots_and_not_the_plan() -> None:
    drawn: list[int] = []
    engine = play(1_000, drawn)

    assert SLOTS <= engine.tasks_max <= SLOTS + 10
    assert engine.open_max <= SLOTS * OPEN_CONVERSATIONS_PER_SLOT_MAX
    assert max(drawn) <= SLOTS * OPEN_CONVERSATIONS_PER_SLOT_MAX


@pytest.mark.ci
@pytest.mark.parametrize("conversations", [2_500, pytest.param(4_000, marks=pytest.mark.nightly)])
def test_nothing_is_kept_of_a_conversation_that_is_over(conversations: int) -> None:
    early = 1_000
    kept = play(conversations, deque(maxlen=1), {early, conversations}).kept_objects

    # Objects and not bytes: the table of a set that others fill, such as asyncio's of all tasks, grows at some moment.
    assert kept[conversations] - kept[early] < (conversations - early) / 2
