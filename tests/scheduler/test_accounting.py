from __future__ import annotations

import pytest

from mac_runner.scheduler import Accounting, RequestScheduler
from mac_runner.scheduler.testing import READY_HEAP_DEAD_MAX, Answered, Depart, Faulted, ModelReady, Opened
from mac_runner.types import TokenCount, Turn
from tests.sim.workload import Shape, World


def test_busy_slot_time_is_the_integral_of_requests_in_flight() -> None:
    cpu_s = iter([3.0, 3.5])
    accounting = Accounting(started_at_s=100.0, concurrency=None, cpu_s=lambda: next(cpu_s))
    accounting.open("m", 4)
    accounting.departed("m", 100.0)
    accounting.departed("m", 102.0)
    accounting.landed("m", 105.0, TokenCount(prompt=10, cached=2, completion=3))
    accounting.landed("m", 106.0, None)

    # One in flight for 2 s, two for 3 s, one for 1 s, of four slots for 10 s.
    assert accounting.utilisation("m", 110.0) == 9 / 40
    assert accounting.as_json(110.0) == {
        "played_s": 10.0,
        "cpu_s": 0.5,
        "disk_turn_s": 0.0,
        "models": {
            "m": {
                "capacity": 4,
                "played_s": 10.0,
                "busy_slot_s": 9.0,
                "available_slot_s": 40.0,
                "waiting_turn_s": 0.0,
                "requests": 1,
                "faults": 1,
                "tokens": {"prompt": 10, "cached": 2, "completion": 3},
            }
        },
    }
    assert accounting.tokens == TokenCount(prompt=10, cached=2, completion=3)


def test_requests_still_in_flight_count_up_to_now() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=2)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)

    assert accounting.utilisation("m", 4.0) == 0.5
    assert accounting.utilisation("m", 8.0) == 0.5


def test_slots_that_come_and_go_count_while_they_are_there() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=8)
    accounting.open("m", 64)
    accounting.departed("m", 0.0)
    accounting.set_pool("m", capacity=2, waiting=5, now_s=1.0)
    accounting.set_pool("m", capacity=64, waiting=0, now_s=3.0)

    # Eight slots for 1 s, two for 2 s, eight for 1 s.
    assert accounting.utilisation("m", 4.0) == 4 / 20
    assert accounting.usage(4.0).models["m"].waiting_turn_s == 10.0


def test_models_that_answer_without_a_count_are_silent() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    for model, tokens in (("counts", TokenCount(prompt=7)), ("silent", TokenCount()), ("failing", None)):
        accounting.open(model, 1)
        accounting.departed(model, 0.0)
        accounting.landed(model, 1.0, tokens)

    assert accounting.silent_models == ("silent",)


def test_utilisation_is_unknown_at_the_very_start() -> None:
    accounting = Accounting(started_at_s=0.0, concurrency=None)
    accounting.open("m", 1)

    assert accounting.utilisation("m", 0.0) is None


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
