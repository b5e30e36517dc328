"""What a lane may do when, and what the supervisor is to do after each event, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from mac_runner.fleet.testing import (
    MEMORY_S,
    SERVED_S,
    SLEEP_S,
    Action,
    Changed,
    Command,
    Control,
    Do,
    Grant,
    Lane,
    LaneSpec,
    LaneState,
    Note,
    Refuse,
)
from mac_runner.spec import FleetConfig, RestartConfig, SwapConfig
from tests.sim.fake_fleet import spec

Start, Warm, _, Sleep, Wake, CheckMemory = (partial(Command, do) for do in Do)


def control(*lanes: LaneSpec, resident: int = 1, budget: int = 5, policy: str = "batch") -> Control:
    swap = SwapConfig.model_validate({"policy": policy, "residency_s": 20.0})
    return Control(
        lanes, FleetConfig(max_agents_per_gpu=resident, swap=swap, restart=RestartConfig(budget=budget, per_s=3600))
    )


def acts(commands: tuple[Action, ...]) -> list[Action]:
    return [command for command in commands if not isinstance(command, Note | Changed)]


def slots(fleet: Control, model: str) -> int:
    """How many requests the lanes that are up serve at once."""
    return sum(lane.slots for lane in fleet.up(model))


def stops(fleet: Control, commands: tuple[Action, ...]) -> dict[str, str]:
    """The lanes that are stopped, and why."""
    assert all(isinstance(command, Command) and command.do is Do.STOP for command in acts(commands))
    return {command.lane: fleet.lane(command.lane).fault for command in commands if isinstance(command, Command)}


def events(commands: tuple[Action, ...]) -> list[str]:
    return [command.event.removeprefix("EVENT_LANE_") for command in commands if isinstance(command, Note)]


def bring_up(fleet: Control, lane: str, now_s: float) -> tuple[Action, ...]:
    assert acts(fleet.ready(lane, now_s)) == [Warm(lane)]
    return fleet.warmed(lane, now_s)


def running(*lanes: LaneSpec, **how: int) -> Control:
    """Its lanes are up since 10 s."""
    fleet = control(*lanes, **how)  # type: ignore[arg-type]
    fleet.begin(0)
    for lane in lanes:
        bring_up(fleet, lane.name, 10)
    return fleet


def test_places_start_together_and_lanes_of_one_place_one_after_the_other() -> None:
    fleet = control(spec("a", 0), spec("b", 0), spec("a", 1), spec("b", 1), resident=2)

    assert acts(fleet.begin(0)) == [Start("a@0"), Start("a@1")]
    commands = bring_up(fleet, "a@0", 30)
    assert acts(commands) == [Start("b@0")]
    assert Changed("a", ("a@0",), ("a@0", "a@1"), None) in commands
    assert (slots(fleet, "a"), slots(fleet, "b")) == (2, 0)
    assert [lane.name for lane in fleet.up("a")] == ["a@0"]


def test_lane_that_ends_is_down_at_once_and_starts_after_its_rest_when_its_memory_is_back() -> None:
    fleet = running(spec("a", 0), spec("a", 1))
    commands = fleet.ended("a@0", "exit status 1", 100)

    assert Changed("a", ("a@1",), ("a@0", "a@1"), None) in commands
    assert slots(fleet, "a") == 2
    assert acts(commands) == [CheckMemory("a@0")]
    assert acts(fleet.memory("a@0", False, 100.1)) == []
    assert fleet.next_at_s(100.1) == 101.1
    assert acts(fleet.tick(101.1)) == [CheckMemory("a@0")]
    assert acts(fleet.memory("a@0", True, 101.2)) == [Start("a@0")]
    assert events(bring_up(fleet, "a@0", 130)) == ["UP"]
    assert slots(fleet, "a") == 4


def test_rest_counts_even_when_the_memory_is_back_at_once() -> None:
    fleet = running(spec("a", 0))
    fleet.ended("a@0", "exit status 1", 11)

    assert acts(fleet.memory("a@0", True, 11)) == []
    assert fleet.next_at_s(11) == 12
    assert acts(fleet.tick(12)) == [Start("a@0")]


def test_stuck_lane_is_down_then_ended_then_started() -> None:
    fleet = running(spec("a", 0))
    commands = fleet.stuck("a@0", "no reply", 50)

    assert stops(fleet, commands) == {"a@0": "no reply"}
    assert slots(fleet, "a") == 0
    assert acts(fleet.stuck("a@0", "again", 51)) == []
    assert acts(fleet.ended("a@0", "signal 15", 55)) == [CheckMemory("a@0")]
    assert fleet.lane("a@0").fault == "no reply"


def test_start_that_takes_too_long_is_stopped_and_a_slow_one_is_not() -> None:
    fleet = control(spec("a", 0))
    fleet.begin(0)

    assert acts(fleet.tick(899)) == []
    assert stops(fleet, fleet.tick(900)) == {"a@0": "it did not start in 900 s (fleet.probe.start_s)"}
    assert acts(fleet.ready("a@0", 901)) == []


def test_model_is_lost_only_when_no_lane_will_come_back() -> None:
    fleet = running(spec("a", 0), spec("a", 1), budget=0)
    fleet.ended("a@0", "boom", 11)
    assert fleet.lost("a") is None
    fleet.ended("a@1", "bang", 12)

    lost = fleet.lost("a")
    assert lost is not None
    assert "boom" in lost
    assert "bang" in lost


def test_lanes_that_take_turns_are_each_started_once_and_the_others_sleep() -> None:
    fleet = swapped()

    assert fleet.lane("a@0").state is LaneState.ASLEEP
    assert fleet.lane("b@0").state is LaneState.UP
    assert slots(fleet, "a") == 0
    assert fleet.has_served("a")


def swapped(policy: str = "batch") -> Control:
    """Lane b@0 is up, a@0 sleeps; the time is 60."""
    fleet = control(spec("a", 0), spec("b", 0), policy=policy)
    assert acts(fleet.begin(0)) == [Start("a@0")]
    assert acts(bring_up(fleet, "a@0", 30)) == [Sleep("a@0")]
    assert acts(fleet.slept("a@0", 31)) == [CheckMemory("a@0")]
    assert acts(fleet.memory("a@0", True, 32)) == [Start("b@0")]
    assert acts(bring_up(fleet, "b@0", 60)) == []
    return fleet


def test_swap_drains_sleeps_checks_the_memory_wakes_and_warms() -> None:
    fleet = swapped()
    on_b, commands = fleet.ask("b", 60)
    assert acts(commands) == [Grant(on_b, "b@0")]
    on_a, commands = fleet.ask("a", 61)
    assert acts(commands) == []

    assert events(fleet.tick(80)) == ["DRAIN"]
    assert slots(fleet, "b") == 0
    assert acts(fleet.left(on_b, 85)) == [Sleep("b@0")]
    assert acts(fleet.slept("b@0", 86)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 87)) == [Wake("a@0")]
    assert acts(fleet.woken("a@0", 89)) == [Warm("a@0")]
    commands = fleet.warmed("a@0", 90)
    assert acts(commands) == [Grant(on_a, "a@0")]
    assert [c for c in commands if isinstance(c, Note)] == [Note("EVENT_LANE_SWAP", "a@0", "", 10, {"replaced": "b@0"})]


def test_lane_that_keeps_its_memory_asleep_is_ended_before_the_other_wakes() -> None:
    fleet = swapped()
    on_a, _ = fleet.ask("a", 61)
    fleet.slept("b@0", 62)
    fleet.memory("b@0", False, 62)
    fleet.tick(62 + MEMORY_S)

    stopped = stops(fleet, fleet.memory("b@0", False, 62 + MEMORY_S))
    assert stopped == {"b@0": "it kept its memory for 30 s after it fell asleep"}
    assert acts(fleet.ended("b@0", "signal 15", 95)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 96)) == [Wake("a@0")]
    fleet.woken("a@0", 97)
    assert Grant(on_a, "a@0") in fleet.warmed("a@0", 98)


def test_lane_that_does_not_fall_asleep_is_ended() -> None:
    fleet = swapped()
    fleet.ask("a", 61)

    assert stops(fleet, fleet.tick(61 + SLEEP_S)) == {"b@0": "it did not fall asleep in 120 s"}


def test_lane_that_dies_while_it_is_woken_is_started_again_and_its_requests_wait() -> None:
    fleet = swapped()
    on_a, _ = fleet.ask("a", 61)
    fleet.slept("b@0", 62)
    assert acts(fleet.memory("b@0", True, 62)) == [Wake("a@0")]
    fleet.ended("a@0", "cuda error", 63)
    fleet.memory("a@0", True, 63)

    assert acts(fleet.tick(64)) == [Start("a@0")]
    fleet.ready("a@0", 90)
    assert Grant(on_a, "a@0") in fleet.warmed("a@0", 91)


def test_requests_of_a_lost_model_are_refused_once_with_the_reason() -> None:
    fleet = control(spec("a", 0), spec("b", 0), budget=0)
    fleet.begin(0)
    ticket, _ = fleet.ask("a", 1)
    commands = fleet.ended("a@0", "no such model", 2)

    refusals = [command for command in commands if isinstance(command, Refuse)]
    assert [refusal.ticket for refusal in refusals] == [ticket]
    assert "no such model" in refusals[0].why
    assert not any(isinstance(command, Refuse) for command in fleet.tick(3))


def test_person_drains_a_lane_and_asks_it_up() -> None:
    fleet = running(spec("a", 0))
    assert events(fleet.drain("a@0", 20)) == ["DRAIN"]
    assert slots(fleet, "a") == 0

    assert stops(fleet, fleet.drained("a@0", 25)) == {"a@0": "a person drained it"}
    fleet.ended("a@0", "exit status 0", 26)
    fleet.memory("a@0", True, 27)
    assert fleet.lane("a@0").state is LaneState.DRAINED
    assert fleet.next_at_s(27) is None
    assert fleet.lost("a") is None
    assert acts(fleet.ask_up("a@0", 30)) == [Start("a@0")]


def test_close_stops_every_process_and_starts_none() -> None:
    fleet = control(spec("a", 0), spec("a", 1), spec("a", 2))
    fleet.begin(0)
    bring_up(fleet, "a@0", 10)
    fleet.ended("a@1", "boom", 11)

    assert stops(fleet, fleet.close(12)) == dict.fromkeys(("a@0", "a@2"), "the fleet is closed")
    assert acts(fleet.ended("a@0", "signal 15", 13)) == []
    assert acts(fleet.ready("a@2", 13)) == []
    assert acts(fleet.tick(100)) == []


def test_answer_about_the_memory_of_an_earlier_time_counts_for_nothing() -> None:
    fleet = swapped()
    fleet.ask("a", 61)
    assert acts(fleet.slept("b@0", 62)) == [CheckMemory("b@0")]
    fleet.ended("b@0", "killed", 62.1)

    assert acts(fleet.memory("b@0", True, 62.2)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 62.3)) == [Wake("a@0")]


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
