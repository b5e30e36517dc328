"""Where requests go, when an endpoint is left alone, and what is told of servers that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.backends.http import endpoints as module
from mac_runner.backends.testing import (
    CANARY_S_MAX,
    ENDPOINT_REST_S,
    ENDPOINT_REST_S_MAX,
    ENDPOINT_SAY_INTERVAL_S,
    ENDPOINT_STRIKES_MAX,
    Endpoint,
    EndpointLog,
    Endpoints,
    Onward,
)
from mac_runner.clock import SystemClock
from mac_runner.spec import RetryConfig

URLS = ("http://a/v1", "http://b/v1", "http://c/v1")
REST_S = ENDPOINT_REST_S


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints(URLS)


@pytest.fixture
def one() -> Endpoint:
    """An endpoint without another beside it."""
    return Endpoints(URLS[:1]).all[0]


def chosen(endpoints: Endpoints, conversation: str, now_s: float = 0.0) -> Endpoint:
    endpoint = endpoints.choose(conversation, now_s=now_s)
    assert endpoint is not None
    return endpoint


def test_new_conversations_go_where_least_is_in_flight_or_are_spread(endpoints: Endpoints) -> None:
    counts = Counter(chosen(endpoints, f"c-{number}").url for number in range(30))
    assert counts == dict.fromkeys(URLS, 10)

    for endpoint, in_flight in zip(endpoints.all, (2, 1, 3), strict=True):
        endpoint.in_flight = in_flight
    assert chosen(endpoints, "x").url == "http://b/v1"


@pytest.mark.parametrize(("most", "widths"), [(8, [3, 3, 2]), (9, [3, 3, 3]), (1, [1, 1, 1])])
def test_what_is_in_flight_at_most_is_shared_out_among_those_that_are_open(most: int, widths: list[int]) -> None:
    endpoints = Endpoints(URLS, in_flight_max=most)
    assert [endpoint.width for endpoint in endpoints.all] == widths

    endpoints.all[0].set_aside(0.0)
    assert endpoints.slots == max(most, 2)


def test_conversation_stays_with_its_endpoint_whatever_the_load(endpoints: Endpoints) -> None:
    home = chosen(endpoints, "x")
    home.in_flight = 100

    assert chosen(endpoints, "x") is home
    assert chosen(endpoints, "y") is not home


def test_conversation_of_an_endpoint_set_aside_moves_for_good(endpoints: Endpoints) -> None:
    home = chosen(endpoints, "x")
    home.set_aside(0.0)
    moved = chosen(endpoints, "x")
    home.mark_answered()

    assert moved is not home
    assert chosen(endpoints, "x") is moved
    assert home.conversations == 0


def test_failures_and_refusals_count_in_a_row_and_apart(one: Endpoint) -> None:
    row = [one.count_failure() for _ in range(ENDPOINT_STRIKES_MAX - 1)]
    one.mark_answered()
    row += [one.count_failure() for _ in range(ENDPOINT_STRIKES_MAX)]
    assert row == [False] * (len(row) - 1) + [True]

    one.mark_answered()
    mixed = [one.count_refusal(), one.count_refusal(), one.count_failure()]
    mixed += [one.count_failure(), one.count_refusal(), one.count_refusal()]
    assert not any(mixed)
    assert one.count_refusal()


def test_conversation_without_luck_goes_elsewhere_where_there_is_an_elsewhere() -> None:
    endpoints = Endpoints(URLS[:2])
    home, other = chosen(endpoints, "a"), endpoints.all[1]
    assert home is endpoints.all[0]
    other.in_flight = 100

    left = endpoints.leave("a", home, 0.0)
    moved_to = chosen(endpoints, "a")
    endpoints.leave("a", home, 0.0)  # A second request of it, sent when that was still its home.
    home.set_aside(0.0)
    left_the_last = endpoints.leave("a", other, 0.0)

    assert (left, left_the_last) == (Onward.FRESH, Onward.BACK)
    assert moved_to is chosen(endpoints, "a") is other
    assert (home.conversations, other.conversations) == (0, 1)


def test_request_that_every_server_has_failed_is_sent_after_a_pause(endpoints: Endpoints) -> None:
    tried, ways = [], []
    for _ in range(5):
        endpoint = endpoints.choose("x", "x/1")
        assert endpoint is not None
        tried.append(endpoint.url)
        ways.append(endpoints.leave("x", endpoint, 0.0, "x/1"))

    assert sorted(tried[:3]) == [*URLS]
    assert ways == [Onward.FRESH, Onward.FRESH, *[Onward.ELSEWHERE] * 3]
    endpoints.mark_done("x/1")
    assert endpoints.leave("x", endpoints.at(tried[-1]), 0.0, "x/1") is Onward.FRESH


def test_a_server_that_has_asked_for_a_pause_is_no_elsewhere() -> None:
    endpoints = Endpoints(URLS[:2])
    home, other = chosen(endpoints, "a"), endpoints.all[1]
    other.paused_until_s = 30.0

    assert endpoints.leave("a", home, 29.0) is Onward.BACK
    assert chosen(endpoints, "a", now_s=29.0) is home
    assert endpoints.leave("a", home, 30.0) is Onward.FRESH
    assert chosen(endpoints, "a") is other


def test_endpoint_rests_for_as_long_as_it_asks(one: Endpoint) -> None:
    one.set_aside(0.0, pause_s=20.0)
    at_first = one.rest_until_s
    one.rest_longer(20.0, pause_s=0.5)

    assert (at_first, one.rest_until_s) == (20.0, 22.0)


@pytest.mark.parametrize("rest", [Endpoint.set_aside, Endpoint.rest_longer])
def test_endpoint_is_due_before_its_engine_is_taken_for_lost_however_long_a_pause_it_asks_for(
    rest: Callable[..., None],
) -> None:
    endpoints, patience_s = Endpoints(URLS[:1]), RetryConfig().engine_patience_s
    rest(endpoints.all[0], 0.0, pause_s=patience_s)

    due_in_s = endpoints.due_in_s(0.0)
    assert due_in_s is not None
    assert due_in_s < patience_s - CANARY_S_MAX


def test_requests_that_fail_together_set_aside_once_an_endpoint_that_is_not_chosen_then() -> None:
    endpoints = Endpoints(URLS[:1])
    for number in range(64):
        endpoints.all[0].set_aside(number / 1000)

    assert endpoints.choose("x") is None
    assert not endpoints.is_any_up
    assert endpoints.due(REST_S) is endpoints.all[0]


def test_endpoint_is_due_after_its_rest_and_taken_by_one(endpoints: Endpoints) -> None:
    resting = endpoints.all[1]
    resting.set_aside(10.0)

    assert endpoints.due(10.0 + REST_S / 2) is None
    assert endpoints.due_in_s(10.0 + REST_S / 2) == REST_S / 2
    assert endpoints.due(10.0 + REST_S) is resting
    assert endpoints.due(10.0 + REST_S) is None
    # Whoever took it may have been cancelled: it does not stay taken for ever.
    assert endpoints.due(10.0 + REST_S + CANARY_S_MAX) is resting


def test_rests_double_up_to_a_bound_and_are_forgotten_by_an_answer(one: Endpoint) -> None:
    one.set_aside(0.0)
    rests = [one.rest_s]
    for _ in range(6):
        one.rest_longer(0.0)
        rests.append(one.rest_s)
    one.mark_answered()
    one.set_aside(0.0)

    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, ENDPOINT_REST_S_MAX, ENDPOINT_REST_S_MAX]
    assert one.rest_s == REST_S


def test_everybody_is_refused_only_when_all_endpoints_do() -> None:
    endpoints = Endpoints(URLS[:2])
    found = [endpoints.denials]
    for endpoint, why in zip(endpoints.all, ("no key", "no model"), strict=True):
        endpoint.denial = why
        found.append(endpoints.denials)
    endpoints.all[0].mark_answered()

    assert [*found, endpoints.denials] == [None, None, ("no key", "no model"), None]


def test_only_so_many_homes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDPOINT_CONVERSATIONS_MAX", 2)
    endpoints = Endpoints(URLS[:1])
    for number in range(5):
        endpoints.choose(f"c-{number}")

    assert endpoints.all[0].conversations == 2


class HandClock(SystemClock):
    """A clock that is set by hand."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_a_server_that_comes_and_goes_all_the_time_is_told_of_now_and_then(one: Endpoint) -> None:
    said: list[str] = []
    clock = HandClock()
    news = EndpointLog("m", clock, said.append)
    for _ in range(10):
        news.down(one, "503")
        news.up(one)
        clock.now_s += ENDPOINT_SAY_INTERVAL_S / 5
    news.down(Endpoint("http://other/v1"), "503")

    own = [["http://a/v1", "is"], ["http://a/v1", "serves"]]
    assert [line.split()[2:4] for line in said] == [*own, *own, ["http://other/v1", "is"]]


def test_what_is_told_of_servers(snapshot: SnapshotAssertion) -> None:
    """One that goes and comes back, one that was silent from the start, and a lane, which is left to its fleet."""
    said: list[str] = []
    lane = Endpoint("http://lane/v1", lane="m@0")
    unfit = EndpointLog.unfit, "does not answer (no connection)"
    for first, words in ((EndpointLog.down, "no connection"), unfit):
        news, server = EndpointLog("m", HandClock(), said.append), Endpoint("http://one/v1")
        first(news, server, words)
        news.up(server)
    EndpointLog("m", HandClock(), said.append).down(lane, "no connection")
    clock, one = HandClock(), Endpoint("http://one/v1")
    news = EndpointLog("m", clock, said.append)
    for _ in range(10):  # Now and then.
        news.busy(one, "status 429: slow down")
        clock.now_s += ENDPOINT_SAY_INTERVAL_S / 5
    news.busy(Endpoint("http://other/v1"), "status 429")

    assert said == snapshot
