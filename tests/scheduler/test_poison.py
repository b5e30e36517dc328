"""A turn that the engine dies on costs three deaths, over all sessions; and its own conversation, and no other."""

from __future__ import annotations

import asyncio

import pytest

from mac_runner.errors import EngineCrashedError
from mac_runner.scheduler import RetryPolicy
from mac_runner.scheduler.testing import ENGINE_DEATHS_PER_TURN_MAX
from mac_runner.types import Request
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.mortal import MortalEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import tasks

POISON = "toy-003"
WORK = tasks(12, models=1)


def is_poison(request: Request) -> bool:
    return request.conversation == POISON and request.turn.round == 1


def healthy() -> MemoryRecorder:
    stage = Stage(work=WORK, backends={"model-0": SimulatedEngine(capacity=4)})
    stage.play()
    return stage.recorder


def check_only_poison_failed(recorder: MemoryRecorder) -> None:
    """Everything is as it would be without the poison, but for the one conversation."""
    expected, found = healthy().results(), recorder.results()
    failed = found.pop(POISON)
    del expected[POISON]

    assert found == expected
    assert isinstance(failed, dict)
    assert "died 3 times while" in str(failed["failure"])


@pytest.mark.ci
@pytest.mark.parametrize("down_s", [0.0, 20.0, 45.0])
@pytest.mark.parametrize("dice", range(4))
def test_poison_fails_its_conversation_at_the_third_death_and_the_run_goes_on(dice: int, down_s: float) -> None:
    stage = Stage(work=WORK, retry=RetryPolicy(max_attempts=3), loop_seed=dice)
    engine = MortalEngine(kills=is_poison, dice=dice, down_s=down_s)
    stage.backends = {"model-0": engine}
    result = stage.play()

    assert (result.finished, result.failed) == (11, 1)
    assert len(engine.deaths[-1]) == 1
    check_only_poison_failed(stage.recorder)
    deaths = stage.recorder.named("EVENT_ENGINE_DEATH")
    assert max(int(str(death["deaths"])) for death in deaths) == ENGINE_DEATHS_PER_TURN_MAX
    assert {death["task"] for death in deaths if death["deaths"] == ENGINE_DEATHS_PER_TURN_MAX} == {POISON}


@pytest.mark.parametrize("dice", range(4))
def test_poison_that_ends_the_run_each_time_is_not_sent_at_the_third_resume(dice: int) -> None:
    recorder, engines = MemoryRecorder(), list[MortalEngine]()
    for session in range(4):
        stage = Stage(work=recorder.unfinished(WORK), recorder=recorder, loop_seed=10 * dice + session)
        engines.append(MortalEngine(kills=is_poison, dice=session, down_s=None))
        stage.backends = {"model-0": engines[-1]}
        if session < ENGINE_DEATHS_PER_TURN_MAX:
            with pytest.raises(EngineCrashedError):
                stage.play()
        else:
            assert not stage.play().interrupted

    assert [len(engine.deaths) for engine in engines] == [1, 1, 1, 0]
    check_only_poison_failed(recorder)


def test_suspects_are_behind_all_others() -> None:
    """The session that poison ends for the third time has done everything but suspects before."""
    recorder = MemoryRecorder()
    for session in range(3):
        stage = Stage(work=recorder.unfinished(WORK), recorder=recorder, loop_seed=session)
        stage.backends = {"model-0": MortalEngine(kills=is_poison, down_s=None)}
        with pytest.raises(EngineCrashedError):
            stage.play()

    left = {task.task_id for task, _ in recorder.unfinished(WORK)}
    assert POISON in left
    assert left <= {task_id for task_id, deaths in recorder.dead.items() if max(deaths.values()) >= 2}


def test_an_engine_that_dies_of_itself_costs_no_conversation() -> None:
    stage = Stage(work=WORK, retry=RetryPolicy(max_attempts=3))
    engine = MortalEngine(down_s=5.0)
    stage.backends = {"model-0": engine}

    async def beside() -> None:
        loop = asyncio.get_running_loop()
        for number in range(1, 8):
            loop.call_later(12.0 * number, engine.die)

    engine.start = beside  # type: ignore[method-assign]
    engine.is_started = True
    result = stage.play()

    assert len(engine.deaths) == 7
    assert any(engine.deaths)
    assert (result.finished, result.failed) == (12, 0)
    assert stage.recorder.results() == healthy().results()


def test_an_engine_that_ends_while_the_run_stops_counts_against_no_turn() -> None:
    stage = Stage(work=WORK, stop_at_s=8.0)
    engine = MortalEngine(down_s=None)
    stage.backends = {"model-0": engine}

    async def beside() -> None:
        asyncio.get_running_loop().call_later(8.001, engine.die)

    engine.start = beside  # type: ignore[method-assign]
    engine.is_started = True
    with pytest.raises(EngineCrashedError):
        stage.play()

    assert engine.deaths[0]
    assert stage.recorder.dead == {}
