"""What the status counts: rates, the time left, the limit, the results so far; and when it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.bottleneck import ModelUsage, Usage
from mac_runner.clock import Clock
from mac_runner.results import Column, Columns
from mac_runner.status import Meter, RateWindow, Reading, StatusFrame, Tally, tick
from mac_runner.status.testing import STATUS_RATE_SAMPLES_MAX, time_left_s
from mac_runner.types import JsonObject, TokenCount
from tests.status.conftest import SimulatedClock

MakeReading = Callable[..., Reading]


def test_rate_is_unknown_until_two_moments_are_known() -> None:
    window = RateWindow(30)
    assert window.rate_per_s is None

    window.add(0, 10)
    assert window.rate_per_s is None

    window.add(0, 20)
    assert window.rate_per_s is None

    window.add(2, 30)
    assert window.rate_per_s == 10


def test_rate_forgets_what_is_older_than_the_window() -> None:
    for slow in (3, 0):
        window = RateWindow(10)
        for second in range(101):
            window.add(second, 1000 * min(second, 50) + slow * max(0, second - 50))

        assert window.rate_per_s == slow


@given(st.lists(st.floats(0.0001, 5), min_size=2, max_size=400))
def test_rate_of_steady_growth_is_exact_however_it_is_sampled(gaps_s: list[float]) -> None:
    window = RateWindow(30)
    elapsed_s = 0.0
    for gap_s in gaps_s:
        elapsed_s += gap_s
        window.add(elapsed_s, round(elapsed_s * 1_000_000))

    assert window.rate_per_s == pytest.approx(1_000_000, rel=0.05)


def test_rate_window_keeps_a_bounded_number_of_samples() -> None:
    window = RateWindow(30)
    for at_ms in range(100_000):
        window.add(at_ms / 1000, at_ms)

    assert len(window._samples) <= STATUS_RATE_SAMPLES_MAX + 2


def test_meter_rates_leave_out_what_was_there_at_the_start(make_reading: MakeReading) -> None:
    meter = Meter()
    meter.frame(make_reading(elapsed_s=0, turns=1000, tokens=TokenCount(completion=7000)))
    frame = meter.frame(make_reading(elapsed_s=10, turns=1050, tokens=TokenCount(completion=8000)))

    assert (frame.turns_per_s, frame.tokens_per_s) == (5, 100)


def test_time_left_follows_the_lengths_of_conversations_and_the_pace(make_reading: MakeReading) -> None:
    for rate, left_s, changes in (
        # Ten ended in 1,000 turns; the other ten have 900 of their 1,000 behind them.
        (10.0, 10, {"planned": 20, "finished": 9, "failed": 1, "turns": 1900, "turns_ended": 1000}),
        # After a resume: of sixty ended conversations ten ended here, in 1,000 turns.
        (10.0, 100, {"planned": 70, "finished": 60, "resumed_with": 50, "turns": 1000, "turns_ended": 1000}),
        # Each open conversation has a turn left.
        (10.0, 1, {"planned": 20, "finished": 10, "turns": 9000, "turns_ended": 1000}),
        # Without lengths it follows the conversations of this session.
        (None, 20, {"planned": 100, "finished": 60, "resumed_with": 40, "elapsed_s": 10.0}),
        # It is unknown before anything ended, and while nothing moves.
        (10.0, None, {"finished": 0}),
        (10.0, None, {"finished": 40, "resumed_with": 40}),
        (10.0, None, {"finished": 0, "turns_ended": 0}),
        (0.0, None, {"failed": 1, "turns_ended": 100}),
        # It is zero once all has ended.
        (None, 0, {"planned": 46, "failed": 1}),
        (None, 0, {"planned": 0, "finished": 0}),
    ):
        assert time_left_s(make_reading(**{"failed": 0, **changes}), rate) == left_s, changes


def test_the_limit_is_that_of_the_last_seconds_and_begins_anew_with_other_engines(make_reading: MakeReading) -> None:
    def usage(played_s: float, busy: float) -> Usage:
        model = ModelUsage(busy_slot_s=busy, available_slot_s=8 * played_s)
        return Usage(played_s=played_s, requests=round(10 * played_s), models={"m": model})

    meter = Meter()
    limits = [
        meter.frame(make_reading(elapsed_s=played_s, usage=usage(played_s, busy))).limit
        for played_s, busy in ((10.0, 80.0), (20.0, 90.0), (30.0, 170.0), (5.0, 40.0))
    ]

    few = "too few conversations open (each waits for its own turn)"
    full = "model m (8/8 busy, 0 waiting)"
    assert limits == [full, few, full, full]


def test_headline_columns_of_an_environment_are_counted_and_others_are_not() -> None:
    columns = Columns(
        {
            "winner": Column("words", is_headline=True),
            "right": Column("truth", is_headline=True),
            "days": Column("number"),
        },
        lambda outcome: {"winner": outcome["w"], "right": outcome["r"], "days": 3},  # type: ignore[dict-item]
    )
    tally = Tally(columns)
    for winners, right in ((["mafia"], True), (["mafia", "neutral"], None), (["town"], False), (["mafia"], None)):
        tally.add({"w": [*winners], "r": right})

    assert tally.text().partition("mafia ")[2] == "75%, neutral 25%, town 25%, right 50%"


def test_outcomes_without_columns_are_counted_by_their_winners_and_truths() -> None:
    tally = Tally(None)
    assert tally.text() == ""
    outcomes: list[JsonObject] = [
        {"kind": "werewolf", "winner": "wolves", "days": 3, "is_draw": False, "roles": {"Ann": "wolf"}},
        {"kind": "werewolf", "winner": "village", "days": 4, "is_draw": False, "roles": {}},
    ]
    for outcome in outcomes:
        tally.add(outcome)

    assert tally.text().partition("winner ")[2] == "wolves 50%, village 50%, is_draw 0%"


@dataclass(slots=True)
class RecordingDisplay:
    """Remembers what it was told; `is_enough` is set once it was updated five times."""

    interval_s: float = 0.5
    calls: list[str] = field(default_factory=list)
    is_enough: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        self.calls.append("start")

    def update(self, frame: StatusFrame) -> None:
        self.calls.append("update")
        if self.calls.count("update") == 5:
            self.is_enough.set()

    def say(self, text: str) -> None:
        self.calls.append(f"say {text}")

    def close(self) -> None:
        self.calls.append("close")


async def _tick_until_enough(display: RecordingDisplay, clock: Clock, frame: StatusFrame) -> None:
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(tick(display, lambda: frame, clock))
        await display.is_enough.wait()
        ticking.cancel()


def test_ticker_updates_once_per_interval_and_once_at_the_end(clock: SimulatedClock, frame: StatusFrame) -> None:
    display = RecordingDisplay(interval_s=0.5)
    asyncio.run(_tick_until_enough(display, clock, frame))

    assert display.calls == ["start", *["update"] * (len(clock.sleeps_s) + 1), "close"]
    assert set(clock.sleeps_s) == {0.5}


def test_ticker_closes_the_display_when_reading_breaks(clock: Clock, frame: StatusFrame) -> None:
    """A bug in reading the run is not hidden, but the terminal is left in order."""
    display = RecordingDisplay()

    def broken() -> StatusFrame:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(tick(display, broken, clock))

    assert display.calls == ["start", "close"]
