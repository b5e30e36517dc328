from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from mac_runner.calibration import non_negative_least_squares
from mac_runner.errors import ConfigError
from mac_runner.latency import Calibration, StepModel
from mac_runner.runs.testing import EngineName, calibrate
from mac_runner.simulation.testing import SimulatedClock, SimulatedLoop
from tests.sim.stepping import SleepingEngine

NAMES = ("step_ms", "token_ms", "prompt_token_ms", "context_token_ms")


def swept(engine: SleepingEngine) -> Calibration:
    async def program() -> Calibration:
        return await calibrate(engine, SimulatedClock(), EngineName("m", "g", "stub 1"), slots=engine.slots)

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(3)) as runner:
        return runner.run(program())


def model(*milliseconds: float) -> StepModel:
    return StepModel(**dict(zip(NAMES, milliseconds, strict=True)))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("true", [(8.0, 0.4, 0.02, 0.0005), (7.0, 0.2, 0.04, 0.0004)])
def test_a_sweep_finds_the_step_model_of_an_engine_within_ten_percent(
    true: tuple[float, ...], noise: float, subtests: pytest.Subtests
) -> None:
    found = swept(SleepingEngine(model(*true), noise=noise))

    for name, value in zip(NAMES, true, strict=True):
        with subtests.test(name):
            assert getattr(found.steps, name) == pytest.approx(value, rel=0.1)
    for in_flight in (1, 8, 16):
        assert found.steps.kernel_ms(16, in_flight, 800) == pytest.approx(
            model(*true).kernel_ms(16, in_flight, 800), rel=0.05
        )
    assert (found.in_flight, found.error < 0.05) == ((1, 4, 16, 32), True)


def test_a_sweep_keeps_to_the_slots_and_the_context_of_the_engine() -> None:
    true = model(8.0, 0.4, 0.02, 0.0005)
    small, short = SleepingEngine(true, slots=3), SleepingEngine(true, context_max=200)

    assert swept(small).in_flight == (1, 3)
    assert small.most <= 3
    assert swept(short).steps.step_ms == pytest.approx(8.0, rel=0.1)
    for engine, words in (
        (SleepingEngine(true, context_max=5), "no prompt of one word"),
        (SleepingEngine(model(60_000.0, 0.4, 0.02, 0.0005), slots=1), "sweep for longer"),
    ):
        with pytest.raises(ConfigError, match=words):
            swept(engine)


def test_least_squares_take_no_negative_factor() -> None:
    random = Random(5)
    for _ in range(50):
        rows = [[random.random() * scale for scale in (1, 100, 0.01, 10_000)] for _ in range(30)]
        true = [random.choice((0.0, random.random())) for _ in range(4)]
        targets = [sum(a * x for a, x in zip(row, true, strict=True)) for row in rows]
        found = non_negative_least_squares(rows, targets)
        assert squared_error(rows, targets, found) <= 1e-9 * sum(target**2 for target in targets)

        noisy = [target + random.uniform(-5, 5) for target in targets]
        found = non_negative_least_squares(rows, noisy)
        error = squared_error(rows, noisy, found)
        assert min(found) >= 0
        for at in range(4):
            for step in (-1e-3, 1e-3):
                moved = [max(0.0, x + step * (k == at) / (1, 100, 0.01, 10_000)[k]) for k, x in enumerate(found)]
                assert squared_error(rows, noisy, moved) >= error - 1e-6


def squared_error(rows: Iterable[list[float]], targets: list[float], factors: list[float]) -> float:
    return sum(
        (sum(a * x for a, x in zip(row, factors, strict=True)) - target) ** 2
        for row, target in zip(rows, targets, strict=True)
    )
