"""What the status counts: rates, the time left, what limits a run, the results so far; and when it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mac_runner.bottleneck import ModelUsage, Usage, bottleneck, time_left_s, usage_of
from mac_runner.results import Column, Columns
from mac_runner.scheduler import Accounting, Progress, RequestScheduler, WaitingTurn
from mac_runner.scheduler.testing import Faulted, ModelReady, Opened
from mac_runner.status import Meter, RateWindow, Reading, StatusFrame, Tally, TurnRow, read_progress, tick
from mac_runner.status.testing import STATUS_RATE_SAMPLES_MAX, row
from mac_runner.types import JsonObject, ReceiptKind, TokenCount, Turn
from tests.kit import StridingClock
from tests.patience import until
from tests.sim.recorder import MemoryRecorder

MakeReading = Callable[..., Reading]


def test_rate_is_unknown_until_two_moments_are_known() -> None:
    window = RateWindow(30)
    rates = []
    for second, count in ((0, 10), (0, 20), (2, 30)):
        rates.append(window.rate_per_s)
        window.add(second, count)

    assert (rates, window.rate_per_s) == ([None] * 3, 10)


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


def test_time_left_follows_the_lengths_of_conversations_and_the_pace() -> None:
    for rate, left_s, left, ended, turns_ended, turns in (
        # Ten ended in 1,000 turns; the other ten have 900 of their 1,000 behind them.
        (10.0, 10, 10, 10, 1000, 1900),
        # All that are left are as long as the ten that ended here, in 1,000 turns.
        (10.0, 100, 10, 10, 1000, 1000),
        # Each open conversation has a turn left.
        (10.0, 1, 10, 10, 1000, 9000),
        # It is unknown before anything ended, and while nothing moves.
        (10.0, None, 40, 0, 0, 1000),
        (0.0, None, 40, 1, 100, 1000),
        (None, None, 40, 1, 100, 1000),
        # It is zero once all has ended.
        (None, 0, 0, 46, 1000, 1000),
        (None, 0, 0, 0, 0, 0),
    ):
        found = time_left_s(left, ended=ended, turns_ended=turns_ended, turns=turns, turns_per_s=rate)
        assert found == left_s, (rate, left, ended)


def test_time_left_after_a_resume_follows_what_ended_since(make_reading: MakeReading) -> None:
    """Of sixty ended conversations ten ended here, in 1,000 turns."""
    here = {"planned": 70, "finished": 60, "failed": 0, "resumed_with": 50, "turns_ended": 1000}
    meter = Meter()
    meter.frame(make_reading(**here, elapsed_s=0, turns=900))
    frame = meter.frame(make_reading(**here, elapsed_s=10, turns=1000))

    assert frame.eta_s == 100


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
    winner, right = Column("words", is_headline=True), Column("truth", is_headline=True)
    columns = {"winner": winner, "right": right, "days": Column("number")}

    def values(outcome: Any) -> Any:
        return {"winner": outcome["w"], "right": outcome["r"], "days": 3}

    tally = Tally(Columns(columns, values))
    for winners, is_right in ((["mafia"], True), (["mafia", "neutral"], None), (["town"], False), (["mafia"], None)):
        tally.add({"w": [*winners], "r": is_right})

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


def test_ticker_updates_once_per_interval_and_once_at_the_end(frame: StatusFrame) -> None:
    display, clock = Mock(interval_s=0.5), StridingClock(0.0)

    async def program() -> None:
        ticking = asyncio.create_task(tick(display, lambda: frame, clock))
        await until(lambda: display.update.call_count >= 5, "five updates")
        ticking.cancel()
        await asyncio.wait([ticking])

    asyncio.run(program())

    assert display.mock_calls == [call.start(), *[call.update(frame)] * (len(clock.slept_s) + 1), call.close()]
    assert set(clock.slept_s) == {0.5}


def test_ticker_closes_the_display_when_reading_breaks() -> None:
    """A bug in reading the run is not hidden, but the terminal is left in order."""
    display = Mock(interval_s=0.5)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(tick(display, Mock(side_effect=ZeroDivisionError), StridingClock(0.0)))

    assert display.mock_calls == [call.start(), call.close()]


TURN = Turn(round=3, agent="Ann", model="m", place=0)


def test_reading_of_a_run_that_has_not_begun_shows_what_was_there() -> None:
    reading = read_progress(Progress(planned=10, finished=4, failed=1), experiment_name="demo", profile="p")

    assert (reading.planned, reading.ended, reading.resumed_with, reading.written) == (10, 5, 5, 5)
    assert (reading.elapsed_s, reading.turns, reading.models, reading.ready_rows) == (0.0, 0, (), ())


def test_reading_has_the_part_of_turns_that_took_their_default_by_agent_definition() -> None:
    progress = Progress(planned=1)
    for name, kinds in {
        "c": "act default correction default act default",
        "d": "act observation",
        "e": "failure",
    }.items():
        for kind in kinds.split():
            progress.applied(ReceiptKind(kind), name)

    reading = read_progress(progress, experiment_name="demo", profile="p")

    assert reading.default_shares == {"c": 0.6, "d": 0.0}


def test_reading_tells_turns_that_back_off_from_those_that_others_block() -> None:
    scheduler, accounting = RequestScheduler(), Accounting(started_at_s=0.0, concurrency=None)
    accounting.open("m", 1)
    behind = (structs.replace(TURN, agent=name, place=1, after=frozenset({"Ann"})) for name in ("Bob", "Cid"))
    for event in (ModelReady("m", 1), Opened(0, (TURN, *behind), 0), Faulted(0, TURN, 9.0)):
        scheduler.handle(event)
    progress = Progress(planned=1)
    progress.attach(scheduler, accounting, MemoryRecorder(), StridingClock(0.0), {})

    reading = read_progress(progress, experiment_name="demo", profile="p")

    assert (reading.blocked, reading.backing_off) == (2, 1)
    notes = {row.agent: row.note for row in reading.pending_rows}
    assert notes == {"Ann": "retry 1", "Bob": "after Ann", "Cid": "after Ann"}


def test_row_notes_why_a_turn_waits() -> None:
    for changes, turn, note in (
        ({"sendings": 0}, TURN, ""),
        ({"sendings": 0, "waits_for": ("Bob", "Cid")}, TURN, "after Bob, Cid"),
        ({"sendings": 2, "is_backing_off": True}, TURN, "retry 2"),
        ({"sendings": 0}, structs.replace(TURN, attempt=1), "correction 1"),
        ({"sendings": 0}, structs.replace(TURN, step=1), "goes on"),
    ):
        waiting = WaitingTurn(conversation=0, turn=turn, **changes)
        assert row("task", waiting) == TurnRow(task_id="task", round=3, agent="Ann", model="m", note=note)


def _model(busy: float, slots: float, waiting: float) -> ModelUsage:
    """A model over ten seconds, by its means."""
    return ModelUsage(busy_slot_s=10 * busy, available_slot_s=10 * slots, waiting_turn_s=10 * waiting)


def _usage(*, cpu_s: float = 1.0, disk_turn_s: float = 0.0, requests: int = 1000, **models: ModelUsage) -> Usage:
    return Usage(played_s=10.0, cpu_s=cpu_s, disk_turn_s=disk_turn_s, requests=requests, models=models)


def test_each_limit_is_named_with_what_shows_it() -> None:
    free, full = _model(3, 8, 0), _model(8, 8, 12)
    cases = {
        "model b (8/8 busy, 12 waiting)": (_usage(a=free, b=full), False, None),
        "this process's CPU (0.95 ms a request)": (_usage(cpu_s=9.5, requests=10_000, b=full), False, None),
        "disk": (_usage(cpu_s=9.5, disk_turn_s=20.0, b=full), False, None),
        "too few conversations open (each waits for its own turn)": (_usage(a=free), False, None),
        "the last conversations (each waits for its own turn)": (_usage(a=free), True, None),
        "--concurrency 8 (20 waiting)": (_usage(a=_model(5, 8, 8), b=_model(3, 8, 12)), False, 8),
        "what fits at once into model b (3/8 busy, 12 waiting)": (_usage(b=_model(3, 8, 12)), False, None),
        # Every slot is in use, though nothing waits for long.
        "model b (8/8 busy, 0 waiting)": (_usage(b=_model(7.6, 8, 0.1)), False, None),
    }

    found = {
        words: bottleneck(used, is_all_open=is_all_open, concurrency=concurrency)
        for words, (used, is_all_open, concurrency) in cases.items()
    }

    assert found == {words: words for words in cases}


def test_nothing_is_said_before_the_first_reply() -> None:
    for used in (_usage(requests=0, a=_model(8, 8, 3)), _usage(), Usage(played_s=0.0, requests=3)):
        assert bottleneck(used, is_all_open=False) is None


def test_a_stretch_is_the_difference_of_two_moments_and_a_model_may_begin_within_it() -> None:
    before = Usage(played_s=5.0, cpu_s=1.0, requests=10, models={"a": _model(1, 2, 0)})
    after = Usage(
        played_s=15.0, cpu_s=4.0, disk_turn_s=2.0, requests=30, models={"a": _model(3, 4, 1), "b": _model(1, 1, 1)}
    )

    stretch = after.since(before)

    assert (stretch.played_s, stretch.cpu_s, stretch.disk_turn_s, stretch.requests) == (10.0, 3.0, 2.0, 20)
    assert stretch.models == {"a": _model(2, 2, 1), "b": _model(1, 1, 1)}


def test_accounts_of_a_journal_say_the_same_and_those_of_earlier_versions_say_nothing() -> None:
    account: JsonObject = {"busy_slot_s": 80.0, "available_slot_s": 80.0, "waiting_turn_s": 120.0, "requests": 1000}
    recorded: JsonObject = {"played_s": 10.0, "cpu_s": 1.0, "disk_turn_s": 0.0, "models": {"b": account}}

    assert usage_of(recorded) == _usage(b=_model(8, 8, 12))
    assert usage_of({"played_s": 10.0, "models": {"b": account}}) is None
