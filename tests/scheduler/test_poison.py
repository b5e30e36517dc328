"""A turn that the engine dies on costs three deaths, over all sessions; and its own conversation, and no other.

An engine of several servers tries it alone on one of them, and the others go on.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from mac_runner.errors import EngineCrashedError
from mac_runner.scheduler.testing import ENGINE_DEATHS_PER_TURN_MAX
from mac_runner.spec import RetryConfig
from mac_runner.types import Request
from tests.faults.tier import SCALE
from tests.scheduler.conftest import alone, undisturbed
from tests.sim.engine import MortalEngine, ServersEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.seeds import told
from tests.sim.toy import tasks
from tests.sim.weather import Watch

POISON = "toy-003"
WORK = tasks(12, models=1)
STORMS = 30 * SCALE


def is_poison(request: Request) -> bool:
    return request.conversation == POISON and request.turn.round == 1


def check_only_poison_failed(recorder: MemoryRecorder) -> None:
    """Everything is as it would be without the poison, but for the one conversation."""
    found = recorder.results()
    failed = found.pop(POISON)

    assert found == {task: result for task, result in undisturbed().items() if task != POISON}
    assert isinstance(failed, dict)
    assert "died 3 times while" in str(failed["failure"])


def dying_beside(engine: MortalEngine, *at_s: float) -> MortalEngine:
    """Has an engine die at these moments, whatever it works on."""

    async def start() -> None:
        for moment_s in at_s:
            asyncio.get_running_loop().call_later(moment_s, engine.die)

    engine.start = start  # type: ignore[method-assign]
    engine.is_started = True
    return engine


@pytest.mark.ci
@pytest.mark.parametrize("down_s", [0.0, 20.0, 45.0])
@pytest.mark.parametrize("dice", range(4))
def test_poison_fails_its_conversation_at_the_third_death_and_the_run_goes_on(dice: int, down_s: float) -> None:
    engine = MortalEngine(kills=is_poison, dice=dice, down_s=down_s)
    stage = alone(engine, retry=RetryConfig(max_attempts=3), loop_seed=dice)

    assert stage.counts() == (11, 1)
    assert len(engine.deaths[-1]) == 1
    check_only_poison_failed(stage.recorder)
    deaths = stage.recorder.named("EVENT_ENGINE_DEATH")
    assert max(int(str(death["deaths"])) for death in deaths) == ENGINE_DEATHS_PER_TURN_MAX
    assert {death["task"] for death in deaths if death["deaths"] == ENGINE_DEATHS_PER_TURN_MAX} == {POISON}


@pytest.mark.parametrize("dice", range(4))
def test_poison_that_ends_the_run_each_time_is_not_sent_at_the_third_resume(dice: int) -> None:
    recorder, engines = MemoryRecorder(), list[MortalEngine]()
    for session in range(4):
        engines.append(MortalEngine(kills=is_poison, dice=session, down_s=None))
        work, loop_seed = recorder.unfinished(WORK), 10 * dice + session
        stage = alone(engines[-1], work, recorder=recorder, loop_seed=loop_seed)
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
        engine = MortalEngine(kills=is_poison, down_s=None)
        stage = alone(engine, recorder.unfinished(WORK), recorder=recorder, loop_seed=session)
        with pytest.raises(EngineCrashedError):
            stage.play()

    left = {task.task_id for task, _ in recorder.unfinished(WORK)}
    assert POISON in left
    assert left <= {task_id for task_id, deaths in recorder.dead.items() if max(deaths.values()) >= 2}


def test_an_engine_that_dies_of_itself_costs_no_conversation() -> None:
    engine = dying_beside(MortalEngine(down_s=5.0), *(12.0 * number for number in range(1, 8)))
    stage = alone(engine, retry=RetryConfig(max_attempts=3))

    assert stage.counts() == (12, 0)
    assert len(engine.deaths) == 7
    assert any(engine.deaths)
    assert stage.recorder.results() == undisturbed()


def test_an_engine_that_ends_while_the_run_stops_counts_against_no_turn() -> None:
    engine = dying_beside(MortalEngine(down_s=None), 8.001)
    stage = alone(engine, stop_at_s=8.0)
    with pytest.raises(EngineCrashedError):
        stage.play()

    assert engine.deaths[0]
    assert stage.recorder.dead == {}


@pytest.mark.ci
def test_the_other_servers_stay_full_while_a_suspect_is_tried() -> None:
    used = list[tuple[float, float]]()
    for dice in range(2):
        engine = ServersEngine(kills=is_poison, dice=dice)
        assert alone(engine, 160, loop_seed=dice).counts() == (159, 1)
        assert len(engine.deaths[-1]) == 1, "it was not alone"
        used += engine.used()

    busy_s, available_s = sum(busy_s for busy_s, _ in used), sum(available_s for _, available_s in used)
    assert used, "no suspect was left to the engine"
    assert busy_s >= 0.95 * available_s, f"{busy_s / available_s:.3f} of their slots"


@pytest.mark.ci
def test_every_storm_over_several_servers_leaves_all_as_it_would_be_without_it() -> None:
    """Servers die over a turn and of themselves; only the poison fails, and events name the server of each death."""
    for seed in range(STORMS):
        with told("storm over servers", seed):
            play(seed)


def play(seed: int) -> None:
    random = Random(seed)
    conversations, is_poisoned = random.choice([4, 12, 20]), random.random() < 0.7
    engine = ServersEngine(
        servers=random.choice([1, 2, 3, 8]),
        slots=random.choice([1, 2, 8]),
        kills=is_poison if is_poisoned else lambda _request: False,
        down_s=random.choice([0.5, 10.0, 40.0]),
        dice=seed,
    )
    stage = alone(engine, conversations, loop_seed=seed, progress=Watch())
    start = engine.start

    async def with_deaths() -> None:
        await start()
        for _ in range(random.choice([0, 1, 4])):
            asyncio.get_running_loop().call_later(40 * random.random(), engine.die, random.choice(engine.servers))

    engine.start = with_deaths  # type: ignore[method-assign]
    finished, failures = stage.counts()

    expected, found = undisturbed(conversations), stage.recorder.results()
    failed = {task for task in found if found[task] != expected[task]}
    lonely = {request.split("/")[0] for death in engine.deaths if len(death) == 1 for request in death}
    assert finished + failures == len(found) == conversations
    assert failed <= lonely, f"{failed} failed, and died alone: {lonely}"
    assert failed >= {POISON} or not is_poisoned
    deaths = stage.recorder.named("EVENT_ENGINE_DEATH")
    assert {death["server"] for death in deaths} <= {server.name for server in engine.servers}
    assert max((int(str(death["deaths"])) for death in deaths), default=0) <= ENGINE_DEATHS_PER_TURN_MAX
    assert all(death["server"] for death in deaths)
