"""What a simulated run says: near to an engine that takes every step, the same each time, and what limits the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mac_runner.runs.testing import EngineName, calibrate
from mac_runner.scheduler import Progress
from mac_runner.simulation.testing import PILOT, Forecast, SimulatedClock, SimulatedLoop, Study, forecast
from mac_runner.types import Reply, Request, TokenCount
from tests.sim.stepping import SteppingEngine, SteppingLane
from tests.sim.studies import STEPS, played, study

KV_TOKENS = 1 << 20


def actual(asked: Study) -> tuple[float, Progress]:
    """The study on an engine that takes every step."""
    model = asked.engines["engine"]
    lane = SteppingLane(STEPS, model.slots, model.step_tokens, model.kv_tokens or KV_TOKENS)
    return played(asked, SteppingEngine(lane, asked.replies["engine"]))


def near(found: Forecast, other: Forecast, part: float) -> None:
    """Two forecasts of one study."""
    assert found.seconds == pytest.approx(other.seconds, rel=part)
    assert found.turns == pytest.approx(other.turns, rel=part)
    assert found.tokens.completion == pytest.approx(other.tokens.completion, rel=part)
    assert found.engines["engine"].slot_share == pytest.approx(other.engines["engine"].slot_share, rel=part)
    assert found.engines["engine"].hit_share == pytest.approx(other.engines["engine"].hit_share, abs=0.03)


@pytest.mark.ci
def test_a_run_takes_what_it_takes_on_an_engine_that_takes_every_step(subtests: pytest.Subtests) -> None:
    for slots, kv_tokens in ((4, None), (16, None), (16, 2_000)):
        asked = study("discussion_small", "discussant", conversations=12, slots=slots, kv_tokens=kv_tokens)
        found = forecast(asked)
        seconds, progress = actual(asked)
        with subtests.test(slots=slots, kv_tokens=kv_tokens):
            assert found.seconds == pytest.approx(seconds, rel=0.01)
            assert found.tokens.cached == pytest.approx(progress.tokens.cached, rel=0.02)
            assert (found.turns, found.tokens.completion) == (progress.turns, progress.tokens.completion)


@pytest.mark.ci
def test_a_calibrated_engine_is_forecast_within_ten_percent(subtests: pytest.Subtests) -> None:
    def counted(request: Request) -> Reply:
        return Reply(text="words", tokens=TokenCount(completion=request.sampling.max_tokens))

    async def sweep() -> Any:
        lane = SteppingLane(STEPS, 64, is_shared=False)
        engine = SteppingEngine(lane, counted)
        return await calibrate(engine, SimulatedClock(), EngineName("m", "g", "e"), slots=16, seconds=3.0)

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(3)) as runner:
        found = runner.run(sweep())
    for conversations, slots in ((6, 4), (16, 16), (30, 32)):
        asked = study("discussion_small", "discussant", conversations=conversations, slots=slots)
        seconds, _ = actual(asked)
        model = replace(asked.engines["engine"], steps=found.steps)
        planned = forecast(replace(asked, engines={"engine": model}))
        with subtests.test(slots=slots):
            assert planned.seconds == pytest.approx(seconds, rel=0.1)


@pytest.mark.ci
def test_a_slice_of_the_lanes_shows_the_whole() -> None:
    asked = study(conversations=240, lanes=16, slots=2, client_ms=0.3)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played, whole.played_share) == (240, 1.0)
    assert (part.played, part.played_share) == (60, 0.25)
    assert part.client_share == pytest.approx(whole.client_share, rel=0.05)
    near(part, whole, 0.05)


@pytest.mark.ci
def test_two_lanes_with_many_slots_show_the_whole() -> None:
    asked = study(conversations=640, lanes=4, slots=64)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played_share, part.played_share) == (1.0, 0.5)
    assert part.seconds / part.turns == pytest.approx(whole.seconds / whole.turns, rel=0.05)


@pytest.mark.ci
def test_the_first_conversations_show_how_the_others_go() -> None:
    """A part is large enough for conversations to begin as others end."""
    asked = study(conversations=320, slots=12)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played, part.played, part.played_share) == (320, PILOT, 1.0)
    near(part, whole, 0.03)
    assert PILOT < forecast(study(conversations=320, slots=60), turns_max=1).played < 200


@pytest.mark.ci
def test_the_first_thing_that_holds_a_run_back_is_named(subtests: pytest.Subtests) -> None:
    for limit, asked in {
        "client": study(conversations=40, slots=16, client_ms=40.0),
        "engine": study(conversations=40, slots=4),
        "kv": study("discussion_small", "discussant", conversations=20, slots=64, kv_tokens=2_000),
        "gating": study(conversations=20, slots=1_000),
    }.items():
        with subtests.test(limit):
            found = forecast(asked)
            assert found.limit == limit
            assert found.critical_path_s <= found.seconds
            assert found.limiting_engine == ("engine" if limit in ("engine", "kv") else None)


def test_prompts_that_begin_alike_are_read_once_where_the_engine_keeps_them() -> None:
    asked = study("discussion_small", "discussant", conversations=10, slots=8)
    model = asked.engines["engine"]

    kept = forecast(asked)
    read = forecast(replace(asked, engines={"engine": replace(model, is_prefix_cached=False)}))

    assert kept.engines["engine"].hit_share > 0.2
    assert (read.tokens.cached, read.tokens.prompt) == (0, kept.tokens.prompt)
    assert read.seconds > kept.seconds


def test_two_simulations_of_a_study_are_equal() -> None:
    asked = study("discussion_small", "discussant", conversations=10, lanes=3, slots=2, client_ms=0.7)

    assert forecast(asked) == forecast(asked)


def test_a_prompt_beyond_the_context_gets_no_reply() -> None:
    found = forecast(study("discussion_small", "discussant", conversations=2, slots=8, context_tokens=20))

    assert (found.failed, found.tokens.completion) == (2, 0)
