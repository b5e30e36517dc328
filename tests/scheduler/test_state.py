from __future__ import annotations

from collections.abc import Iterator

import pytest

from mac_runner.scheduler import InvalidTransition, RequestScheduler
from mac_runner.scheduler.testing import (
    OPEN_CONVERSATIONS_PER_SLOT_MAX,
    REST_S,
    TURNED_AWAY_MAX,
    Action,
    Answered,
    Depart,
    Faulted,
    Finished,
    ModelReady,
    Open,
    Opened,
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
from tests.sim.seeds import told
from tests.sim.workload import Shape, World, play


def turn(seat: int, *, round: int = 0, model: str = "m", step: int = 0, attempt: int = 0, after: str = "") -> Turn:
    names = frozenset(f"a{letter}" for letter in after)
    return Turn(round=round, agent=f"a{seat}", model=model, place=seat, step=step, attempt=attempt, after=names)


def departed(actions: list[Action]) -> list[tuple[int, str]]:
    return [(action.conversation, action.turn.key) for action in actions if isinstance(action, Depart)]


@pytest.fixture
def scheduler() -> Iterator[RequestScheduler]:
    """One model with one slot; every invariant is checked once more when the test is over."""
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 1))
    yield scheduler
    scheduler.validate()


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


def test_departures_follow_the_priority_table(scheduler: RequestScheduler) -> None:
    """A follow-up first, then the furthest conversation, then the earliest, then the lowest round, then the seat."""
    left: dict[int, tuple[tuple[Turn, ...], int]] = {
        9: ((turn(0, attempt=1),), 0),
        8: ((turn(0, step=1),), 2),
        5: ((turn(2), turn(1, round=1), turn(0)), 1),
        3: ((turn(0),), 1),
        7: ((turn(0),), 2),
        1: ((turn(0),), 0),
    }
    scheduler.handle(Opened(0, (turn(9),), 0))
    for conversation, (turns, rounds) in left.items():
        scheduler.handle(Opened(conversation, turns, rounds))
    order: list[tuple[int, str]] = []
    actions = scheduler.handle(Answered(0, turn(9), (), 1))
    while departs := [action for action in actions if isinstance(action, Depart)]:
        (depart,) = departs
        order.append((depart.conversation, depart.turn.key))
        turns, rounds = left[depart.conversation]
        left[depart.conversation] = (tuple(one for one in turns if one != depart.turn), rounds)
        actions = scheduler.handle(Answered(depart.conversation, depart.turn, *left[depart.conversation]))

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


def test_ready_turns_rise_with_their_conversation(scheduler: RequestScheduler) -> None:
    """A conversation that moved on takes its waiting turns with it to the front."""
    later = turn(1, round=5)
    scheduler.handle(Opened(7, (turn(0), later), 0))
    scheduler.handle(Opened(3, (turn(0),), 0))

    assert departed(scheduler.handle(Answered(7, turn(0), (later,), 1))) == [(7, "5/a1/0/0")]


def test_a_retry_departs_before_first_askings(scheduler: RequestScheduler) -> None:
    scheduler.handle(Opened(0, (turn(0),), 0))
    scheduler.handle(Opened(1, (turn(0),), 0))
    scheduler.handle(Opened(2, (turn(0),), 0))
    assert departed(scheduler.handle(Faulted(0, turn(0), 1.0))) == [(1, "0/a0/0/0")]
    scheduler.handle(RetryDue(0, turn(0)))

    assert departed(scheduler.handle(Answered(1, turn(0), (), 1))) == [(0, "0/a0/0/0")]


def test_a_retry_holds_no_slot_while_it_waits(scheduler: RequestScheduler) -> None:
    scheduler.handle(Opened(0, (turn(0),), 0))
    actions = scheduler.handle(Faulted(0, turn(0), 5.0))

    assert actions[0] == RetryLater(0, turn(0), 5.0)
    assert scheduler.in_flight == 0
    assert departed(scheduler.handle(Opened(1, (turn(0),), 0))) == [(1, "0/a0/0/0")]


def test_a_full_model_holds_up_no_other() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("full", 1))
    scheduler.handle(ModelReady("free", 1))
    scheduler.handle(Opened(0, (turn(0, model="full"), turn(1, model="full")), 0))

    assert departed(scheduler.handle(Opened(9, (turn(0, model="free"),), 0))) == [(9, "0/a0/0/0")]
    scheduler.validate()


