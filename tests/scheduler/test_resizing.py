"""Engines that grow and shrink while they work: the scheduler follows, and nothing waits for a slot that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from mac_runner.backends import PassingBackend
from mac_runner.backends.testing import destination, isolates, on_resize
from mac_runner.errors import EngineDeadError
from mac_runner.types import Destination, Reply, Request
from tests.scheduler.conftest import Stage, alone
from tests.sim.engine import SimulatedEngine
from tests.sim.toy import tasks


class ManyServers(SimulatedEngine):
    """An engine with everything that a backend of several servers says of itself."""

    isolates = True

    def on_resize(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def destination(self, request: Request) -> Destination | None:
        return Destination(server=f"http://{request.conversation}")


def test_what_a_backend_of_several_servers_says_is_heard_through_those_that_pass_it_on() -> None:
    backend, told = ManyServers(), list[str]()
    outer = PassingBackend(PassingBackend(backend))

    assert on_resize(outer, lambda: told.append("resized"))
    backend.tell()
    assert told == ["resized"]
    assert isolates(outer)
    assert not on_resize(PassingBackend(SimulatedEngine()), lambda: None)
    assert not isolates(PassingBackend(SimulatedEngine()))
    assert destination(PassingBackend(SimulatedEngine()), None) is None  # type: ignore[arg-type]


class Changing(SimulatedEngine):
    """An engine that says when it changes its size; it is asked for nothing while it serves nothing."""

    def __init__(self, sizes: Mapping[float, tuple[int, int]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.sizes = sizes
        self.sent_at_s: list[float] = []

    def on_resize(self, tell: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        for at_s, size in self.sizes.items():
            loop.call_at(at_s, self.resize, size, tell)

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
