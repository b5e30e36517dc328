"""Studies planned from pilots and sweeps: they take what they then take."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.config import ModelDefinition
from mac_runner.environments import Conversation
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.latency import Calibration, StepModel
from mac_runner.planning.testing import (
    BLOCK_TOKENS,
    SAMPLES_MIN,
    Cost,
    CostRequest,
    EngineName,
    Recorded,
    Resampled,
    RunCalibration,
    SimulatedClock,
    beginnings,
    calibrate,
    chain_of,
    cost_of,
    non_negative_least_squares,
    recorded_conversations,
)
from mac_runner.runs import RunRequest, Setup, set_up
from mac_runner.store import Run, read_run
from mac_runner.types import JsonObject, Request, Sampling, Task
from tests.planning.study import experiment, played, written
from tests.sim.shuffled import ShuffledLoop
from tests.sim.stepping import TRUE, SleepingEngine
from tests.tiers import first


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 24 discussions on 8 slots."""
    folder = tmp_path_factory.mktemp("pilot")
    played(written(folder, experiment()), folder / "pilot")
    return folder / "pilot"


def planned(folder: Path, pilot: Path, conversations: int = 24, *, resamplings: int = 0, **request: object) -> Cost:
    """The plan of a study."""
    file = written(folder, experiment(conversations))
    return cost_of(
        CostRequest(run=RunRequest(file=file), calibration=pilot, resamplings=resamplings, **request),  # type: ignore[arg-type]
        lambda _line: None,
    )


@pytest.mark.parametrize("size", first(1, [(24, 8), (40, 16), (40, 4)]))
def test_a_study_takes_what_its_plan_says_at_other_sizes_and_on_other_engines(
    tmp_path: Path, pilot: Path, size: tuple[int, int]
) -> None:
    conversations, slots = size
    actual_s = played(written(tmp_path, experiment(conversations)), tmp_path / "run", slots=slots)

    (row,) = planned(tmp_path, pilot, conversations, slots=(slots,)).rows

    assert row.forecast.conversations == conversations
    assert row.forecast.seconds == pytest.approx(actual_s, rel=0.1)


