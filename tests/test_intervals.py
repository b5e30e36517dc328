from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.intervals import ClusteredRate, Interval, matched_difference, wilson

cases = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def known(interval: Interval | None) -> Interval:
    assert interval is not None
    return interval


def test_wilson_gives_the_published_values() -> None:
    for wins, n, lo, hi in (
        (50, 100, 0.4038, 0.5962),
        (20, 100, 0.1334, 0.2888),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
    ):
        assert [round(end, 4) for end in known(wilson(wins, n))] == [lo, hi]
    assert wilson(0, 0) is None
    for wins, n in ((3, 2), (-1, 2), (0, -1)):
        with pytest.raises(ValueError, match="must lie between"):
            wilson(wins, n)


@given(cases, st.integers(2, 20))
def test_wilson_holds_the_rate_mirrors_losses_and_narrows_with_more_cases(case: tuple[int, int], factor: int) -> None:
    wins, n = case
    won, lost, many = known(wilson(wins, n)), known(wilson(n - wins, n)), known(wilson(wins * factor, n * factor))

    assert 0 <= won.lo <= wins / n <= won.hi <= 1
    assert won.lo < won.hi
    assert (won.lo, won.hi) == pytest.approx((1 - lost.hi, 1 - lost.lo))
    assert many.hi - many.lo < won.hi - won.lo


def test_matched_difference_is_the_adjusted_interval() -> None:
    for first, second, n, lo, hi in (
        # By the formula: (15.5 - 5.5) / 27 ± 1.96 · sqrt(21 - 100 / 27) / 27.
        (15, 5, 25, 0.0684, 0.6723),
        (0, 0, 10, -0.1633, 0.1633),
        (1, 1, 2, -0.8487, 0.8487),
    ):
        assert [*known(matched_difference(first, second, n))] == pytest.approx([lo, hi], abs=2e-4)
    for first, second, n in ((5, 0, 5), (0, 5, 5), (1, 0, 1), (40, 60, 100)):
        interval = known(matched_difference(first, second, n))
        assert -1 <= interval.lo <= (first - second) / n <= interval.hi <= 1
    assert matched_difference(0, 0, 0) is None
    with pytest.raises(ValueError, match="must lie between"):
        matched_difference(3, 3, 5)


def test_clustered_interval_covers_the_true_rate_where_a_plain_one_is_too_narrow() -> None:
    """Teams of seven win a game together; a simulation of 2,000 runs of 100 games."""
    chance = Random(7)
    covered = {"clustered": 0, "plain": 0}
    for _ in range(2_000):
        counted = ClusteredRate()
        for _game in range(100):
            counted.add(7 if chance.random() < 0.3 else 0, 7)
        for name, interval in (("clustered", counted.interval), ("plain", wilson(counted.wins, counted.n))):
            covered[name] += known(interval).lo <= 0.3 <= known(interval).hi

    assert 0.93 <= covered["clustered"] / 2_000 <= 0.97
    assert covered["plain"] / 2_000 < 0.7


def test_one_case_a_game_is_the_plain_interval() -> None:
    counted = ClusteredRate()
    for game in range(50):
        counted.add(game % 3 == 0, 1)

    # The variance of clusters has a factor of 50 / 49.
    assert known(counted.interval) == pytest.approx(known(wilson(counted.wins, counted.n)), abs=0.003)


def test_games_that_all_went_one_way_are_one_case_each() -> None:
    counted = ClusteredRate()
    for _ in range(10):
        counted.add(7, 7)

    assert counted.interval == wilson(10, 10)
