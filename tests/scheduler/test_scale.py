"""What a conversation more costs the scheduler, counted: asyncio tasks, open conversations, objects kept."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import deque
from collections.abc import Collection, Iterator

import pytest

from mac_runner.backends.testing import ScriptedConfig
from mac_runner.config import AgentDefinition, ConversationConfig, Experiment, ExperimentMetadata
from mac_runner.environments import build_environment
from mac_runner.environments.testing import EchoConfig
from mac_runner.plan import plan_tasks
from mac_runner.scheduler import Progress, RetryPolicy
from mac_runner.scheduler.testing import OPEN_CONVERSATIONS_PER_SLOT_MAX
from mac_runner.types import JsonObject, RecordedReply, Reply, Request, Task
from tests.backends.building import defined
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder

pytestmark = pytest.mark.ci

SLOTS = 50
SMALLEST_BYTES = 16


class Watching(SimulatedEngine):
    """Counts at each request how many asyncio tasks there are, and how many conversations are open."""

    def __init__(self, progress: Progress, looks_at: Collection[int]) -> None:
        super().__init__(capacity=SLOTS)
        self.looks_at = looks_at
        self.progress = progress
        self.asked = 0
        self.tasks_max = 0
        self.open_max = 0
        self.kept_bytes: dict[int, int] = {}

    async def generate(self, request: Request) -> Reply:
        self.asked += 1
        if self.asked % 100 == 0:
            self.tasks_max = max(self.tasks_max, len(asyncio.all_tasks()))
            self.open_max = max(self.open_max, self.progress.open)
        if self.asked in self.looks_at:
            # What waits for the collector of cycles is not kept, and how much waits depends on the tests before.
            gc.collect()
            self.kept_bytes[self.asked] = tracemalloc.get_traced_memory()[0]
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
        retry=RetryPolicy(),
        progress=progress,
    ).play()
    assert progress.finished == conversations
    return engine


def test_tasks_and_open_conversations_follow_the_slots_and_not_the_plan() -> None:
    drawn: list[int] = []
    engine = play(1_000, drawn)

    assert SLOTS <= engine.tasks_max <= SLOTS + 10
    assert engine.open_max <= SLOTS * OPEN_CONVERSATIONS_PER_SLOT_MAX
    assert max(drawn) <= SLOTS * OPEN_CONVERSATIONS_PER_SLOT_MAX


@pytest.mark.parametrize("conversations", [2_500, pytest.param(4_000, marks=pytest.mark.nightly)])
def test_nothing_is_kept_of_a_conversation_that_is_over(conversations: int) -> None:
    early = 1_000
    tracemalloc.start()
    try:
        kept = play(conversations, deque(maxlen=1), {early, conversations}).kept_bytes
    finally:
        tracemalloc.stop()

    # Less than the smallest object of each conversation between the two.
    assert kept[conversations] - kept[early] < SMALLEST_BYTES * (conversations - early)
