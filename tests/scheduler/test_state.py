"""What the scheduler does after each event: who departs, what is opened, what is settled."""

from __future__ import annotations

import pytest

from mac_runner.scheduler import InvalidTransition
from mac_runner.scheduler.testing import (
    OPEN_CONVERSATIONS_PER_SLOT_MAX,
    READY_HEAP_DEAD_MAX,
    REST_S,
    TURNED_AWAY_MAX,
    Answered,
    Depart,
    Faulted,
    Finished,
    ModelReady,
    Open,
    Opened,
    Resized,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
from mac_runner.types import Turn
from tests import tiers
from tests.scheduler.conftest import Desk, turn
from tests.sim.seeds import told
from tests.sim.workload import Shape, World, play

SEATS = tuple(map(turn, range(20)))
FIRST = "0/a0/0/0"


@pytest.mark.parametrize("block", tiers.first(2, range(8)))
def test_scheduler_keeps_its_invariants_and_finishes_in_any_world(block: int) -> None:
    """And stopped at any moment it lets nothing depart, and finishes when the air is clear."""
    for seed in range(block * 50, block * 50 + 50):
        with told("world", seed):
            play(seed)


def test_same_world_gives_the_same_trace() -> None:
    worlds = [World(7, Shape(conversations=20)) for _ in range(2)]
    for world in worlds:
        world.run()

    assert worlds[0].trace == worlds[1].trace


def test_departures_follow_the_priority_table() -> None:
    """A follow-up first, then the furthest conversation, then the earliest, then the lowest round, then the seat."""
    desk = Desk(m=1, idle=1)
    left: dict[int, tuple[tuple[Turn, ...], int]] = {
        9: ((turn(0, attempt=1),), 0),
        8: ((turn(0, step=1),), 2),
        5: ((turn(2), turn(1, round=1), turn(0)), 1),
        3: ((turn(0),), 1),
        7: ((turn(0),), 2),
        1: ((turn(0),), 0),
    }
    desk.open(0, turn(9))
    for conversation, (turns, rounds) in left.items():
        desk.open(conversation, *turns, rounds=rounds)
    order = desk.answer(0, turn(9), rounds=1)
    while departs := [action for action in desk.last if isinstance(action, Depart)]:
        (depart,) = departs
        turns, rounds = left[depart.conversation]
        left[depart.conversation] = (tuple(one for one in turns if one != depart.turn), rounds)
        order += desk.send(Answered(depart.conversation, depart.turn, *left[depart.conversation]))

    assert order == [
        (8, "0/a0/1/0"),
        (9, "0/a0/0/1"),
        (7, "0/a0/0/0"),
        (3, "0/a0/0/0"),
        (5, "0/a0/0/0"),
        (5, "0/a2/0/0"),
        (5, "1/a1/0/0"),
        (1, "0/a0/0/0"),
    ]


def test_ready_turns_rise_with_their_conversation() -> None:
    """A conversation that moved on takes its waiting turns with it to the front."""
    desk, later = Desk(m=1), turn(1, round=5)
    desk.open(7, turn(0), later)
    desk.open(3, turn(0))

    assert desk.answer(7, turn(0), later, rounds=1) == [(7, "5/a1/0/0")]


def test_a_retry_departs_before_first_askings_and_holds_no_slot_while_it_waits() -> None:
    desk = Desk(m=1)
    for conversation in (5, 1, 2):
        desk.open(conversation, turn(0))
    assert desk.fault(5, turn(0), 5.0) == [(1, FIRST)]
    assert desk.last[0] == RetryLater(5, turn(0), 5.0)
    assert desk.in_flight == 1
    desk.handle(RetryDue(5, turn(0)))

    assert desk.answer(1, turn(0), rounds=1) == [(5, FIRST)]


def test_a_full_model_holds_up_no_other() -> None:
    desk = Desk(full=1, free=1)
    desk.open(0, turn(0, model="full"), turn(1, model="full"))

    assert desk.open(9, turn(0, model="free")) == [(9, FIRST)]


def test_a_model_has_no_more_slots_than_may_be_in_flight_at_all() -> None:
    desk = Desk(2, m=64)
    desk.open(0, *SEATS[:5])

    assert [(m.in_flight, m.slots) for m in desk.snapshot(0).models] == [(2, 2)]


def test_an_engine_is_handed_its_lookahead_beyond_its_slots_and_no_more() -> None:
    desk = Desk()
    desk.handle(ModelReady("m", 2, lookahead=1))

    assert len(desk.open(0, *SEATS[:5])) == 3
    assert desk.effective_capacity("m") == 2
    (counts,) = desk.snapshot(0).models
    assert (counts.in_flight, counts.ready) == (2, 2)


def test_lookahead_goes_no_further_than_tokens_and_concurrency_allow() -> None:
    for concurrency, budget in ((2, None), (None, 100)):
        desk = Desk(concurrency)
        desk.handle(ModelReady("m", 2, budget, lookahead=3))

        assert len(desk.open(0, *SEATS[:4], needs=dict.fromkeys(("a0", "a1", "a2", "a3"), 40))) == 2, budget


def budgeted() -> Desk:
    """One model with ten slots and 100 tokens."""
    desk = Desk()
    desk.handle(ModelReady("m", 10, 100))
    return desk


def test_a_token_budget_admits_what_fits_beside_the_tokens_in_flight() -> None:
    desk, needs = budgeted(), {"a0": 60, "a1": 40, "a2": 1}

    assert len(desk.open(0, *SEATS[:3], needs=needs)) == 2
    assert desk.effective_capacity("m") == 2
    assert desk.answer(0, turn(0), turn(1), turn(2), turn(0, round=1), needs=needs) == [(0, "0/a2/0/0")]


def test_no_turn_overtakes_one_that_waits_for_tokens() -> None:
    desk = budgeted()
    desk.open(0, turn(0), needs={"a0": 60})

    assert desk.open(1, turn(0), needs={"a0": 50}) == []
    assert desk.open(2, turn(0), needs={"a0": 5}) == []
    assert desk.answer(0, turn(0), rounds=1) == [(1, FIRST), (2, FIRST)]


def test_a_turn_that_needs_more_than_the_budget_departs_alone() -> None:
    desk = budgeted()

    assert desk.open(0, *SEATS[:2], needs={"a0": 500, "a1": 1}) == [(0, FIRST)]
    assert desk.answer(0, turn(0), turn(1), needs={"a1": 1}) == [(0, "0/a1/0/0")]


def test_no_conversation_is_opened_to_wait_for_tokens() -> None:
    desk = budgeted()
    desk.open(0, *SEATS[:2], needs={"a0": 90, "a1": 20})

    assert Open() not in desk.last
    desk.answer(0, turn(0), turn(1), needs={"a1": 20})
    assert Open() in desk.last


def test_the_least_of_all_models_departs_when_slots_are_scarce() -> None:
    desk = Desk(1, x=8, y=8)
    for conversation, model in ((0, "x"), (2, "x"), (1, "y")):
        desk.open(conversation, turn(0, model=model))

    assert desk.answer(0, turn(0, model="x"), rounds=1) == [(1, FIRST)]


def test_a_turn_waits_for_the_agents_of_its_own_round_and_no_other() -> None:
    desk = Desk(m=8)
    moderator, early = turn(2, after="01"), turn(3, round=1, after="0")
    assert desk.open(0, turn(0), turn(1), moderator, early) == [(0, FIRST), (0, "0/a1/0/0"), (0, "1/a3/0/0")]
    # A continuation keeps its agent speaking: the moderator goes on waiting.
    more = turn(0, step=1)
    assert desk.answer(0, turn(0), more, turn(1), moderator, early) == [(0, "0/a0/1/0")]
    assert desk.answer(0, more, turn(1), moderator, early) == []

    assert desk.answer(0, turn(1), moderator, early) == [(0, "0/a2/0/0")]


def test_turns_that_vanish_before_they_were_sent_are_forgotten() -> None:
    desk = Desk(m=1)
    desk.open(0, turn(0), turn(1), turn(2, after="1"))

    assert desk.answer(0, turn(0), turn(3)) == [(0, "0/a3/0/0")]
    assert desk.snapshot(9).pending == desk.snapshot(9).ready == 0


def test_a_turn_that_vanishes_in_flight_is_an_error_with_its_story() -> None:
    desk = Desk(m=2)
    desk.open(4, *SEATS[:2])

    with pytest.raises(InvalidTransition, match="0/a1/0/0 vanished") as told:
        desk.answer(4, turn(0), rounds=1)

    assert [type(entry) for entry in told.value.story] == [Opened, Depart, Depart, Answered]


def test_a_reply_without_a_turn_in_flight_is_an_error() -> None:
    with pytest.raises(InvalidTransition, match="not in flight"):
        Desk(m=1).answer(0, turn(0))


def test_a_failed_conversation_takes_only_its_own_later_turns() -> None:
    desk = Desk(m=3)
    turns = (*SEATS[:4], turn(4, after="1"))
    desk.open(0, *turns)
    desk.open(1, turn(0))
    # Seat 1 fails: 3 and 4 are dropped at once, 0 before it and 2 in flight are waited for; conversation 1 departs.
    assert desk.fault(0, turn(1), None) == [(1, FIRST)]
    assert desk.snapshot(9).ready == desk.snapshot(9).pending == 0
    more = turn(0, step=1)
    assert desk.answer(0, turn(0), more, *turns[1:]) == [(0, "0/a0/1/0")]
    desk.answer(0, more, *turns[1:])
    assert Settle(0) not in desk.last

    desk.fault(0, turn(2), None)
    assert Settle(0) in desk.last


def test_a_retry_of_an_unwanted_turn_is_dropped() -> None:
    desk = Desk(m=2)
    desk.open(0, *SEATS[:2])
    desk.fault(0, turn(0), None)
    desk.fault(0, turn(1), 1.0)

    assert Settle(0) in desk.last
    assert not any(isinstance(action, RetryLater) for action in desk.last)
    assert desk.send(RetryDue(0, turn(1))) == []


def test_a_conversation_that_can_go_nowhere_is_settled() -> None:
    desk = Desk(m=1)
    assert Settle(0) in desk.handle(Opened(0, (turn(0, after="1"), turn(1, after="0")), 0))
    assert Settle(1) in desk.handle(Opened(1, (), 3))


def test_conversations_are_opened_one_by_one_while_a_slot_is_idle() -> None:
    desk = Desk()
    assert desk.handle(ModelReady("m", 2)) == [Open()]
    assert desk.handle(Opened(0, (turn(0),), 0))[-1] == Open()
    # Both slots are taken now, so nothing more is opened until one is idle again.
    assert Open() not in desk.handle(Opened(1, SEATS[:2], 0))
    assert Open() not in desk.handle(Answered(0, turn(0), (), 1))

    assert Open() in desk.handle(Answered(1, turn(0), (turn(1),), 0))


def test_opening_is_bounded_when_one_model_idles_beside_a_full_one() -> None:
    desk, opened = Desk(full=1, idle=1), 0
    while desk.is_open_wanted:
        desk.open(opened, turn(0, model="full"))
        opened += 1

    assert opened == OPEN_CONVERSATIONS_PER_SLOT_MAX * 2
    assert Open() not in desk.last


def test_finished_comes_once_when_all_is_settled() -> None:
    desk = Desk(m=1)
    desk.open(0, turn(0))
    assert Finished() not in desk.handle(TasksExhausted())

    assert desk.handle(Answered(0, turn(0), (), 1)) == [Settle(0), Finished()]
    assert Finished() not in desk.handle(Stop())


def test_waiting_time_counts_from_being_ready_to_departing() -> None:
    desk = Desk(m=1)
    desk.handle(Opened(0, (turn(0),), 0), now_s=10.0)
    desk.handle(Opened(1, (turn(0),), 0), now_s=12.0)
    (depart,) = [a for a in desk.handle(Answered(0, turn(0), (), 1), now_s=15.0) if isinstance(a, Depart)]

    assert depart.waited_s == 3.0


@pytest.mark.parametrize("concurrency", [0, -1])
def test_scheduler_refuses_a_concurrency_below_one(concurrency: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Desk(concurrency)


def two_taken() -> Desk:
    """One model with four slots that has turned away all but seats 0 and 1 of 20 turns that it was sent."""
    desk = Desk(m=4)
    departed = desk.open(0, *SEATS)
    for seat in range(2, 20):
        if departed:
            departed = desk.fault(0, turn(seat), 1.0, is_turned_away=True)
    return desk


def test_an_engine_that_turns_requests_away_is_handed_what_it_took() -> None:
    desk = two_taken()

    assert desk.in_flight == desk.effective_capacity("m") < 4
    assert len(desk.answer(0, *SEATS)) == 1


def test_what_was_turned_away_departs_before_first_askings() -> None:
    desk = two_taken()
    assert desk.send(RetryDue(0, turn(3))) == []

    assert desk.answer(0, *SEATS) == [(0, "0/a3/0/0")]


def test_an_engine_that_turns_away_what_it_is_asked_alone_is_left_alone_for_a_while() -> None:
    desk = Desk(m=4)
    desk.open(0, *SEATS[:3])
    desk.handle(TasksExhausted())
    for seat in range(3):
        desk.fault(0, turn(seat), 9.0, is_turned_away=True)

    assert desk.last == [Rest("m", REST_S), RetryLater(0, turn(2), 9.0)]
    assert desk.handle(RetryDue(0, turn(0))) == []
    assert desk.send(RestOver("m")) == [(0, FIRST)]


def test_a_turn_that_is_rejected_over_and_over_delays_no_other() -> None:
    """It may be at fault itself: its word is not taken for the engine's, and others are tried first."""
    desk = Desk(m=1)
    desk.open(0, turn(0))
    for _ in range(TURNED_AWAY_MAX):
        desk.fault(0, turn(0), 1.0, is_turned_away=True)
        desk.handle(RestOver("m"))
        desk.handle(RetryDue(0, turn(0)))
    desk.fault(0, turn(0), 1.0, is_turned_away=True)

    assert [type(action) for action in desk.last] == [RetryLater]
    desk.handle(RetryDue(0, turn(0)))
    desk.fault(0, turn(0), 1.0, is_turned_away=True)
    desk.open(1, turn(0))
    desk.open(2, turn(0))
    desk.handle(RetryDue(0, turn(0)))
    assert desk.answer(1, turn(0), rounds=1) == [(2, FIRST)]


def test_a_suspect_waits_for_all_others_and_departs_alone() -> None:
    desk = Desk(m=2)
    assert desk.open(0, turn(0), suspects=frozenset({turn(0).key})) == [(0, FIRST)]
    # Its model is its own: the free slot is none, so nothing is opened either.
    assert Open() not in desk.last
    assert desk.effective_capacity("m") == 1

    desk.answer(0, turn(0), rounds=1)
    assert desk.last[-1] == Open()
    desk.open(1, *SEATS[:2])
    desk.fault(1, turn(0), 1.0, is_suspect=True)
    # The suspect lets others be opened and go before it, and waits for what is in flight.
    assert desk.send(RetryDue(1, turn(0))) == []
    assert desk.open(2, turn(0)) == [(2, FIRST)]
    desk.handle(TasksExhausted())
    assert desk.answer(2, turn(0), rounds=1) == []
    assert desk.answer(1, turn(1), turn(0), turn(1, round=1)) == [(1, "1/a1/0/0")]

    assert desk.answer(1, turn(1, round=1), turn(0)) == [(1, FIRST)]


def test_engine_that_shrinks_keeps_what_is_in_flight_and_gets_no_more_until_that_is_less() -> None:
    desk = Desk(m=3)
    assert len(desk.open(0, *SEATS[:5])) == 3

    assert desk.send(Resized("m", 2)) == []
    assert desk.answer(0, *SEATS[:5]) == []
    assert len(desk.answer(0, *SEATS[1:5])) == 1
    assert len(desk.send(Resized("m", 3))) == 1


def test_engine_that_shrinks_takes_no_slot_of_another() -> None:
    for concurrency, expected in ((None, 2), (5, 1), (4, 0)):
        desk = Desk(concurrency, m=4, n=2)
        assert len(desk.open(0, *SEATS[:4])) == 4
        desk.handle(Resized("m", 1))

        assert len(desk.open(1, *(turn(seat, model="n") for seat in range(3)))) == expected, concurrency


def test_engine_without_capacity_is_waited_for_and_stops_in_good_order() -> None:
    desk = Desk()
    assert desk.handle(ModelReady("m", 0)) == []
    assert desk.slots == 0
    assert desk.handle(Resized("m", 1)) == [Open()]
    assert len(desk.open(0, *SEATS[:2])) == 1
    assert desk.handle(Resized("m", 0)) == []
    assert desk.effective_capacity("m") == 0
    assert desk.handle(Answered(0, turn(0), (turn(1),), 0)) == []
    assert desk.waiting("m") == 1

    assert desk.handle(Stop()) == [Finished()]


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
    desk = Desk(m=1, n=2)
    desk.open(0, turn(0), turn(1), turn(2, after="01x"))
    desk.open(1, turn(0, model="n"))
    desk.fault(1, turn(0, model="n"), 9.0)
    shot = desk.snapshot(5)

    assert (shot.slots, shot.in_flight, shot.ready, shot.blocked, shot.backing_off) == (3, 1, 1, 1, 1)
    assert (shot.open_conversations, shot.pending) == (2, 2)
    assert [(m.model, m.in_flight, m.slots, m.ready) for m in shot.models] == [("m", 1, 1, 1), ("n", 0, 2, 0)]
    assert [(row.conversation, row.turn.key) for row in shot.ready_rows] == [(0, "0/a1/0/0")]
    # What backs off comes first: it says why others are slow, and blocked turns would push it out of view.
    assert [row.is_backing_off for row in shot.pending_rows] == [True, False]
    assert shot.pending_rows[1].waits_for == ("a0", "a1")
    assert len(desk.snapshot(1).pending_rows) == 1


def test_heap_stays_small_however_many_ready_turns_vanish() -> None:
    desk = Desk(m=1)
    desk.open(0, *SEATS[:5])
    for number in range(1, 400):  # After each: no more than READY_HEAP_DEAD_MAX dead entries beyond the living.
        (depart,) = [action for action in desk.last if isinstance(action, Depart)]
        desk.answer(0, depart.turn, *(turn(seat, round=number) for seat in range(5)), rounds=number)

    assert READY_HEAP_DEAD_MAX < 400
    assert desk.snapshot(9).ready == 4