def test_an_engine_is_handed_its_lookahead_beyond_its_slots_and_no_more() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 2, lookahead=1))

    assert len(departed(scheduler.handle(Opened(0, tuple(map(turn, range(5))), 0)))) == 3
    assert scheduler.effective_capacity("m") == 2
    (counts,) = scheduler.snapshot(0).models
    assert (counts.in_flight, counts.ready) == (2, 2)
    scheduler.validate()


def test_lookahead_goes_no_further_than_tokens_and_concurrency_allow() -> None:
    scheduler = RequestScheduler(concurrency=2)
    scheduler.handle(ModelReady("m", 2, lookahead=3))
    by_tokens = RequestScheduler()
    by_tokens.handle(ModelReady("m", 2, token_budget=100, lookahead=3))
    needs = dict.fromkeys(("a0", "a1", "a2", "a3"), 40)
    turns = tuple(map(turn, range(4)))

    assert len(departed(scheduler.handle(Opened(0, turns, 0)))) == 2
    assert len(departed(by_tokens.handle(Opened(0, turns, 0, needs=needs)))) == 2
    by_tokens.validate()


def budgeted(tokens: int) -> RequestScheduler:
    """One model with ten slots and a token budget."""
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 10, tokens))
    return scheduler


def test_a_token_budget_admits_what_fits_beside_the_tokens_in_flight() -> None:
    scheduler = budgeted(100)
    needs = {"a0": 60, "a1": 40, "a2": 1}

    assert len(departed(scheduler.handle(Opened(0, (turn(0), turn(1), turn(2)), 0, needs=needs)))) == 2
    assert scheduler.effective_capacity("m") == 2
    left = (turn(1), turn(2), turn(0, round=1))
    assert departed(scheduler.handle(Answered(0, turn(0), left, 0, needs))) == [(0, "0/a2/0/0")]
    scheduler.validate()


def test_no_turn_overtakes_one_that_waits_for_tokens() -> None:
    scheduler = budgeted(100)
    scheduler.handle(Opened(0, (turn(0),), 0, needs={"a0": 60}))

    assert departed(scheduler.handle(Opened(1, (turn(0),), 0, needs={"a0": 50}))) == []
    assert departed(scheduler.handle(Opened(2, (turn(0),), 0, needs={"a0": 5}))) == []
    assert departed(scheduler.handle(Answered(0, turn(0), (), 1))) == [(1, "0/a0/0/0"), (2, "0/a0/0/0")]
    scheduler.validate()


def test_a_turn_that_needs_more_than_the_budget_departs_alone() -> None:
    scheduler = budgeted(100)

    assert departed(scheduler.handle(Opened(0, (turn(0), turn(1)), 0, needs={"a0": 500, "a1": 1}))) == [(0, "0/a0/0/0")]
    assert departed(scheduler.handle(Answered(0, turn(0), (turn(1),), 0, {"a1": 1}))) == [(0, "0/a1/0/0")]
    scheduler.validate()


def test_no_conversation_is_opened_to_wait_for_tokens() -> None:
    scheduler = budgeted(100)
    actions = scheduler.handle(Opened(0, (turn(0), turn(1)), 0, needs={"a0": 90, "a1": 20}))

    assert Open() not in actions
    assert Open() in scheduler.handle(Answered(0, turn(0), (turn(1),), 0, {"a1": 20}))
    scheduler.validate()


def test_the_least_of_all_models_departs_when_slots_are_scarce() -> None:
    scheduler = RequestScheduler(concurrency=1)
    for model in ("x", "y"):
        scheduler.handle(ModelReady(model, 8))
    scheduler.handle(Opened(0, (turn(0, model="x"),), 0))
    scheduler.handle(Opened(2, (turn(0, model="x"),), 0))
    scheduler.handle(Opened(1, (turn(0, model="y"),), 0))

    assert departed(scheduler.handle(Answered(0, turn(0, model="x"), (), 1))) == [(1, "0/a0/0/0")]
    scheduler.validate()


