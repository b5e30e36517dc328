"""What follows a fault: a test for each row of the table in `engine_policy`, and its parts one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.errors import (
    RETRY_AFTER_S_MAX,
    BackendError,
    RequestRefusedError,
    RequestTimeoutError,
    TransientBackendError,
)
from mac_runner.scheduler.testing import (
    ANSWERS_TO_GROW,
    ENGINE_BUSY_S_MAX,
    ENGINE_DEATHS_PER_TURN_MAX,
    ENGINE_SUSPECT_CONVERSATIONS_MIN,
    REFUSALS_TO_SHRINK,
    REST_S,
    RETRIES_MIN,
    RETRIES_PER_SLOT,
    ConcurrencyLimit,
    EngineState,
    Fail,
    GiveUpEngine,
    NextStep,
    RequestState,
    Retry,
    jitter,
    next_step,
    pause_s,
)
from mac_runner.spec import RetryConfig
from mac_runner.types import Turn

PATIENCE_S = RetryConfig().engine_patience_s

FAULT = TransientBackendError("connection reset")
BUSY = TransientBackendError("429", is_busy=True)
DEATH = TransientBackendError("engine died", is_engine_death=True)
ELSEWHERE = TransientBackendError("reset", is_engine_death=True, goes_elsewhere=True)
UNREACHABLE = TransientBackendError("no route", is_unreachable=True)
ODD = TransientBackendError("no text", has_answered=True)
POLICY = RetryConfig(max_attempts=3, backoff_s=1.0, backoff_s_max=8.0, request_deadline_s=100.0)
TURN = Turn(round=0, agent="ann", model="m", place=0)
LIMIT = 64


def request(sending: int = 1, **state: float) -> RequestState:
    """A request that was sent so often, the first time at 0 s."""
    return RequestState("task/0/ann/0/0", 0.0, sending=sending, **state)  # type: ignore[arg-type]


def step(
    fault: BackendError,
    *,
    sent: RequestState | None = None,
    engine: EngineState | None = None,
    now_s: float = 1.0,
    deaths: int = 0,
    is_wanted: bool = True,
    retry: RetryConfig | None = None,
    server: str | None = None,
    conversation: int = 7,
) -> NextStep:
    """What follows a fault of the first sending to an engine without a past, unless said otherwise."""
    return next_step(
        TURN,
        sent or request(),
        fault,
        engine or EngineState.of(4),
        name="m",
        conversation=conversation,
        retry=retry or POLICY,
        now_s=now_s,
        deaths=deaths,
        is_wanted=is_wanted,
        server=server,
    )


def failed(told: str) -> Fail:
    return Fail(f"turn 0/ann/0/0 got no answer: {told}")


def silent() -> EngineState:
    """An engine that nobody has reached since 0 s."""
    engine = EngineState.of(4)
    engine.faulted(1, 0.0, is_unreachable=True)
    return engine


def spent() -> EngineState:
    """An engine whose budget of retries is used up."""
    engine = EngineState.of(4)
    engine.spent = engine.retries_max * 5
    return engine


ATTEMPT = TransientBackendError("500", goes_elsewhere=True)
REFUSED, LATE = RequestRefusedError("400"), RequestTimeoutError("too late")
LONGEST = Retry(POLICY.backoff_s_max)
HASTY, PATIENT = (RetryConfig(engine_patience_s=patience_s) for patience_s in (5.0, 3600.0))
TABLE: list[tuple[str, BackendError, dict[str, Any], NextStep | type]] = [
    ("2: a turn that is not wanted is not sent again", FAULT, {"is_wanted": False}, Fail),
    ("3: a refusal fails a request", REFUSED, {}, failed("RequestRefusedError: 400")),
    ("3: so does the end of its own time", LATE, {}, failed("RequestTimeoutError: too late")),
    ("4: a request goes to another server at once", ATTEMPT, {"sent": request(2), "server": "a"}, Retry(0.0)),
    ("7: unless no attempt is left", ATTEMPT, {"sent": request(3), "server": "a"}, Fail),
    ("4: in its last moment too", ATTEMPT, {"now_s": 99.99, "server": "a"}, Retry(0.0)),
    ("7: unless no time is left", ATTEMPT, {"now_s": 100.0, "server": "a"}, Fail),
    ("4: a suspect too", ELSEWHERE, {"deaths": 2, "server": "a"}, Retry(0.0, is_suspect=True)),
    ("5: an engine is waited for", FAULT, {"engine": silent(), "retry": HASTY, "now_s": 4.0}, Retry),
    ("5: and given up", FAULT, {"engine": silent(), "retry": HASTY, "now_s": 5.0}, GiveUpEngine),
    ("5: for as long as the file says", FAULT, {"engine": silent(), "retry": PATIENT, "now_s": 3599.0}, Retry),
    ("5: and no longer", FAULT, {"engine": silent(), "retry": PATIENT, "now_s": 3600.0}, GiveUpEngine),
    ("6: suspicion costs no attempt", FAULT, {"sent": request(3), "engine": silent(), "now_s": 10.0}, LONGEST),
    ("7: no attempt left", FAULT, {"sent": request(3)}, failed("TransientBackendError: connection reset")),
    ("7: no time left", FAULT, {"now_s": 99.9}, failed("TransientBackendError: connection reset")),
    ("8: being busy uses no attempt and no budget", BUSY, {"sent": request(9), "engine": spent()}, Retry),
    ("8: nor does an answer that is no reply", ODD, {"engine": silent(), "retry": HASTY, "now_s": 9.0}, Retry),
    ("7: unless no attempt is left for it", ODD, {"sent": request(3), "engine": silent(), "now_s": 99.0}, Fail),
    ("10: the longest pause without a budget", FAULT, {"engine": spent()}, LONGEST),
]


@pytest.mark.parametrize(("row", "fault", "how", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_row_of_the_table(row: str, fault: BackendError, how: dict[str, Any], expected: NextStep | type) -> None:
    engine = how.get("engine") or EngineState.of(4)
    found = step(fault, **{**how, "engine": engine})

    assert isinstance(found, expected) if isinstance(expected, type) else found == expected
    if row[0] in "234":
        assert engine == EngineState.of(4), "it costs the engine nothing"


def test_row_1_a_turn_that_engines_died_on_too_often_is_poison() -> None:
    found = step(DEATH, deaths=ENGINE_DEATHS_PER_TURN_MAX)

    assert isinstance(found, Fail)
    assert "m died 3 times" in found.reason
    assert step(DEATH, deaths=ENGINE_DEATHS_PER_TURN_MAX - 1)[1:] == (True,), "a suspect is tried once more, alone"
    assert step(DEATH, deaths=ENGINE_DEATHS_PER_TURN_MAX - 2)[1:] == (False,)


def test_row_4_a_server_that_has_failed_a_request_before_gets_it_with_a_pause_and_from_the_budget() -> None:
    engine, sent = EngineState.of(4), request()
    for server in ("a", "b", None):
        sent.sending += 1
        assert step(ELSEWHERE, sent=sent, engine=engine, server=server) == Retry(0.0)
    again = step(ELSEWHERE, sent=sent, engine=engine, server="a")

    assert isinstance(again, Retry)
    assert again.delay_s > 0
    assert engine.spent > 0


def test_a_dead_server_leaves_the_budget_to_the_others_and_its_engine_above_suspicion() -> None:
    engine = EngineState.of(64)
    for conversation in range(64):
        assert step(ELSEWHERE, engine=engine, deaths=1, server="a", conversation=conversation) == Retry(0.0)

    assert engine.spent == 0
    assert engine.suspect_since_s is None


def test_row_5_an_engine_that_is_given_up_is_named_with_its_fault() -> None:
    found = step(FAULT, engine=silent(), now_s=PATIENCE_S)

    assert isinstance(found, GiveUpEngine)
    assert found.reason.startswith("model m has answered no request")
    assert found.reason.endswith(": connection reset")


def test_row_6_the_conversation_does_not_pay_for_an_engine_under_suspicion() -> None:
    sent = request(sending=3)
    step(FAULT, sent=sent, engine=silent(), now_s=10.0)

    assert sent.charged_from_s == 10.0 + POLICY.backoff_s_max


def test_row_7_is_for_requests_that_the_engine_answered_others_beside() -> None:
    engine = EngineState.of(4)
    engine.answered()
    engine.faulted(1, 0.0, is_unreachable=True)

    assert isinstance(step(FAULT, sent=request(sending=3), engine=engine), Fail)


def test_answer_that_is_no_reply_ends_a_suspicion() -> None:
    engine = silent()
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        step(ODD, engine=engine, conversation=conversation)

    assert engine.suspect_since_s is None
    assert step(ODD, engine=spent(), sent=request(2)) != LONGEST


def test_row_8_a_busy_engine_is_asked_when_it_allows() -> None:
    named = TransientBackendError("429", is_busy=True, retry_after_s=2.0)
    found = step(named, sent=request(sending=9), engine=spent())

    assert isinstance(found, Retry)
    assert 2.0 <= found.delay_s <= 2.2


def test_row_9_a_retry_is_paid_from_the_budget() -> None:
    engine = EngineState.of(4)
    paid = step(FAULT, engine=engine)

    assert isinstance(paid, Retry)
    assert paid.delay_s < POLICY.backoff_s
    assert engine.spent > 0


def test_an_engine_that_serves_no_request_is_not_silent_meanwhile() -> None:
    engine = silent()
    engine.resized(0, 4, 1.0)
    engine.resized(4, 0, 10 * PATIENCE_S)

    assert isinstance(step(UNREACHABLE, engine=engine, now_s=10 * PATIENCE_S + 1.0), Retry)
    engine.resized(8, 0, 11 * PATIENCE_S)
    assert isinstance(step(UNREACHABLE, engine=engine, now_s=11 * PATIENCE_S), GiveUpEngine), "it took some all along"


def test_the_retry_budget_is_not_of_a_moment_when_an_engine_took_no_request() -> None:
    engine = EngineState.of(0)
    engine.resized(64, 0, 1.0)
    grown = engine.retries_max
    engine.resized(8, 0, 2.0)

    assert engine.retries_max == grown == EngineState.of(64).retries_max


def test_a_death_forgives_the_sendings_before_it() -> None:
    sent = request(sending=9, turned_away=2)

    assert isinstance(step(DEATH, sent=sent, now_s=99.9, deaths=1), Retry)
    assert (sent.forgiven, sent.turned_away, sent.charged_from_s) == (8, 0, 99.9)


def test_sendings_that_were_turned_away_use_no_attempt() -> None:
    sent = request(sending=5)
    for sending in range(1, 5):
        sent.sending = sending
        assert isinstance(step(UNREACHABLE, sent=sent), Retry)
    sent.sending = 6

    assert isinstance(step(FAULT, sent=sent), Retry)


def named(retry_after_s: float, **how: bool) -> TransientBackendError:
    return TransientBackendError("busy", retry_after_s=retry_after_s, **how)


@pytest.mark.parametrize(
    ("fault", "retry", "pauses"),
    [
        # They double up to their bound, and being turned away costs time and no attempt.
        (FAULT, RetryConfig(max_attempts=9, backoff_s=1.0, backoff_s_max=6.0), [0.5, 1.0, 2.0, 3.0, 3.0]),
        (BUSY, RetryConfig(max_attempts=1, backoff_s=1.0, backoff_s_max=6.0), [0.5, 1.0, 2.0, 3.0, 3.0]),
        (UNREACHABLE, RetryConfig(max_attempts=1, backoff_s=1.0, backoff_s_max=6.0), [0.5, 1.0, 2.0, 3.0, 3.0]),
        # A busy engine that says how soon is asked that soon each time.
        (named(2.0, is_busy=True), RetryConfig(backoff_s=1.0, backoff_s_max=30.0), [2.0] * 50),
        # What is asked for is respected up to its bound.
        (named(20.0), RetryConfig(), [20.0]),
        (named(1e9), RetryConfig(), [RETRY_AFTER_S_MAX]),
        (named(math.inf), RetryConfig(), [RETRY_AFTER_S_MAX]),
        (named(-1.0), RetryConfig(), [0.5]),
        (named(math.nan), RetryConfig(), [0.5]),
        (named(0.0), RetryConfig(), [0.5]),
    ],
)
def test_pauses_before_sendings(fault: TransientBackendError, retry: RetryConfig, pauses: list[float]) -> None:
    found = [pause_s(retry, fault, sending=sending + 1, elapsed_s=0.0, jitter=0.0) for sending in range(len(pauses))]

    assert found == pauses
    assert pause_s(retry, fault, sending=1, elapsed_s=retry.request_deadline_s - 0.4, jitter=0.0) is None


@pytest.mark.ci
@given(
    fault=st.sampled_from([FAULT, UNREACHABLE]),
    sending=st.integers(1, 5000),
    draw=st.floats(0, 1, exclude_max=True),
    elapsed=st.floats(0, 1e4),
)
def test_every_decision_is_within_the_bounds(
    fault: TransientBackendError, sending: int, draw: float, elapsed: float
) -> None:
    retry = RetryConfig(max_attempts=100)
    pause = pause_s(retry, fault, sending=sending, elapsed_s=elapsed, jitter=draw)

    if fault is FAULT and sending >= retry.max_attempts:
        assert pause is None
    if pause is not None:
        assert 0 <= pause <= retry.backoff_s_max
        assert elapsed + pause < retry.request_deadline_s


def test_retry_after_never_shortens_the_pause_asked_for() -> None:
    pause = pause_s(RetryConfig(), named(20.0), sending=1, elapsed_s=0.0, jitter=0.99)

    assert pause is not None
    assert 20.0 < pause <= 22.0


def test_jitter_is_a_function_of_request_and_attempt() -> None:
    draws = [jitter(f"task/{n}", attempt) for n in range(50) for attempt in range(1, 5)]

    assert draws == [jitter(f"task/{n}", attempt) for n in range(50) for attempt in range(1, 5)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 1 for draw in draws)


def test_retries_are_a_fifth_of_the_answers_and_a_few_to_begin_with() -> None:
    engine = EngineState.of(capacity=1)
    granted = [engine.spend_retry() for _ in range(15)]
    for _ in range(10):
        engine.answered()
    granted_later = [engine.spend_retry() for _ in range(5)]

    assert granted.count(True) == RETRIES_MIN
    assert granted_later == [True, True, False, False, False]


def test_answers_fill_the_budget_no_further_than_it_goes() -> None:
    engine = EngineState.of(capacity=100)
    for _ in range(1000):
        engine.answered()

    assert [engine.spend_retry() for _ in range(300)].count(True) == RETRIES_PER_SLOT * 100


def test_one_conversation_without_luck_says_nothing_about_an_engine_that_can_be_reached() -> None:
    engine = EngineState.of(capacity=4)
    for moment in range(1000):
        engine.faulted(7, float(moment), is_unreachable=False)

    assert not engine.is_suspect
    assert not engine.is_lost(1000.0, PATIENCE_S)


def test_engine_is_lost_when_it_was_silent_to_several_for_long() -> None:
    engine = EngineState.of(capacity=4)
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        assert not engine.is_suspect
        engine.faulted(conversation, 10.0, is_unreachable=False)

    assert engine.is_suspect
    assert not engine.is_lost(10.0 + PATIENCE_S - 1, PATIENCE_S)
    assert engine.is_lost(10.0 + PATIENCE_S, PATIENCE_S)


def all_fault(engine: EngineState, at_s: float, *, is_busy: bool = False) -> None:
    """As many conversations get no answer as put an engine under suspicion."""
    for conversation in range(ENGINE_SUSPECT_CONVERSATIONS_MIN):
        engine.faulted(conversation, at_s, is_busy=is_busy)


def test_an_answer_clears_the_engine_of_suspicion() -> None:
    engine = silent()
    assert engine.is_lost(PATIENCE_S, PATIENCE_S)
    engine.answered()

    assert not engine.is_suspect
    engine.faulted(0, 100.0, is_unreachable=True)
    assert not engine.is_lost(100.0 + PATIENCE_S - 1, PATIENCE_S)


def test_engine_that_says_it_is_busy_is_there_but_may_not_say_so_for_ever() -> None:
    engine = EngineState.of(capacity=4)
    lost: list[bool] = []
    for now_s in range(0, int(ENGINE_BUSY_S_MAX) + 101, 50):
        all_fault(engine, float(now_s), is_busy=True)
        lost.append(engine.is_lost(float(now_s), PATIENCE_S))

    assert lost == [False] * (len(lost) - 1) + [True]


def test_engine_that_was_busy_and_then_fell_silent_is_lost_as_soon_as_any_other() -> None:
    engine = EngineState.of(capacity=4)
    all_fault(engine, 0.0)
    all_fault(engine, 100.0, is_busy=True)
    engine.faulted(0, 120.0, is_unreachable=True)

    assert not engine.is_lost(100.0 + PATIENCE_S - 1, PATIENCE_S)
    assert engine.is_lost(100.0 + PATIENCE_S, PATIENCE_S)
    engine.answered()
    all_fault(engine, 1000.0)
    assert engine.is_lost(1000.0 + PATIENCE_S, PATIENCE_S)


def test_deaths_put_the_silence_off_but_not_for_ever() -> None:
    """All requests in flight report the same death; an answer in between restarts the count."""
    engine = EngineState.of(capacity=4)
    lost: list[bool] = []
    for death in range(1, 6):
        now_s = 50.0 * death
        for conversation in range(4):
            engine.faulted(conversation, now_s, is_unreachable=True)
            engine.died(now_s - 1.0, now_s)
        lost.append(engine.is_lost(now_s + 20.0, PATIENCE_S))

    assert lost == [False, False, False, True, True]
    assert engine.deaths == 5
    engine.answered()
    engine.faulted(0, 300.0, is_unreachable=True)
    engine.died(299.0, 300.0)
    assert engine.deaths == 1
    assert not engine.is_lost(300.0, PATIENCE_S)


def turned_away(in_flight: int) -> ConcurrencyLimit:
    """A limit that was just closed to so many requests."""
    limit = ConcurrencyLimit()
    refuse(limit, in_flight)
    return limit


def refuse(limit: ConcurrencyLimit, in_flight: int) -> None:
    for _ in range(REFUSALS_TO_SHRINK):
        limit.turned_away(in_flight)


def answer(limit: ConcurrencyLimit, times: int) -> None:
    for _ in range(times):
        limit.answered(limit.within(LIMIT), LIMIT)


def test_an_engine_that_rejects_no_request_gets_all_it_may_have() -> None:
    limit = ConcurrencyLimit()
    answer(limit, 1_000)

    assert limit.within(LIMIT) == LIMIT


def test_an_engine_that_turns_a_request_away_is_handed_what_it_has_and_at_least_one() -> None:
    for in_flight, size in ((0, 1), (1, 1), (5, 5), (63, 63)):
        assert turned_away(in_flight).within(LIMIT) == size


def test_refusals_that_answers_make_up_for_close_no_limit() -> None:
    limit = ConcurrencyLimit()
    for _ in range(100):
        limit.turned_away(50)
        answer(limit, 1)

    assert limit.size is None


@pytest.mark.parametrize(("in_flight", "expected"), [(5, [5, 6, 8, 12, 20, 36]), (1, [1, 2, 4, 8, 16, 32])])
def test_each_few_answers_add_twice_as_much_until_all_is_handed_again(in_flight: int, expected: list[int]) -> None:
    """A small limit grows once all of it is answered."""
    limit, sizes = turned_away(in_flight), list[int]()
    while limit.size is not None:
        sizes.append(limit.size)
        answer(limit, min(limit.size, ANSWERS_TO_GROW))

    assert sizes == expected
    assert limit.within(LIMIT) == LIMIT


def test_after_it_was_wrong_it_grows_by_one_again() -> None:
    limit = turned_away(5)
    answer(limit, 5 + 6)
    refuse(limit, 7)
    answer(limit, 7)

    assert limit.size == 8


def test_a_limit_that_is_not_in_use_does_not_grow() -> None:
    limit = turned_away(5)
    for _ in range(100):
        limit.answered(4, LIMIT)

    assert limit.size == 5


def test_an_engine_is_left_alone_for_longer_each_time_and_no_longer_than_the_request_it_turned_away() -> None:
    limit = ConcurrencyLimit()

    assert [limit.rest_s(3.0) for _ in range(5)] == [REST_S, 2 * REST_S, 4 * REST_S, 3.0, 3.0]
    assert [limit.rest_s(None) for _ in range(100)][-1] == RETRY_AFTER_S_MAX
    limit.answered(1, LIMIT)
    assert limit.rest_s(3.0) == REST_S
