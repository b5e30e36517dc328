"""A fleet in hundreds of storms of simulated time; each failure names its seed. Eight planted bugs are each found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mac_runner.fleet.testing import Control, Lane, LaneSpec, LaneState, Residency, RoundRobinAllocator
from tests import tiers
from tests.faults.tier import SCALE
from tests.sim.fleet_storm import FAULTS, play

SEEDS = 250 * SCALE
BLOCK = 50
HUNTED = 150


@pytest.mark.parametrize("block", tiers.first(2, range(SEEDS // BLOCK)))
def test_storm_breaks_no_promise_and_leaves_every_turn_answered_once(block: int) -> None:
    """Agents are on lanes that are up or wait; slots are true; starts, memory, rests and budgets are kept."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        play(seed)


@pytest.mark.ci
def test_storms_are_storms() -> None:
    """Everything that can happen happens in the first of them."""
    met = {what for seed in range(60) for what in play(seed).met}

    events = {"START", "UP", "SUSPECT", "DEAD", "RESTART", "RETIRED", "SWAP", "DRAIN"}
    assert met == FAULTS | {f"EVENT_LANE_{event}" for event in events}


def test_storm_of_one_seed_is_the_same_storm_again() -> None:
    assert [(play(seed).now_s, play(seed).met) for seed in range(5)] == [
        (play(seed).now_s, play(seed).met) for seed in range(5)
    ]


def no_rest(lane: Lane, was: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    was(lane, *args, **kwargs)
    lane._may_start_at_s = 0.0


def no_stranding(_allocator: RoundRobinAllocator, _was: Callable[..., Any], _lane: str) -> None:
    pass


def all_taken_for_up(control: Control, _was: Callable[..., Any], model: str) -> tuple[LaneSpec, ...]:
    return tuple(held.spec for held in control._models[model])


def killed_when_slow(control: Control, was: Callable[..., Any], now_s: float) -> Any:
    for held in control._held.values():
        due_at_s = held.lane.due_at_s
        if held.lane.state is LaneState.STARTING and due_at_s is not None and due_at_s - now_s < 60:
            control._stop(held, "its health page does not answer")
    return was(control, now_s)


def two_starts(control: Control, _was: Callable[..., bool], place: int) -> bool:
    return any(held.owes_since_s is not None for held in control._held.values() if held.place == place)


def memory_taken_for_granted(control: Control, was: Callable[..., None], held: Any, now_s: float) -> None:
    was(control, held, now_s)
    control._release(held)


def no_budget(_lane: Lane, _was: Callable[..., bool], _now_s: float) -> bool:
    return False


def nothing_in_flight(_residency: Residency, _was: Callable[..., int], _lane: str) -> int:
    return 0


def play_many() -> None:
    for seed in range(HUNTED):
        play(seed)


BUGS: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "restarts at once in a loop": (Lane, "ended", no_rest, "started again at once"),
    "forgets to strand": (RoundRobinAllocator, "_strand", no_stranding, "is not up"),
    "capacity is not lowered": (Control, "up", all_taken_for_up, "slots"),
    "kills for a slow health page": (Control, "tick", killed_when_slow, "stopped without reason"),
    "two starts on one place": (Control, "_is_place_busy", two_starts, "on one (GPU|place)"),
    "restarts before the memory is back": (Control, "_owe", memory_taken_for_granted, "memory"),
    "ignores the budget": (Lane, "_is_budget_spent", no_budget, "its budget is"),
    "swaps without draining": (Residency, "in_flight", nothing_in_flight, "put to sleep while it serves"),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, method, bug, complaint = BUGS[name]
    was = getattr(owner, method)
    monkeypatch.setattr(owner, method, lambda self, *args, **kwargs: bug(self, was, *args, **kwargs))

    with pytest.raises(AssertionError, match=complaint):
        play_many()
