"""Several experiments over the same engines: nothing of one shows in another, and no slot idles between them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from mac_runner.backends import Backend
from mac_runner.errors import StoreError
from mac_runner.planning.testing import SimulatedClock
from mac_runner.scheduler import Job, RunResult, Source, run_pooled
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonValue, Reply, Request
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import ToyEnvironment, Work, tasks

SAME = {"model-0": "model-0", "model-1": "model-1"}
CAPACITY = 8


class Watched(SimulatedEngine):
    """Keeps the time of each change of its requests in flight."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.changes: list[tuple[float, int]] = []

    async def generate(self, request: Request) -> Reply:
        self.changes.append((asyncio.get_running_loop().time(), self.in_flight + 1))
        try:
            return await super().generate(request)
        finally:
            self.changes.append((asyncio.get_running_loop().time(), self.in_flight))

    def idle_slot_s(self, until_s: float) -> float:
        """How much slot time went unused from the first request to `until_s`."""
        spans = pairwise([*self.changes, (until_s, 0)])
        return sum(
            (self.capacity - level) * (min(after_s, until_s) - min(at_s, until_s))
            for (at_s, level), (after_s, _) in spans
        )


@dataclass(eq=False)
class Part:
    """One experiment of a pooled run."""

    name: str
    work: Work
    engines: Mapping[str, str] = field(default_factory=lambda: SAME)
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    opening_s: float = 0.0
    is_closed: bool = False

    def source(self) -> Source:
        return Source(
            environment=ToyEnvironment(),
            environment_name="toy",
            experiment_name=self.name,
            engines=self.engines,
            recorder=self.recorder,
            retry=RetryConfig(max_attempts=50),
        )


def part(name: str, count: int, *, models: int = 2, **more: object) -> Part:
    """Toys of an experiment called `name`; the same number has the same seed in all of them."""
    toys = tasks(count, models=models)
    work = [(replace(task, task_id=f"{name}-{task.index}"), replies) for task, replies in toys]
    return Part(name, work, **more)  # type: ignore[arg-type]


