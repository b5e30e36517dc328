"""What the supervisor is to do after each event, in simulated time."""

from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from mac_runner.config import FleetConfig, RestartConfig, SwapConfig
from mac_runner.fleet.testing import (
    MEMORY_S,
    SLEEP_S,
    Changed,
    CheckMemory,
    Command,
    Control,
    Grant,
    LaneSpec,
    LaneState,
    Note,
    Refuse,
    Sleep,
    Start,
    Stop,
    Wake,
    Warm,
)
from tests.sim.fake_fleet import spec


def control(*lanes: LaneSpec, resident: int = 1, budget: int = 5, policy: str = "batch") -> Control:
    swap = SwapConfig.model_validate({"policy": policy, "residency_s": 20.0})
    return Control(
        lanes, FleetConfig(max_agents_per_gpu=resident, swap=swap, restart=RestartConfig(budget=budget, per_s=3600))
    )


def acts(commands: tuple[Command, ...]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Note | Changed)]


def events(commands: tuple[Command, ...]) -> list[str]:
    return [command.event.removeprefix("EVENT_LANE_") for command in commands if isinstance(command, Note)]


def bring_up(fleet: Control, lane: str, now_s: float) -> tuple[Command, ...]:
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
    assert Changed("a") in commands
    assert (fleet.capacity("a"), fleet.capacity("b")) == (2, 0)
    assert [lane.name for lane in fleet.up("a")] == ["a@0"]


def test_lane_that_ends_is_down_at_once_and_starts_after_its_rest_when_its_memory_is_back() -> None:
    fleet = running(spec("a", 0), spec("a", 1))
    commands = fleet.ended("a@0", "exit status 1", 100)

    assert Changed("a") in commands
    assert fleet.capacity("a") == 2
    assert acts(commands) == [CheckMemory("a@0")]
    assert acts(fleet.memory("a@0", False, 100.1)) == []
    assert fleet.next_at_s(100.1) == 101.1
    assert acts(fleet.tick(101.1)) == [CheckMemory("a@0")]
    assert acts(fleet.memory("a@0", True, 101.2)) == [Start("a@0")]
    assert events(bring_up(fleet, "a@0", 130)) == ["UP"]
    assert fleet.capacity("a") == 4


def test_rest_counts_even_when_the_memory_is_back_at_once() -> None:
    fleet = running(spec("a", 0))
    fleet.ended("a@0", "exit status 1", 11)

    assert acts(fleet.memory("a@0", True, 11)) == []
    assert fleet.next_at_s(11) == 12
    assert acts(fleet.tick(12)) == [Start("a@0")]


def test_stuck_lane_is_down_then_ended_then_started() -> None:
    fleet = running(spec("a", 0))
    commands = fleet.stuck("a@0", "no reply", 50)

    assert acts(commands) == [Stop("a@0", "no reply")]
    assert fleet.capacity("a") == 0
    assert acts(fleet.stuck("a@0", "again", 51)) == []
    assert acts(fleet.ended("a@0", "signal 15", 55)) == [CheckMemory("a@0")]
    assert fleet.lane("a@0").fault == "no reply"


def test_start_that_takes_too_long_is_stopped_and_a_slow_one_is_not(snapshot: SnapshotAssertion) -> None:
    fleet = control(spec("a", 0))
    fleet.begin(0)

    assert acts(fleet.tick(899)) == []
    assert acts(fleet.tick(900)) == snapshot
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
    assert (fleet.capacity("a"), fleet.lookahead("a")) == (0, 2)
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
    on_b, commands = fleet.ask("x", "b", 60)
    assert acts(commands) == [Grant(on_b, "b@0")]
    on_a, commands = fleet.ask("y", "a", 61)
    assert acts(commands) == []

    assert events(fleet.tick(80)) == ["DRAIN"]
    assert fleet.capacity("b") == 0
    assert acts(fleet.left(on_b, 85)) == [Sleep("b@0")]
    assert acts(fleet.slept("b@0", 86)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 87)) == [Wake("a@0")]
    assert acts(fleet.woken("a@0", 89)) == [Warm("a@0")]
    commands = fleet.warmed("a@0", 90)
    assert acts(commands) == [Grant(on_a, "a@0")]
    assert [c for c in commands if isinstance(c, Note)] == [Note("EVENT_LANE_SWAP", "a@0", "", 10, {"replaced": "b@0"})]


def test_lane_that_keeps_its_memory_asleep_is_ended_before_the_other_wakes(snapshot: SnapshotAssertion) -> None:
    fleet = swapped()
    on_a, _ = fleet.ask("y", "a", 61)
    fleet.slept("b@0", 62)
    fleet.memory("b@0", False, 62)
    fleet.tick(62 + MEMORY_S)

    assert acts(fleet.memory("b@0", False, 62 + MEMORY_S)) == snapshot
    assert acts(fleet.ended("b@0", "signal 15", 95)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 96)) == [Wake("a@0")]
    fleet.woken("a@0", 97)
    assert Grant(on_a, "a@0") in fleet.warmed("a@0", 98)


def test_lane_that_does_not_fall_asleep_is_ended(snapshot: SnapshotAssertion) -> None:
    fleet = swapped()
    fleet.ask("y", "a", 61)

    assert acts(fleet.tick(61 + SLEEP_S)) == snapshot


def test_lane_that_dies_while_it_is_woken_is_started_again_and_its_requests_wait() -> None:
    fleet = swapped()
    on_a, _ = fleet.ask("y", "a", 61)
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
    ticket, _ = fleet.ask("x", "a", 1)
    commands = fleet.ended("a@0", "no such model", 2)

    refusals = [command for command in commands if isinstance(command, Refuse)]
    assert [refusal.ticket for refusal in refusals] == [ticket]
    assert "no such model" in refusals[0].why
    assert not any(isinstance(command, Refuse) for command in fleet.tick(3))


def test_person_drains_a_lane_and_asks_it_up(snapshot: SnapshotAssertion) -> None:
    fleet = running(spec("a", 0))
    assert events(fleet.drain("a@0", 20)) == ["DRAIN"]
    assert fleet.capacity("a") == 0

    assert acts(fleet.drained("a@0", 25)) == snapshot
    fleet.ended("a@0", "exit status 0", 26)
    fleet.memory("a@0", True, 27)
    assert fleet.lane("a@0").state is LaneState.DRAINED
    assert fleet.next_at_s(27) is None
    assert fleet.lost("a") is None
    assert acts(fleet.ask_up("a@0", 30)) == [Start("a@0")]


def test_close_stops_every_process_and_starts_none(snapshot: SnapshotAssertion) -> None:
    fleet = control(spec("a", 0), spec("a", 1), spec("a", 2))
    fleet.begin(0)
    bring_up(fleet, "a@0", 10)
    fleet.ended("a@1", "boom", 11)

    assert acts(fleet.close(12)) == snapshot
    assert acts(fleet.ended("a@0", "signal 15", 13)) == []
    assert acts(fleet.ready("a@2", 13)) == []
    assert acts(fleet.tick(100)) == []


def test_answer_about_the_memory_of_an_earlier_time_counts_for_nothing() -> None:
    fleet = swapped()
    fleet.ask("y", "a", 61)
    assert acts(fleet.slept("b@0", 62)) == [CheckMemory("b@0")]
    fleet.ended("b@0", "killed", 62.1)

    assert acts(fleet.memory("b@0", True, 62.2)) == [CheckMemory("b@0")]
    assert acts(fleet.memory("b@0", True, 62.3)) == [Wake("a@0")]
