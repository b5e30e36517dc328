from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.config import RetryConfig
from mac_runner.errors import TransientBackendError
from mac_runner.limits import RETRY_AFTER_S_MAX
from mac_runner.scheduler import RetryPolicy
from mac_runner.scheduler.retry import jitter

FAULT = TransientBackendError("connection reset")


def test_pauses_double_up_to_their_bound() -> None:
    policy = RetryPolicy(max_attempts=9, backoff_s=1.0, backoff_s_max=6.0)
    pauses = [policy.decide(FAULT, sending=attempt, elapsed_s=0.0, jitter=0.0) for attempt in range(1, 6)]

    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(attempt=st.integers(1, 5000), draw=st.floats(0, 1, exclude_max=True), elapsed=st.floats(0, 1e4))
def test_every_decision_is_within_the_bounds(attempt: int, draw: float, elapsed: float) -> None:
    policy = RetryPolicy(max_attempts=4000)
    pause = policy.decide(FAULT, sending=attempt, elapsed_s=elapsed, jitter=draw)

    if attempt >= policy.max_attempts:
        assert pause is None
    if pause is not None:
        assert 0 <= pause <= policy.backoff_s_max
        assert elapsed + pause < policy.request_deadline_s


def test_gives_up_after_the_last_attempt_and_at_the_deadline() -> None:
    policy = RetryPolicy(max_attempts=3, backoff_s=1.0, request_deadline_s=10.0)

    assert policy.decide(FAULT, sending=2, elapsed_s=0.0, jitter=0.5) is not None
    assert policy.decide(FAULT, sending=3, elapsed_s=0.0, jitter=0.5) is None
    assert policy.decide(FAULT, sending=1, elapsed_s=9.6, jitter=0.0) is None


@pytest.mark.parametrize("reason", ["is_busy", "is_unreachable"])
def test_being_turned_away_at_the_door_costs_time_and_no_attempt(reason: str) -> None:
    policy = RetryPolicy(max_attempts=1, backoff_s=1.0, backoff_s_max=6.0, request_deadline_s=10.0)
    fault = TransientBackendError("not now", **{reason: True})
    pauses = [policy.decide(fault, sending=attempt, elapsed_s=0.0, jitter=0.0) for attempt in range(1, 6)]

    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.decide(fault, sending=1, elapsed_s=9.6, jitter=0.0) is None


def test_being_turned_away_before_takes_no_attempt_from_what_comes_later() -> None:
    policy = RetryPolicy(max_attempts=2)

    assert policy.decide(FAULT, sending=5, turned_away=4, elapsed_s=0.0, jitter=0.0) is not None
    assert policy.decide(FAULT, sending=6, turned_away=4, elapsed_s=0.0, jitter=0.0) is None


def test_busy_engine_that_says_how_soon_is_asked_that_soon_each_time() -> None:
    policy = RetryPolicy(backoff_s=1.0, backoff_s_max=30.0)
    busy = TransientBackendError("429", retry_after_s=2.0, is_busy=True)

    assert [policy.decide(busy, sending=sending, elapsed_s=0.0, jitter=0.0) for sending in (1, 5, 50)] == [2.0] * 3


@pytest.mark.parametrize(
    ("asked_s", "pause_s"),
    [(20.0, 20.0), (1e9, RETRY_AFTER_S_MAX), (math.inf, RETRY_AFTER_S_MAX), (-1.0, 0.5), (math.nan, 0.5), (0.0, 0.5)],
)
def test_retry_after_is_obeyed_and_capped(asked_s: float, pause_s: float) -> None:
    fault = TransientBackendError("busy", retry_after_s=asked_s)

    assert RetryPolicy().decide(fault, sending=1, elapsed_s=0.0, jitter=0.0) == pause_s


def test_retry_after_never_shortens_the_pause_asked_for() -> None:
    fault = TransientBackendError("busy", retry_after_s=20.0)
    pause = RetryPolicy().decide(fault, sending=1, elapsed_s=0.0, jitter=0.99)

    assert pause is not None
    assert 20.0 < pause <= 22.0


def test_jitter_is_a_function_of_request_and_attempt() -> None:
    draws = [jitter(f"task/{n}", attempt) for n in range(50) for attempt in range(1, 5)]

    assert draws == [jitter(f"task/{n}", attempt) for n in range(50) for attempt in range(1, 5)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 1 for draw in draws)


def test_policy_is_what_the_experiment_asks_for() -> None:
    config = RetryConfig(max_attempts=7, backoff_s=2.0, backoff_s_max=3.0, request_deadline_s=4.0)

    assert RetryPolicy.of(config) == RetryPolicy(
        max_attempts=7, backoff_s=2.0, backoff_s_max=3.0, request_deadline_s=4.0
    )
