"""An engine of several servers: a turn that they die on is tried alone on one of them, and the others go on."""

from __future__ import annotations

import asyncio
from functools import cache
from random import Random

import pytest

from mac_runner.scheduler.testing import ENGINE_DEATHS_PER_TURN_MAX
from mac_runner.types import JsonValue, Request
from tests.faults.tier import SCALE
from tests.scheduler.conftest import Stage
from tests.sim.engine import SimulatedEngine
from tests.sim.seeds import told
from tests.sim.servers import ServersEngine
from tests.sim.toy import tasks
from tests.sim.watch import Watch

pytestmark = pytest.mark.ci

POISON = "toy-003"
STORMS = 30 * SCALE


def is_poison(request: Request) -> bool:
    return request.conversation == POISON and request.turn.round == 1


@cache
def healthy(conversations: int) -> dict[str, JsonValue]:
    stage = Stage(work=tasks(conversations, models=1), backends={"model-0": SimulatedEngine(capacity=100)})
    stage.play()
    return stage.recorder.results()


def test_the_other_servers_stay_full_while_a_suspect_is_tried() -> None:
    used = list[tuple[float, float]]()
    for dice in range(2):
        engine = ServersEngine(kills=is_poison, dice=dice)
        stage = Stage(work=tasks(160, models=1), loop_seed=dice, backends={"model-0": engine})
        result = stage.play()

        assert (result.finished, result.failed) == (159, 1)
        assert len(engine.deaths[-1]) == 1, "it was not alone"
        used += engine.used()

    busy_s, available_s = sum(busy_s for busy_s, _ in used), sum(available_s for _, available_s in used)
    assert used, "no suspect was left to the engine"
    assert busy_s >= 0.95 * available_s, f"{busy_s / available_s:.3f} of their slots"


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
    stage = Stage(work=tasks(conversations, models=1), loop_seed=seed, progress=Watch(), backends={"model-0": engine})
    start = engine.start

    async def with_deaths() -> None:
        await start()
        for _ in range(random.choice([0, 1, 4])):
            asyncio.get_running_loop().call_later(40 * random.random(), engine.die, random.choice(engine.servers))

    engine.start = with_deaths  # type: ignore[method-assign]
    result = stage.play()

    expected, found = healthy(conversations), stage.recorder.results()
    failed = {task for task in found if found[task] != expected[task]}
    alone = {request.split("/")[0] for death in engine.deaths if len(death) == 1 for request in death}
    assert result.finished + result.failed == len(found) == conversations
    assert failed <= alone, f"{failed} failed, and died alone: {alone}"
    assert failed >= {POISON} or not is_poisoned
    deaths = stage.recorder.named("EVENT_ENGINE_DEATH")
    assert {death["server"] for death in deaths} <= {server.name for server in engine.servers}
    assert max((int(str(death["deaths"])) for death in deaths), default=0) <= ENGINE_DEATHS_PER_TURN_MAX
    assert all(death["server"] for death in deaths)
