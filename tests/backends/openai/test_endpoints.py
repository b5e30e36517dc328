from __future__ import annotations

from collections import Counter

import pytest

from mac_runner.backends.openai import endpoints as module
from mac_runner.backends.openai.testing import (
    CANARY_S_MAX,
    ENDPOINT_REST_S,
    ENDPOINT_REST_S_MAX,
    ENDPOINT_STRIKES_MAX,
    Endpoints,
    Onward,
)
from mac_runner.scheduler import RetryPolicy

URLS = ("http://a/v1", "http://b/v1", "http://c/v1")


def chosen(endpoints: Endpoints, conversation: str) -> str:
    endpoint = endpoints.choose(conversation)
    assert endpoint is not None
    return endpoint.url


def test_new_conversation_goes_where_least_is_in_flight() -> None:
    endpoints = Endpoints(URLS)
    for endpoint, in_flight in zip(endpoints.all, (2, 1, 3), strict=True):
        endpoint.in_flight = in_flight

    assert chosen(endpoints, "x") == "http://b/v1"


def test_conversations_are_spread_when_nothing_is_in_flight() -> None:
    endpoints = Endpoints(URLS)

    counts = Counter(chosen(endpoints, f"c-{number}") for number in range(30))
    assert counts == dict.fromkeys(URLS, 10)


def test_conversation_stays_with_its_endpoint_whatever_the_load() -> None:
    endpoints = Endpoints(URLS)
    home = endpoints.choose("x")
    assert home is not None
    home.in_flight = 100

    assert endpoints.choose("x") is home
    assert endpoints.choose("y") is not home


def test_conversation_of_an_endpoint_set_aside_moves_for_good() -> None:
    endpoints = Endpoints(URLS)
    home = endpoints.choose("x")
    assert home is not None
    home.set_aside(0.0)
    moved = chosen(endpoints, "x")
    home.mark_answered()

    assert moved != home.url
    assert chosen(endpoints, "x") == moved
    assert home.conversations == 0


def test_strikes_count_in_a_row() -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    row = [endpoint.count_failure() for _ in range(ENDPOINT_STRIKES_MAX - 1)]
    endpoint.mark_answered()
    row += [endpoint.count_failure() for _ in range(ENDPOINT_STRIKES_MAX)]

    assert row == [False] * (len(row) - 1) + [True]


def test_endpoint_set_aside_is_not_chosen() -> None:
    endpoints = Endpoints(URLS[:1])
    endpoints.all[0].set_aside(0.0)

    assert endpoints.choose("x") is None
    assert not endpoints.is_any_up


def test_conversation_without_luck_goes_elsewhere_where_there_is_an_elsewhere() -> None:
    endpoints = Endpoints(URLS[:2])
    home, other = (endpoints.choose("a"), endpoints.all[1])
    assert home is endpoints.all[0]
    other.in_flight = 100

    left = endpoints.leave("a", home, 0.0)
    moved_to = endpoints.choose("a")
    endpoints.leave("a", home, 0.0)  # A second request of it, sent when that was still its home.
    home.set_aside(0.0)
    left_the_last = endpoints.leave("a", other, 0.0)

    assert (left, left_the_last) == (Onward.FRESH, Onward.BACK)
    assert moved_to is endpoints.choose("a") is other
    assert (home.conversations, other.conversations) == (0, 1)


def test_endpoint_rests_for_as_long_as_it_asks() -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    endpoint.set_aside(0.0, pause_s=20.0)
    at_first = endpoint.rest_until_s
    endpoint.rest_longer(20.0, pause_s=0.5)

    assert (at_first, endpoint.rest_until_s) == (20.0, 22.0)


@pytest.mark.parametrize("has_rested", [False, True])
def test_endpoint_is_due_before_its_engine_is_taken_for_lost_however_long_a_pause_it_asks_for(has_rested: bool) -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    if has_rested:
        endpoint.rest_longer(0.0, pause_s=RetryPolicy().engine_patience_s)
    else:
        endpoint.set_aside(0.0, pause_s=RetryPolicy().engine_patience_s)

    due_in_s = endpoints.due_in_s(0.0)
    assert due_in_s is not None
    assert due_in_s < RetryPolicy().engine_patience_s - CANARY_S_MAX


def test_a_server_that_has_asked_for_a_pause_is_no_elsewhere() -> None:
    endpoints = Endpoints(URLS[:2])
    home = endpoints.choose("a")
    other = endpoints.all[1]
    assert home is endpoints.all[0]
    other.paused_until_s = 30.0

    assert endpoints.leave("a", home, 29.0) is Onward.BACK
    assert endpoints.choose("a", now_s=29.0) is home
    assert endpoints.leave("a", home, 30.0) is Onward.FRESH
    assert endpoints.choose("a") is other


def test_failures_and_refusals_are_counted_apart() -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    mixed = [endpoint.count_refusal(), endpoint.count_refusal(), endpoint.count_failure()]
    mixed += [endpoint.count_failure(), endpoint.count_refusal(), endpoint.count_refusal()]

    assert not any(mixed)
    assert endpoint.count_refusal()


def test_requests_that_fail_together_set_aside_once() -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    for number in range(64):
        endpoint.set_aside(number / 1000)

    assert endpoints.due(ENDPOINT_REST_S) is endpoint


def test_endpoint_is_due_after_its_rest_and_taken_by_one() -> None:
    endpoints = Endpoints(URLS)
    endpoints.all[1].set_aside(10.0)

    assert endpoints.due(10.0 + ENDPOINT_REST_S / 2) is None
    assert endpoints.due_in_s(10.0 + ENDPOINT_REST_S / 2) == ENDPOINT_REST_S / 2
    assert endpoints.due(10.0 + ENDPOINT_REST_S) is endpoints.all[1]
    assert endpoints.due(10.0 + ENDPOINT_REST_S) is None
    # Whoever took it may have been cancelled: it does not stay taken for ever.
    assert endpoints.due(10.0 + ENDPOINT_REST_S + CANARY_S_MAX) is endpoints.all[1]


def test_rests_double_up_to_a_bound_and_are_forgotten_by_an_answer() -> None:
    endpoints = Endpoints(URLS[:1])
    (endpoint,) = endpoints.all
    endpoint.set_aside(0.0)
    rests = [endpoint.rest_s]
    for _ in range(6):
        endpoint.rest_longer(0.0)
        rests.append(endpoint.rest_s)
    endpoint.mark_answered()
    endpoint.set_aside(0.0)

    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, ENDPOINT_REST_S_MAX, ENDPOINT_REST_S_MAX]
    assert endpoint.rest_s == ENDPOINT_REST_S


def test_everybody_is_refused_only_when_all_endpoints_do() -> None:
    endpoints = Endpoints(URLS[:2])
    endpoints.all[0].denial = "no key"
    one = endpoints.denials
    endpoints.all[1].denial = "no model"
    both = endpoints.denials
    endpoints.all[0].mark_answered()

    assert (one, both, endpoints.denials) == (None, ("no key", "no model"), None)


def test_only_so_many_homes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDPOINT_CONVERSATIONS_MAX", 2)
    endpoints = Endpoints(URLS[:1])
    for number in range(5):
        endpoints.choose(f"c-{number}")

    assert endpoints.all[0].conversations == 2