def test_a_turn_waits_for_the_agents_of_its_own_round_and_no_other() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 8))
    moderator, early = turn(2, after="01"), turn(3, round=1, after="0")
    actions = scheduler.handle(Opened(0, (turn(0), turn(1), moderator, early), 0))
    assert departed(actions) == [(0, "0/a0/0/0"), (0, "0/a1/0/0"), (0, "1/a3/0/0")]
    # A continuation keeps its agent speaking: the moderator goes on waiting.
    more = turn(0, step=1)
    actions = scheduler.handle(Answered(0, turn(0), (more, turn(1), moderator, early), 0))
    assert departed(actions) == [(0, "0/a0/1/0")]
    assert departed(scheduler.handle(Answered(0, more, (turn(1), moderator, early), 0))) == []

    actions = scheduler.handle(Answered(0, turn(1), (moderator, early), 0))

    assert departed(actions) == [(0, "0/a2/0/0")]
    scheduler.validate()


def test_turns_that_vanish_before_they_were_sent_are_forgotten(scheduler: RequestScheduler) -> None:
    scheduler.handle(Opened(0, (turn(0), turn(1), turn(2, after="1")), 0))
    actions = scheduler.handle(Answered(0, turn(0), (turn(3),), 0))

    assert departed(actions) == [(0, "0/a3/0/0")]
    assert scheduler.snapshot(9).pending == scheduler.snapshot(9).ready == 0


def test_a_turn_that_vanishes_in_flight_is_an_error_with_its_story() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 2))
    scheduler.handle(Opened(4, (turn(0), turn(1)), 0))

    with pytest.raises(InvalidTransition, match="0/a1/0/0 vanished") as told:
        scheduler.handle(Answered(4, turn(0), (), 1))

    assert [type(entry) for entry in told.value.story] == [Opened, Depart, Depart, Answered]


def test_a_reply_without_a_turn_in_flight_is_an_error(scheduler: RequestScheduler) -> None:
    with pytest.raises(InvalidTransition, match="not in flight"):
        scheduler.handle(Answered(0, turn(0), (), 0))


def test_a_failed_conversation_takes_only_its_own_later_turns() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 3))
    turns = (turn(0), turn(1), turn(2), turn(3), turn(4, after="1"))
    scheduler.handle(Opened(0, turns, 0))
    scheduler.handle(Opened(1, (turn(0),), 0))
    # Seat 1 fails: 3 and 4 are dropped at once, 0 before it and 2 in flight are waited for; conversation 1 departs.
    actions = scheduler.handle(Faulted(0, turn(1), None))
    assert departed(actions) == [(1, "0/a0/0/0")]
    assert scheduler.snapshot(9).ready == scheduler.snapshot(9).pending == 0
    more = turn(0, step=1)
    actions = scheduler.handle(Answered(0, turn(0), (more, *turns[1:]), 0))
    assert departed(actions) == [(0, "0/a0/1/0")]
    assert Settle(0) not in scheduler.handle(Answered(0, more, turns[1:], 0))
    scheduler.validate()

    assert Settle(0) in scheduler.handle(Faulted(0, turn(2), None))
    scheduler.validate()


def test_a_retry_of_an_unwanted_turn_is_dropped() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 2))
    scheduler.handle(Opened(0, (turn(0), turn(1)), 0))
    scheduler.handle(Faulted(0, turn(0), None))
    actions = scheduler.handle(Faulted(0, turn(1), 1.0))

    assert Settle(0) in actions
    assert not any(isinstance(action, RetryLater) for action in actions)
    assert departed(scheduler.handle(RetryDue(0, turn(1)))) == []


def test_a_conversation_that_can_go_nowhere_is_settled(scheduler: RequestScheduler) -> None:
    assert Settle(0) in scheduler.handle(Opened(0, (turn(0, after="1"), turn(1, after="0")), 0))
    assert Settle(1) in scheduler.handle(Opened(1, (), 3))


def test_conversations_are_opened_one_by_one_while_a_slot_is_idle() -> None:
    scheduler = RequestScheduler()
    assert scheduler.handle(ModelReady("m", 2)) == [Open()]
    assert scheduler.handle(Opened(0, (turn(0),), 0))[-1] == Open()
    # Both slots are taken now, so nothing more is opened until one is idle again.
    assert Open() not in scheduler.handle(Opened(1, (turn(0), turn(1)), 0))
    assert Open() not in scheduler.handle(Answered(0, turn(0), (), 1))

    assert Open() in scheduler.handle(Answered(1, turn(0), (turn(1),), 0))


def test_opening_is_bounded_when_one_model_idles_beside_a_full_one() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("full", 1))
    actions = scheduler.handle(ModelReady("idle", 1))
    opened = 0
    while scheduler.is_open_wanted:
        actions = scheduler.handle(Opened(opened, (turn(0, model="full"),), 0))
        opened += 1
        scheduler.validate()

    assert opened == OPEN_CONVERSATIONS_PER_SLOT_MAX * 2
    assert Open() not in actions


