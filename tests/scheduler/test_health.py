from __future__ import annotations

from mac_runner.limits import (
    ENGINE_BUSY_S_MAX,
    ENGINE_SILENCE_S_MAX,
    ENGINE_SUSPECT_CONVERSATIONS_MIN,
    RETRIES_MIN,
    RETRIES_PER_SLOT,
)
from mac_runner.scheduler.health import EngineHealth


def test_retries_are_a_fifth_of_the_answers_and_a_few_to_begin_with() -> None:
    health = EngineHealth.of(capacity=1)
    granted = [health.spend_retry() for _ in range(15)]
    for _ in range(10):
        health.answered()
    granted_later = [health.spend_retry() for _ in range(5)]

    assert granted.count(True) == RETRIES_MIN
    assert granted_later == [True, True, False, False, False]


def test_answers_fill_the_budget_no_further_than_it_goes() -> None:
    health = EngineHealth.of(capacity=100)
    for _ in range(1000):
        health.answered()

    assert [health.spend_retry() for _ in range(300)].count(True) == RETRIES_PER_SLOT * 100


def test_one_conversation_without_luck_says_nothing_about_an_engine_that_can_be_reached() -> None:
    health = EngineHealth.of(capacity=4)
    for moment in range(1000):
        health.faulted(7, float(moment), is_unreachable=False)

    assert not health.is_suspect
    assert not health.is_lost(1000.0)


def test_engine_is_lost_when_it_was_silent_to_several_for_long() -> None:
    health = EngineHealth.of(capacity=4)
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        assert not health.is_suspect
        health.faulted(conversation, 10.0, is_unreachable=False)

    assert health.is_suspect
    assert not health.is_lost(10.0 + ENGINE_SILENCE_S_MAX - 1)
    assert health.is_lost(10.0 + ENGINE_SILENCE_S_MAX)


def test_an_answer_clears_the_engine_of_suspicion() -> None:
    health = EngineHealth.of(capacity=4)
    health.faulted(0, 0.0, is_unreachable=True)
    assert health.is_lost(ENGINE_SILENCE_S_MAX)
    health.answered()

    assert not health.is_suspect
    health.faulted(0, 100.0, is_unreachable=True)
    assert not health.is_lost(100.0 + ENGINE_SILENCE_S_MAX - 1)


def test_engine_that_says_it_is_busy_is_there_but_may_not_say_so_for_ever() -> None:
    health = EngineHealth.of(capacity=4)
    lost: list[bool] = []
    for now_s in range(0, int(ENGINE_BUSY_S_MAX) + 101, 50):
        for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
            health.faulted(conversation, float(now_s), is_busy=True)
        lost.append(health.is_lost(float(now_s)))

    assert lost == [False] * (len(lost) - 1) + [True]


def test_engine_that_was_busy_and_then_fell_silent_is_lost_as_soon_as_any_other() -> None:
    health = EngineHealth.of(capacity=4)
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        health.faulted(conversation, 0.0)
        health.faulted(conversation, 100.0, is_busy=True)
    health.faulted(0, 120.0, is_unreachable=True)

    assert not health.is_lost(100.0 + ENGINE_SILENCE_S_MAX - 1)
    assert health.is_lost(100.0 + ENGINE_SILENCE_S_MAX)
    health.answered()
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        health.faulted(conversation, 1000.0)
    assert health.is_lost(1000.0 + ENGINE_SILENCE_S_MAX)


def test_deaths_put_the_silence_off_but_not_for_ever() -> None:
    """Each death is told of by all that were in flight; an answer in between and they count anew."""
    health = EngineHealth.of(capacity=4)
    lost: list[bool] = []
    for death in range(1, 6):
        now_s = 50.0 * death
        for conversation in range(4):
            health.faulted(conversation, now_s, is_unreachable=True)
            health.died(now_s - 1.0, now_s)
        lost.append(health.is_lost(now_s + 20.0))

    assert lost == [False, False, False, True, True]
    assert health.deaths == 5
    health.answered()
    health.faulted(0, 300.0, is_unreachable=True)
    health.died(299.0, 300.0)
    assert health.deaths == 1
    assert not health.is_lost(300.0)