class Parts:
    """The parts one behind the other; each takes its time to open."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {item.source(): item for item in parts}
        self.left = {source: len(item.work) for source, item in self.parts.items()}
        self.jobs = iter([Job(source, *entry) for source, item in self.parts.items() for entry in item.work])
        self.opened: set[Source] = set()
        self.exhausted_at_s = 0.0

    async def take(self) -> Job | None:
        job = next(self.jobs, None)
        if job is not None and job.source not in self.opened:
            self.opened.add(job.source)
            await asyncio.sleep(self.parts[job.source].opening_s)
        if job is None:
            self.exhausted_at_s = asyncio.get_running_loop().time()
        return job

    def settled(self, source: Source) -> None:
        item = self.parts[source]
        assert not item.is_closed
        self.left[source] -= 1
        item.is_closed = not self.left[source]


class Pool(Stage):
    """A pooled run about to be played; its own recorder is the log."""

    def __init__(self, parts: Sequence[Part], backends: Mapping[str, Backend], **more: Any) -> None:
        super().__init__(backends=backends, **more)
        self.parts, self.pooled = parts, Parts(parts)

    async def run(self, stop: asyncio.Event) -> RunResult:
        return await run_pooled(
            work=self.pooled,
            backends=self.backends,
            log=self.recorder,
            concurrency=None,
            clock=SimulatedClock(),
            stop=stop,
        )


def engines(*names: str, capacity: int = CAPACITY) -> dict[str, Watched]:
    return {name: Watched(capacity=capacity) for name in names}


def results(item: Part) -> dict[str, JsonValue]:
    return item.recorder.results()


def test_pooled_experiments_get_the_transcripts_that_they_get_alone() -> None:
    together = [part(name, 7) for name in ("first", "second", "third")]
    alone = [part(name, 7) for name in ("first", "second", "third")]
    result = Pool(together, engines("model-0", "model-1")).play()
    for item in alone:
        Pool([item], engines("model-0", "model-1")).play()

    assert (result.finished, result.failed, result.interrupted) == (21, 0, False)
    assert [results(item) for item in together] == [results(item) for item in alone]
    assert all(item.is_closed for item in together)


def test_replies_and_events_go_to_the_experiment_they_are_of_and_the_account_to_the_run() -> None:
    stage = Pool([part("first", 4), part("second", 5)], engines("model-0", "model-1"))
    stage.play()

    for item in stage.parts:
        told = {str(fields["task"]).split("-")[0] for _, fields in item.recorder.events}
        assert told == {item.name}
        assert item.recorder.replies.keys() == {task.task_id for task, _ in item.work}
        assert not item.recorder.checkpoints
    assert [name for name, _ in stage.recorder.events] == ["EVENT_RUN_START", "EVENT_RUN_STOP"]
    assert stage.recorder.checkpoints
    assert not stage.recorder.transcripts


def test_models_of_one_name_are_served_by_the_engine_that_each_experiment_means() -> None:
    backends = engines("small", "large", "judge")
    first = part("first", 3, engines={"model-0": "small", "model-1": "judge"})
    second = part("second", 3, engines={"model-0": "large", "model-1": "judge"})
    alone = part("second", 3)
    Pool([first, second], backends).play()
    Pool([alone], engines("model-0", "model-1")).play()

    def asked(item: Part, model: str) -> int:
        return sum(fields["model"] == model for fields in item.recorder.named("EVENT_INFER_DONE"))

    assert len(backends["small"].sent) == asked(first, "model-0") > 0
    assert len(backends["large"].sent) == asked(second, "model-0") > 0
    assert len(backends["judge"].sent) == asked(first, "model-1") + asked(second, "model-1")
    assert results(second) == results(alone)
    for name in ("EVENT_INFER_START", "EVENT_INFER_DONE"):
        named = {(fields["model"], fields.get("engine")) for fields in first.recorder.named(name)}
        assert named == {("model-0", "small"), ("model-1", "judge")}
        assert all("engine" not in fields for fields in alone.recorder.named(name))


@pytest.mark.ci
def test_slots_stay_full_across_the_seams_where_one_after_the_other_leaves_them_idle() -> None:
    names = ("a", "b", "c", "d")
    pooled = Pool([part(name, 20, models=1) for name in names], engines("model-0"))
    alone = [Pool([part(name, 20, models=1)], engines("model-0")) for name in names]
    for stage in (pooled, *alone):
        stage.play()

    assert 0.0 < pooled.pooled.exhausted_at_s < pooled.ended_at_s
    assert _idle_slot_s(pooled, pooled.pooled.exhausted_at_s) == 0.0
    # The control: each of them has a tail in which its last conversations leave slots empty.
    assert all(_idle_slot_s(stage, stage.ended_at_s) > 0.0 for stage in alone)
    assert pooled.ended_at_s < sum(stage.ended_at_s for stage in alone)


def _idle_slot_s(stage: Pool, until_s: float) -> float:
    (engine,) = stage.backends.values()
    assert isinstance(engine, Watched)
    return engine.idle_slot_s(until_s)


def test_a_disk_that_fails_under_one_experiment_stops_the_run() -> None:
    stage = Pool(
        [part("first", 4), part("second", 5, recorder=MemoryRecorder(fails_after=3))], engines("model-0", "model-1")
    )

    with pytest.raises(StoreError, match="no space left"):
        stage.play()


def test_a_write_that_fails_behind_the_back_of_the_run_stops_it() -> None:
    stage = Pool([part("first", 4), part("second", 5)], engines("model-0", "model-1"))

    class Late(Parts):
        async def take(self) -> Job | None:
            job = await super().take()
            if job is None:
                (callback,) = stage.parts[1].recorder.callbacks
                callback(StoreError("the disk of the second is gone"))
            return job

    stage.pooled = Late(stage.parts)

    with pytest.raises(StoreError, match="second is gone"):
        stage.play()


def test_a_stop_while_an_experiment_is_being_opened_begins_none_of_it() -> None:
    parts = [part("first", 1), part("second", 5, opening_s=1_000.0)]
    result = Pool(parts, engines("model-0", "model-1"), stop_at_s=500.0).play()

    assert result.interrupted
    assert parts[0].is_closed
    assert not parts[1].recorder.events
