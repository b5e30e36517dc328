"""What is told of servers that come and go."""

from __future__ import annotations

from datetime import UTC, datetime

from syrupy.assertion import SnapshotAssertion

from mac_runner.backends.openai.testing import ENDPOINT_SAY_INTERVAL_S, Endpoint, EndpointLog


class HandClock:
    """A clock that is set by hand."""

    now_s = 0.0

    def utc_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


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


def test_what_is_told_of_servers(snapshot: SnapshotAssertion) -> None:
    """One that goes and comes back, one that was silent from the start, and a lane, which is left to its fleet."""
    said: list[str] = []
    one, lane = Endpoint("http://one/v1"), Endpoint("http://lane/v1", lane="m@0")
    for first in (EndpointLog.down, EndpointLog.silent):
        news = EndpointLog("m", HandClock(), said.append)
        first(news, one, "no connection")
        news.up(one)
    EndpointLog("m", HandClock(), said.append).down(lane, "no connection")
    clock = HandClock()
    news = EndpointLog("m", clock, said.append)
    for _ in range(10):  # Now and then.
        news.busy(one, "status 429: slow down")
        clock.now_s += ENDPOINT_SAY_INTERVAL_S / 5
    news.busy(Endpoint("http://other/v1"), "status 429")

    assert said == snapshot
