from __future__ import annotations

import pytest

from mac_runner.scheduler import RequestScheduler
from mac_runner.scheduler.pools import READY_HEAP_DEAD_MAX
from mac_runner.scheduler.state import Answered, Depart, Faulted, ModelReady, Opened
from mac_runner.types import Turn
from tests.sim.workload import Shape, World


def turn(seat: int, *, model: str = "m", after: frozenset[str] = frozenset()) -> Turn:
    return Turn(round=0, agent=f"a{seat}", model=model, place=seat, after=after)


@pytest.mark.parametrize("seed", range(30))
def test_ready_rows_are_the_turns_that_depart_next(seed: int) -> None:
    """Stop the world, free all slots one by one, and see who goes."""
    world = World(seed, Shape(conversations=60, capacities=(3, 4), concurrency=1, failure_rate=0.0, followup_rate=0.5))
    for _ in range(25):
        if not world.is_finished:
            world.step()
    rows = world.scheduler.snapshot(1000).ready_rows
    counted = world.scheduler.snapshot(3)

    assert counted.ready_rows == rows[:3]
    assert counted.ready == len(rows)
    if rows and world.flying:
        world.departures.clear()
        flying = world.flying.pop()
        world.send(Faulted(flying.conversation, flying.turn, 60.0))
        assert [(d.conversation, d.turn) for d in world.departures] == [(rows[0].conversation, rows[0].turn)]


def test_snapshot_shows_counts_and_the_agents_a_turn_waits_for() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 1))
    scheduler.handle(ModelReady("n", 2))
    last = turn(2, after=frozenset({"a0", "a1", "absent"}))
    scheduler.handle(Opened(0, (turn(0), turn(1), last), 0))
    scheduler.handle(Opened(1, (turn(0, model="n"),), 0))
    scheduler.handle(Faulted(1, turn(0, model="n"), 9.0))
    shot = scheduler.snapshot(5)

    assert (shot.slots, shot.in_flight, shot.ready, shot.blocked, shot.backing_off) == (3, 1, 1, 1, 1)
    assert (shot.open_conversations, shot.pending) == (2, 2)
    assert [(m.model, m.in_flight, m.slots, m.ready) for m in shot.models] == [("m", 1, 1, 1), ("n", 0, 2, 0)]
    assert [(row.conversation, row.turn.key) for row in shot.ready_rows] == [(0, "0/a1/0/0")]
    # What backs off comes first: it says why others are slow, and blocked turns would push it out of view.
    assert [row.is_backing_off for row in shot.pending_rows] == [True, False]
    assert shot.pending_rows[1].waits_for == ("a0", "a1")
    assert len(scheduler.snapshot(1).pending_rows) == 1


def test_a_model_has_no_more_slots_than_may_be_in_flight_at_all() -> None:
    scheduler = RequestScheduler(concurrency=2)
    scheduler.handle(ModelReady("m", 64))
    scheduler.handle(Opened(0, tuple(turn(seat) for seat in range(5)), 0))

    assert [(m.in_flight, m.slots) for m in scheduler.snapshot(0).models] == [(2, 2)]


def test_heap_stays_small_however_many_ready_turns_vanish() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 1))
    actions = scheduler.handle(Opened(0, tuple(turn(seat) for seat in range(5)), 0))
    for number in range(1, 400):
        (depart,) = [action for action in actions if isinstance(action, Depart)]
        turns = tuple(Turn(round=number, agent=f"a{seat}", model="m", place=seat) for seat in range(5))
        actions = scheduler.handle(Answered(0, depart.turn, turns, number))
        scheduler.validate()  # Among others: no more than READY_HEAP_DEAD_MAX dead entries beyond the living.

    assert READY_HEAP_DEAD_MAX < 400
    assert scheduler.snapshot(9).ready == 4
