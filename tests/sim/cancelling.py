"""A run that is cancelled at the n-th turn of its loop: then each task of it is at one of its awaits.

The same run takes another course with another seed of its loop and its engines. A play is named by course and turn:
seed 3017 is turn 17 of course 3.

Whatever it was doing, the cancellation comes out again, the engines are closed and have nothing in flight, no task is
left, and what was recorded is whole: another session goes on from it to the same transcripts.
"""

from __future__ import annotations

import asyncio
from functools import cache

from mac_runner.simulation.testing import SimulatedLoop, simulate
from tests.scheduler.conftest import Stage, undisturbed
from tests.sim.toy import tasks
from tests.sim.watch import Watch
from tests.sim.weather import StormyEngine, StormyRecorder, Weather

_WEATHER = Weather(
    rates={"reset": 0.05, "did it but raised": 0.05, "delay": 0.1},
    deaths_at_s=(9.0,),
    down_s=3.0,
    disk_stall_rate=0.1,
    ends_at_s=40.0,
)
_WORK = tasks(5, agents=3, models=2)
TURNS_MAX = 1_000


def play(seed: int) -> bool:
    """Cancel one course at one turn; whether the run was still going."""
    course, turn = divmod(seed, TURNS_MAX)
    recorder = StormyRecorder(course)
    engines = _engines(course)
    stage = _stage(recorder, engines, course)
    stage.progress = Watch()
    is_cancelled = simulate(lambda: _cancelled(stage, turn), seed=stage.loop_seed)
    assert all(engine.is_closed or not engine.is_started for engine in engines), "an engine was left open"
    assert not any(engine.in_flight for engine in engines), "a request was left behind"
    for task_id, replies in recorder.replies.items():
        assert len({reply.turn_key for reply in replies}) == len(replies), f"{task_id}: a reply was recorded twice"
    rest = _stage(recorder, [StormyEngine(Weather(), capacity=8, dice=number) for number in range(2)], course)
    rest.work = recorder.unfinished(_WORK)
    recorder.begin(Weather())
    assert not rest.play().interrupted
    assert recorder.results() == undisturbed(5, agents=3, models=2)
    return is_cancelled


@cache
def turns() -> int:
    """How many turns of the loop the first course takes when it is not cancelled."""
    stage = _stage(StormyRecorder(0), _engines(0), 0)
    taken = 0

    async def program() -> None:
        nonlocal taken
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        before = loop.turns
        await asyncio.wait([asyncio.create_task(stage.program())])
        taken = loop.turns - before

    simulate(program, seed=stage.loop_seed)
    return taken


def _engines(course: int) -> list[StormyEngine]:
    return [StormyEngine(_WEATHER, capacity=2, dice=2 * course + number) for number in range(2)]


async def _cancelled(stage: Stage, turn: int) -> bool:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    run = asyncio.create_task(stage.program())
    is_asked, before = False, loop.turns

    def strike(now: int) -> None:
        nonlocal is_asked
        if now - before == turn and not run.done():
            is_asked = run.cancel()

    loop.at_turn = strike
    await asyncio.wait([run])
    loop.at_turn = None
    assert run.cancelled() == is_asked, "a cancellation was swallowed"
    return is_asked


def _stage(recorder: StormyRecorder, engines: list[StormyEngine], course: int) -> Stage:
    recorder.begin(engines[0].weather)
    backends = {f"model-{number}": engine for number, engine in enumerate(engines)}
    return Stage(work=_WORK, recorder=recorder, backends=backends, loop_seed=course)
