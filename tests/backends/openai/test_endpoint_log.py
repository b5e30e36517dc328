"""What is told of servers that come and go."""

from __future__ import annotations

from datetime import UTC, datetime

from mac_runner.backends.openai.endpoints import ENDPOINT_SAY_INTERVAL_S, Endpoint, EndpointLog


class HandClock:
    """A clock that is set by hand."""

    now_s = 0.0

    def utc_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


def test_a_server_that_goes_and_comes_back_is_told_of_with_the_reason() -> None:
    said: list[str] = []
    news, one = EndpointLog("m", HandClock(), said.append), Endpoint("http://one/v1")
    news.down(one, "no connection")
    news.up(one)

    assert said == [
        "model m: http://one/v1 is set aside (no connection); it is tried again now and then",
        "model m: http://one/v1 serves again",
    ]


def test_lane_that_goes_is_left_to_its_fleet() -> None:
    said: list[str] = []
    EndpointLog("m", HandClock(), said.append).down(Endpoint("http://one/v1", lane="m@0"), "no connection")

    assert said == ["model m: m@0 is set aside (no connection); other lanes take its requests"]


def test_a_server_that_comes_and_goes_all_the_time_is_told_of_now_and_then() -> None:
    said: list[str] = []
    clock = HandClock()
    news, one, other = EndpointLog("m", clock, said.append), Endpoint("http://one/v1"), Endpoint("http://other/v1")
    for _ in range(10):
        news.down(one, "503")
        news.up(one)
        clock.now_s += ENDPOINT_SAY_INTERVAL_S / 5
    news.down(other, "503")

    assert [line.split()[2:4] for line in said] == [
        ["http://one/v1", "is"],
        ["http://one/v1", "serves"],
        ["http://one/v1", "is"],
        ["http://one/v1", "serves"],
        ["http://other/v1", "is"],
    ]


def test_one_that_was_silent_from_the_start_is_told_of_when_it_serves() -> None:
    said: list[str] = []
    news, one = EndpointLog("m", HandClock(), said.append), Endpoint("http://one/v1")
    news.silent(one, "no connection")
    news.up(one)

    assert [line.split(":", 1)[1].split("(")[0].strip() for line in said] == [
        "http://one/v1 does not answer",
        "http://one/v1 serves again",
    ]


def test_a_server_that_turns_requests_away_is_told_of_now_and_then() -> None:
    said: list[str] = []
    clock = HandClock()
    news, one, other = EndpointLog("m", clock, said.append), Endpoint("http://one/v1"), Endpoint("http://other/v1")
    for _ in range(10):
        news.busy(one, "status 429: slow down")
        clock.now_s += ENDPOINT_SAY_INTERVAL_S / 5
    news.busy(other, "status 429")

    assert said == [
        "model m: http://one/v1 turns requests away (status 429: slow down); they are sent again",
        "model m: http://one/v1 turns requests away (status 429: slow down); they are sent again",
        "model m: http://other/v1 turns requests away (status 429); they are sent again",
    ]