def test_finished_comes_once_when_all_is_settled(scheduler: RequestScheduler) -> None:
    scheduler.handle(Opened(0, (turn(0),), 0))
    assert Finished() not in scheduler.handle(TasksExhausted())

    assert scheduler.handle(Answered(0, turn(0), (), 1)) == [Settle(0), Finished()]
    assert Finished() not in scheduler.handle(Stop())


def test_waiting_time_counts_from_being_ready_to_departing(scheduler: RequestScheduler) -> None:
    scheduler.handle(Opened(0, (turn(0),), 0), now_s=10.0)
    scheduler.handle(Opened(1, (turn(0),), 0), now_s=12.0)
    (depart,) = [a for a in scheduler.handle(Answered(0, turn(0), (), 1), now_s=15.0) if isinstance(a, Depart)]

    assert depart.waited_s == 3.0


@pytest.mark.parametrize("concurrency", [0, -1])
def test_scheduler_refuses_a_concurrency_below_one(concurrency: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RequestScheduler(concurrency)


def two_taken() -> RequestScheduler:
    """One model with four slots that has turned away all but seats 0 and 1 of 20 turns that it was sent."""
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 4))
    actions = scheduler.handle(Opened(0, tuple(map(turn, range(20))), 0))
    for seat in range(2, 20):
        if not departed(actions):
            break
        actions = scheduler.handle(Faulted(0, turn(seat), 1.0, is_turned_away=True))
    return scheduler


def answered(scheduler: RequestScheduler, seat: int, left: range) -> list[Action]:
    return scheduler.handle(Answered(0, turn(seat), tuple(turn(other) for other in left if other != seat), 0))


def test_an_engine_that_turns_requests_away_is_handed_what_it_took() -> None:
    scheduler = two_taken()
    taken = scheduler.in_flight

    assert taken == scheduler.effective_capacity("m") < 4
    assert len(departed(answered(scheduler, 0, range(20)))) == 1
    scheduler.validate()


def test_what_was_turned_away_departs_before_first_askings() -> None:
    scheduler = two_taken()
    assert departed(scheduler.handle(RetryDue(0, turn(3)))) == []

    assert departed(answered(scheduler, 0, range(20))) == [(0, "0/a3/0/0")]
    scheduler.validate()


def test_an_engine_that_turns_away_what_it_is_asked_alone_is_left_alone_for_a_while() -> None:
    scheduler = RequestScheduler()
    scheduler.handle(ModelReady("m", 4))
    scheduler.handle(Opened(0, (turn(0), turn(1), turn(2)), 0))
    scheduler.handle(TasksExhausted())
    for seat in (0, 1):
        scheduler.handle(Faulted(0, turn(seat), 9.0, is_turned_away=True))
    actions = scheduler.handle(Faulted(0, turn(2), 9.0, is_turned_away=True))

    assert actions == [Rest("m", REST_S), RetryLater(0, turn(2), 9.0)]
    assert scheduler.handle(RetryDue(0, turn(0))) == []
    assert departed(scheduler.handle(RestOver("m"))) == [(0, "0/a0/0/0")]
    scheduler.validate()


def test_a_turn_that_is_rejected_over_and_over_delays_no_other(scheduler: RequestScheduler) -> None:
    """It may be at fault itself: its word is not taken for the engine's, and others are tried first."""
    scheduler.handle(Opened(0, (turn(0),), 0))
    for _ in range(TURNED_AWAY_MAX):
        scheduler.handle(Faulted(0, turn(0), 1.0, is_turned_away=True))
        scheduler.handle(RestOver("m"))
        scheduler.handle(RetryDue(0, turn(0)))
    actions = scheduler.handle(Faulted(0, turn(0), 1.0, is_turned_away=True))

    assert [type(action) for action in actions] == [RetryLater]
    scheduler.handle(RetryDue(0, turn(0)))
    scheduler.handle(Faulted(0, turn(0), 1.0, is_turned_away=True))
    scheduler.handle(Opened(1, (turn(0),), 0))
    scheduler.handle(Opened(2, (turn(0),), 0))
    scheduler.handle(RetryDue(0, turn(0)))
    assert departed(scheduler.handle(Answered(1, turn(0), (), 1))) == [(2, "0/a0/0/0")]