@pytest.mark.ci
def test_the_interval_holds_the_plan_and_a_large_study_is_made_smaller_for_it(
    tmp_path: Path, pilot: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("mac_runner.planning.cost.SPREAD_TURNS", 150)
    said: list[str] = []
    file = written(tmp_path, experiment(40))
    request = CostRequest(run=RunRequest(file=file), calibration=pilot, lanes=(4,), resamplings=4)

    found = cost_of(request, said.append)

    assert found.spread is not None
    low, high = found.spread
    assert 0.7 < low <= 1.05
    assert max(low, 0.95) <= high < 1.3
    assert said == snapshot
    assert any(re.match(r"each resampling played", note) for note in found.notes)


@pytest.mark.ci
def test_the_interval_is_as_narrow_as_what_the_forecast_rests_on(
    tmp_path: Path, pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.planning.cost.SPREAD_TURNS", 50)

    found = planned(tmp_path, pilot, 80, resamplings=4, slots=(2,))

    (note,) = (note for note in found.notes if "narrowed" in note)
    played, factor = re.findall(r"[\d.]+", note)
    assert 3 <= int(played) <= 8
    # A pilot of 24 conversations, and a forecast of 80.
    assert float(factor) == pytest.approx(((1 / 24 + 1 / int(played)) / (1 / 24 + 1 / 80)) ** 0.5, rel=0.01)


def test_combinations_of_a_grid_share_their_engines_and_each_has_its_own_replies(tmp_path: Path, pilot: Path) -> None:
    content = experiment(12)
    content["_grid"] = {"sweep": {"discussion.max_rounds": [3, 2]}}
    request = CostRequest(
        run=RunRequest(file=written(tmp_path, content), out=tmp_path / "out"), calibration=pilot, resamplings=0
    )

    found = cost_of(request, lambda _line: None)

    assert found.rows[0].forecast.conversations == 24
    assert list(found.rows[0].forecast.engines) == ["panel"]
    assert len(found.replies) == 2
    assert "finished conversations of" in found.replies[0]
    assert "player 'discussant'" in found.replies[1]
    assert any("(discussion.max_rounds differs)" in note for note in found.notes)


SIZE = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 12 discussions."""
    folder = tmp_path_factory.mktemp("run")
    played(written(folder, experiment(SIZE)), folder / "pilot")
    return read_run(folder / "pilot")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A plan of 600 discussions."""
    (found,) = set_up(
        RunRequest(file=written(tmp_path_factory.mktemp("plan"), experiment(600)), out=Path("nowhere"))
    ).setups
    return found


def resampled(run: Run, resampling: int = 0) -> Resampled:
    return Resampled(recorded_conversations(run), resampling)


@pytest.fixture(scope="module")
def common(run: Run, setup: Setup) -> frozenset[int]:
    """The blocks of the prompts by which the recorded conversations begin."""
    prompts = beginnings(recorded_conversations(run), setup.environment())
    return frozenset(block for prompt in prompts for block in chain_of(prompt, 1.0))


def blocks_of(drawn: Resampled, setup: Setup, common: frozenset[int], task: Task) -> tuple[set[int], Conversation]:
    """The blocks of all prompts of a planned conversation, played to its end, and the conversation."""
    conversation, found = setup.environment().open(task), set[int]()
    while turns := conversation.turns():
        turn = turns[0]
        prompt = conversation.prompt(turn)
        found |= set(chain_of(prompt, 1.0, mark=task.task_id, common=common))
        request = Request(conversation=task.task_id, turn=turn, prompt=prompt, sampling=Sampling(max_tokens=9))
        conversation.receive(turn, drawn.reply(request))
    return found, conversation


def test_planned_conversations_are_recorded_ones_to_their_ends(run: Run, setup: Setup, common: frozenset[int]) -> None:
    drawn = resampled(run)
    names = {task.task_id for task in setup.tasks()}
    outcomes = [run.transcript(row["task_id"])["outcome"] for row in run.rows()]  # type: ignore[arg-type]

    tasks = list(drawn.tasks(setup.tasks[:20])())

    assert {task.task_id for task in tasks} < names
    for task in tasks:
        assert blocks_of(drawn, setup, common, task)[1].outcome in outcomes


def test_copies_share_no_more_of_their_prompts_than_different_conversations(
    run: Run, setup: Setup, common: frozenset[int]
) -> None:
    drawn = resampled(run)
    tasks = list(drawn.tasks(setup.tasks[:40])())
    seeds = Counter(task.seed for task in tasks)
    copied = [task for task in tasks if task.seed == seeds.most_common(1)[0][0]]
    other = next(task for task in tasks if task.seed != copied[0].seed and task.material == copied[0].material)

    own, copy, different = (blocks_of(drawn, setup, common, task)[0] for task in (copied[0], copied[1], other))

    assert len(own) > 5 * BLOCK_TOKENS
    assert len(own & copy) <= len(own & different) + 2
    assert own & copy


def test_a_resampling_draws_from_other_conversations_and_always_the_same(run: Run, setup: Setup) -> None:
    def seeds(resampling: int) -> list[int]:
        return [task.seed for task in resampled(run, resampling).tasks(setup.tasks)()]

    assert len(set(seeds(0))) == SIZE
    assert 4 <= len(set(seeds(1))) < SIZE
    assert seeds(1) == seeds(1) != seeds(2)


def test_a_turn_that_was_not_recorded_is_refused(run: Run, setup: Setup, common: frozenset[int]) -> None:
    drawn = Resampled([Recorded(one.task, {}) for one in recorded_conversations(run)])
    (task,) = drawn.tasks(setup.tasks[:1])()

    with pytest.raises(RequestRefusedError, match="has no turn"):
        blocks_of(drawn, setup, common, task)


def test_a_run_shows_the_step_model_of_its_engine_and_its_tokens(run: Run) -> None:
    found = RunCalibration([run], print).model("panel")

    assert found.steps.kernel_ms(16, 8, 300) == pytest.approx(TRUE.kernel_ms(16, 8, 300), rel=0.05)
    assert (found.in_flight, found.lanes, found.capacity, found.is_prefix_cached) == (8, 1, 8, False)
    assert found.chars_per_token == pytest.approx(4, rel=0.02)
    assert set(found.reply_tokens) <= set(range(20, 41))


def test_a_model_of_the_run_is_fitted_once_for_all_engines_that_are_of_it(run: Run) -> None:
    calibration = RunCalibration([run], print)

    assert calibration.model("panel") is calibration.model("panel")


@pytest.mark.parametrize(
    ("backend", "settings", "expected"),
    [
        ("openai", {"base_urls": ["http://a/v1", "http://b/v1"], "max_in_flight": 9}, (2, 4, 1)),
        ("ollama", {"host": ["http://a", "http://b"], "max_in_flight": 1}, (2, 1, 1)),
        ("anthropic", {}, (1, 16, 1)),
        ("vllm", {"data_parallel_size": 4, "tensor_parallel_size": 2}, (4, 64, 2)),
        ("vllm", {"data_parallel_size": 4, "max_num_seqs": 24}, (4, 24, 1)),
        ("nano", {"data_parallel_size": 2}, (2, 64, 1)),
        ("fleet", {"max_num_seqs": 8, "tensor_parallel_size": 2}, (None, 8, 2)),
    ],
)
def test_lanes_slots_and_gpus_are_those_of_the_settings_and_one_lane_can_serve_alone(
    backend: str, settings: JsonObject, expected: tuple[int | None, int, int]
) -> None:
    definition = ModelDefinition.model_validate_json(
        json.dumps({"backend": backend, f"{backend}_config": {"model": "m", **settings}})
    )
    serving = definition.serving
    alone = definition.with_settings(definition.backend_settings.model_copy(update=dict(serving.alone))).serving

    assert (serving.lanes, serving.slots, serving.gpus) == expected
    assert alone.lanes in (1, None)
    assert backend in ("vllm", "nano") or alone.slots == serving.slots


NAMES = ("step_ms", "token_ms", "prompt_token_ms", "context_token_ms")


def swept(engine: SleepingEngine) -> Calibration:
    async def program() -> Calibration:
        return await calibrate(engine, SimulatedClock(), EngineName("m", "g", "stub 1"), slots=engine.slots)

    with asyncio.Runner(loop_factory=lambda: ShuffledLoop(3)) as runner:
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
    with pytest.raises(ConfigError, match="no prompt of one word"):
        swept(SleepingEngine(true, context_max=5))


@pytest.mark.parametrize("slots", [1, 4, 32])
def test_a_sweep_of_a_slow_engine_goes_on_until_its_replies_show_how_it_works(slots: int) -> None:
    found = swept(SleepingEngine(model(60_000.0, 0.4, 0.02, 0.0005), slots=slots))

    assert found.requests >= SAMPLES_MIN
    assert found.steps.step_ms == pytest.approx(60_000.0, rel=0.1)


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
