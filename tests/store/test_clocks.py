"""Clocks that leap: nothing is lost, nothing takes less than no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest

from mac_runner.store import read_run, verify_run
from mac_runner.store.testing import LEASE_INTERVAL_S
from tests.store import player

HOUR_S, DAY_S = 3600.0, 86_400.0


class LeapingClock:
    """Wall time is what `wall` makes of the number of the question; `leaps` are added to the monotonic time."""

    def __init__(self, wall: Callable[[int], float], leaps: dict[int, float]) -> None:
        self._wall, self._leaps = wall, leaps
        self._asked, self._now_s = count(), 0.0
        self._ticks = count()

    def utc_now(self) -> datetime:
        return datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=self._wall(next(self._asked)))

    def monotonic_s(self) -> float:
        self._now_s += 0.001 + self._leaps.get(next(self._ticks), 0.0)
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        self._now_s += delay_s


@pytest.mark.parametrize(
    ("wall", "leaps"),
    [
        pytest.param(lambda n: HOUR_S * (n > 9), {}, id="an hour on"),
        pytest.param(lambda n: -HOUR_S * (n > 9), {}, id="an hour back"),
        pytest.param(lambda n: DAY_S * (n > 9), {}, id="a day on"),
        pytest.param(lambda n: -DAY_S * (n > 9), {}, id="a day back"),
        pytest.param(lambda n: -float(n), {}, id="backwards"),
        pytest.param(lambda n: HOUR_S * (-1) ** n, {}, id="strobed"),
        pytest.param(lambda n: float(n), {9: HOUR_S}, id="asleep for an hour"),
    ],
)
def test_leaping_clocks_cost_nothing(run_dir: Path, wall: Callable[[int], float], leaps: dict[int, float]) -> None:
    for n in (4, 8):
        with player.open_toy(run_dir, n, clock=LeapingClock(wall, leaps)) as run:
            player.play(run)

    report = verify_run(run_dir, rebuild=player.rebuild)
    assert report.findings == ()
    assert report.acknowledged == 8
    wall_s = read_run(run_dir).accounting["wall_s"]
    assert isinstance(wall_s, float)
    assert 0 < wall_s < 2 * HOUR_S + 60
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    played = [event["elapsed_s"] for event in events if event["event"] == "EVENT_INFER_DONE"]
    assert len(played) == 8 * player.TURNS
    assert all(elapsed_s >= 0 for elapsed_s in played)
    assert sum(later < earlier for earlier, later in pairwise(played)) <= 1  # The second session begins anew.


def test_leap_brings_one_sign_of_life_and_no_storm(run_dir: Path) -> None:
    with player.open_toy(run_dir, 30, clock=LeapingClock(float, {40: HOUR_S})) as run:
        player.play(run)
        run.contents()
        signs = (run_dir / ".lease").read_bytes().splitlines()

    assert len(signs) <= 2
    assert LEASE_INTERVAL_S < HOUR_S
