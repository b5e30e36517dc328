"""What a lane may do when, in simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mac_runner.config import RestartConfig
from mac_runner.fleet.testing import SERVED_S, SLEEP_S, Lane, LaneState

MANY = RestartConfig(budget=1000, per_s=3600)


def new(restart: RestartConfig = MANY, start_s: float = 900) -> Lane:
    return Lane("m@0", restart=restart, start_s=start_s)


def up(lane: Lane, now_s: float = 0.0) -> Lane:
    lane.starting(now_s)
    lane.started()
    lane.warmed(now_s)
    return lane


EVENTS: dict[str, Callable[[Lane, float], None]] = {
    "starting": Lane.starting,
    "started": lambda lane, _now_s: lane.started(),
    "warmed": Lane.warmed,
    "drained": Lane.drained,
    "slept": lambda lane, _now_s: lane.slept(),
    "waking": Lane.waking,
}
FOLLOWING = {
    **dict.fromkeys(("planned", "resting"), "starting"),
    "starting": "started",
    "warming": "warmed",
    "asleep": "waking",
}
LIFE: list[tuple[str, Callable[[Lane], None]]] = [
    ("starting", lambda lane: lane.starting(0)),
    ("warming", Lane.started),
    ("up", lambda lane: lane.warmed(1)),
    ("draining", Lane.drain),
    ("dry", lambda lane: lane.drained(2)),
    ("asleep", Lane.slept),
    ("waking", lambda lane: lane.waking(3)),
]


def at(moment: str) -> Lane:
    """A lane at this moment of its life, at time 5 or before."""
    lane = new()
    beside = {"suspect": lambda: lane.suspect("odd"), "resting": lambda: lane.ended("gone", 2)}
    moments = [name for name, _ in LIFE]
    reached = "up" if moment in beside else moment
    for _, step in LIFE[: moments.index(reached) + 1 if reached in moments else 0]:
        step(lane)
    beside.get(moment, lambda: None)()
    return lane


def rest_after_death(lane: Lane, now_s: float, why: str = "killed") -> float:
    lane.ended(why, now_s)
    assert lane.may_start_at_s is not None
    return lane.may_start_at_s - now_s


def test_rests_double_up_to_a_minute_and_begin_anew_after_it_served() -> None:
    lane, now_s, rests = new(), 0.0, []
    for _ in range(9):
        up(lane, now_s)
        rests.append(rest_after_death(lane, now_s))
        assert not lane.may_start(now_s)
        now_s += rests[-1]

    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    up(lane, now_s)
    assert rest_after_death(lane, now_s + SERVED_S) == 1


def test_start_has_a_clock_of_its_own() -> None:
    lane = new(start_s=900)
    lane.starting(10)
    lane.started()

    assert lane.due_at_s == 910
    lane.warmed(500)
    assert lane.due_at_s is None


def test_budget_retires_and_says_why() -> None:
    lane, now_s = new(RestartConfig(budget=3, per_s=3600)), 0.0
    for _ in range(3):
        up(lane, now_s)
        now_s += rest_after_death(lane, now_s)
    up(lane, now_s)
    lane.ended("exit status 1", now_s)

    assert lane.state is LaneState.RETIRED
    assert "3 restarts in 3600 s" in lane.fault
    assert "exit status 1" in lane.fault
    assert (lane.restarts, lane.deaths) == (3, 4)


def test_budget_is_per_time() -> None:
    lane, now_s = new(RestartConfig(budget=3, per_s=100)), 0.0
    for _ in range(50):
        up(lane, now_s)
        lane.ended("killed", now_s)
        now_s += 100

    assert lane.state is LaneState.RESTING


def test_same_start_error_twice_in_a_row_retires_whatever_its_numbers() -> None:
    lane = new()
    lane.starting(0)
    lane.ended("CUDA out of memory: tried 4.72 GiB, pid 4711, port 8001", 5)
    lane.starting(10)
    lane.ended("CUDA out of memory: tried 3.21 GiB, pid 99, port 8002", 15)

    assert lane.state is LaneState.RETIRED
    assert "start error twice" in lane.fault
    assert "3.21 GiB" in lane.fault


@pytest.mark.parametrize("between", ["another error", "a start that worked", "a kill from outside"])
def test_start_errors_that_are_not_in_a_row_do_not_retire(between: str) -> None:
    lane = new()
    lane.starting(0)
    lane.ended("no such model", 5)
    lane.starting(100)
    if between == "a start that worked":
        lane.started()
        lane.warmed(100)
    lane.ended("something else", 100, was_killed=between == "a kill from outside")
    lane.starting(200)
    lane.ended("no such model", 200)

    assert lane.state is LaneState.RESTING


def test_kills_from_outside_while_starting_are_no_start_errors() -> None:
    lane, now_s = new(), 0.0
    for _ in range(10):
        lane.starting(now_s)
        now_s += rest_after_kill(lane, now_s)

    assert lane.state is LaneState.RESTING


def rest_after_kill(lane: Lane, now_s: float) -> float:
    lane.ended("signal 9", now_s, was_killed=True)
    assert lane.may_start_at_s is not None
    return lane.may_start_at_s - now_s


def test_start_that_takes_too_long_twice_retires() -> None:
    lane = new(start_s=60)
    for at_s in (0, 100):
        lane.starting(at_s)
        lane.stopping("it did not answer in 60 s")
        lane.ended("signal 15", at_s + 65, was_killed=True)

    assert lane.state is LaneState.RETIRED


def test_sleep_comes_after_the_last_request_and_in_time() -> None:
    lane = up(new())
    lane.drain()
    assert not lane.is_up
    with pytest.raises(AssertionError, match="in flight"):
        lane.slept()
    lane.drained(50)

    assert lane.due_at_s == 50 + SLEEP_S
    lane.slept()
    assert f"{lane.state.value} {lane.due_at_s}" == "asleep None"
    lane.waking(100)
    assert lane.due_at_s == 1000
    lane.warmed(101)
    assert lane.is_up


@pytest.mark.parametrize("moment", ["starting", "warming", "up", "suspect", "draining", "dry", "asleep", "waking"])
def test_lane_may_end_at_any_moment_and_starts_again(moment: str) -> None:
    lane = at(moment)
    lane.ended("gone", 10)

    assert (lane.state, lane.deaths, lane.is_running) == (LaneState.RESTING, 1, False)
    up(lane, 11)
    assert (lane.is_up, lane.restarts) == (True, 1)


@pytest.mark.parametrize(
    "moment", ["planned", "starting", "warming", "up", "suspect", "draining", "dry", "asleep", "waking", "resting"]
)
def test_lane_that_a_person_drained_stays_drained_until_it_is_asked_up(moment: str) -> None:
    lane = at(moment)
    deaths = lane.deaths
    lane.drain(by_person=True)
    assert not lane.is_up
    if lane.is_running:
        lane.stopping("drained by a person")
        lane.ended("exit status 0", 10)

    assert (lane.state, lane.may_start_at_s, lane.deaths) == (LaneState.DRAINED, None, deaths)
    lane.ask_up(20)
    assert lane.may_start(20)
    up(lane, 20)
    assert lane.restarts == deaths


def test_lane_that_is_asked_up_while_it_drains_serves_on() -> None:
    lane = up(new())
    lane.drain(by_person=True)
    lane.ask_up(1)

    assert lane.is_up
    lane.ended("gone", 2)
    assert lane.deaths == 1


def test_lane_that_is_asked_up_while_it_is_stopped_starts_again_free_of_charge() -> None:
    lane = up(new())
    lane.drain(by_person=True)
    lane.stopping("drained by a person")
    lane.ask_up(1)
    lane.ended("exit status 0", 2)

    assert (lane.state, lane.deaths) == (LaneState.PLANNED, 0)


def test_retired_lane_never_starts() -> None:
    lane = up(new())
    lane.retire("the fleet is closed")
    lane.stopping("the fleet is closed")
    lane.ended("exit status 0", 1)

    assert (lane.state, lane.may_start_at_s) == (LaneState.RETIRED, None)


@pytest.mark.parametrize("moment", ["planned", "starting", "warming", "up", "asleep", "resting"])
@pytest.mark.parametrize("event", EVENTS)
def test_event_that_cannot_come_now_is_a_bug(moment: str, event: str) -> None:
    lane = at(moment)
    if FOLLOWING.get(moment) == event:
        EVENTS[event](lane, 50)
    else:
        with pytest.raises(AssertionError):
            EVENTS[event](lane, 50)
