from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.intervals import ClusteredRate, matched_difference, wilson

cases = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("wins", "n", "lo", "hi"),
    [(50, 100, 0.4038, 0.5962), (20, 100, 0.1334, 0.2888), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_wilson_gives_the_published_values(wins: int, n: int, lo: float, hi: float) -> None:
    interval = wilson(wins, n)

    assert interval is not None
    assert (round(interval.lo, 4), round(interval.hi, 4)) == (lo, hi)


def test_wilson_of_nothing_is_unknown() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize(("wins", "n"), [(3, 2), (-1, 2), (0, -1)])
def test_wilson_refuses_impossible_counts(wins: int, n: int) -> None:
    with pytest.raises(ValueError, match="wins must lie between"):
        wilson(wins, n)


@given(cases)
def test_wilson_holds_the_rate_inside_the_unit_interval(case: tuple[int, int]) -> None:
    wins, n = case
    interval = wilson(wins, n)

    assert interval is not None
    assert 0 <= interval.lo <= wins / n <= interval.hi <= 1
    assert interval.lo < interval.hi


@given(cases)
def test_wilson_of_losses_mirrors_that_of_wins(case: tuple[int, int]) -> None:
    wins, n = case
    won, lost = wilson(wins, n), wilson(n - wins, n)

    assert won is not None
    assert lost is not None
    assert (won.lo, won.hi) == pytest.approx((1 - lost.hi, 1 - lost.lo))


@given(cases, st.integers(2, 20))
def test_wilson_narrows_with_more_cases(case: tuple[int, int], factor: int) -> None:
    wins, n = case
    few, many = wilson(wins, n), wilson(wins * factor, n * factor)

    assert few is not None
    assert many is not None
    assert many.hi - many.lo < few.hi - few.lo


@pytest.mark.parametrize(
    ("first", "second", "n", "lo", "hi"),
    [
        # By the formula: (15.5 - 5.5) / 27 ± 1.96 · sqrt(21 - 100 / 27) / 27.
        (15, 5, 25, 0.0684, 0.6723),
        (0, 0, 10, -0.1633, 0.1633),
        (1, 1, 2, -0.8487, 0.8487),
    ],
)
def test_matched_difference_is_the_adjusted_interval(first: int, second: int, n: int, lo: float, hi: float) -> None:
    interval = matched_difference(first, second, n)
    assert interval is not None

    assert [*interval] == pytest.approx([lo, hi], abs=2e-4)


@pytest.mark.parametrize(("first", "second", "n"), [(5, 0, 5), (0, 5, 5), (1, 0, 1), (40, 60, 100)])
def test_matched_difference_holds_the_difference_and_stays_within_bounds(first: int, second: int, n: int) -> None:
    interval = matched_difference(first, second, n)
    assert interval is not None

    assert -1 <= interval.lo <= (first - second) / n <= interval.hi <= 1


def test_matched_difference_of_nothing_is_unknown_and_of_nonsense_refused() -> None:
    assert matched_difference(0, 0, 0) is None
    with pytest.raises(ValueError, match="together they must lie between"):
        matched_difference(3, 3, 5)


def test_clustered_interval_covers_the_true_rate_where_a_plain_one_is_too_narrow() -> None:
    """Teams of seven win a game together; a simulation of 2,000 runs of 100 games."""
    chance = Random(7)
    covered = {"clustered": 0, "plain": 0}
    for _ in range(2_000):
        counted = ClusteredRate()
        for _game in range(100):
            counted.add(7 if chance.random() < 0.3 else 0, 7)
        plain = wilson(counted.wins, counted.n)
        for name, interval in (("clustered", counted.interval), ("plain", plain)):
            assert interval is not None
            covered[name] += interval.lo <= 0.3 <= interval.hi

    assert 0.93 <= covered["clustered"] / 2_000 <= 0.97
    assert covered["plain"] / 2_000 < 0.7


def test_one_case_a_game_is_the_plain_interval() -> None:
    counted = ClusteredRate()
    for game in range(50):
        counted.add(game % 3 == 0, 1)

    plain, found = wilson(counted.wins, counted.n), counted.interval
    assert plain is not None
    assert found is not None
    # The variance of clusters has a factor of 50 / 49.
    assert found == pytest.approx(plain, abs=0.003)


def test_games_that_all_went_one_way_are_one_case_each() -> None:
    counted = ClusteredRate()
    for _ in range(10):
        counted.add(7, 7)

    assert counted.interval == wilson(10, 10)
