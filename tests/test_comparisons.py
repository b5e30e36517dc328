"""Paired differences and ratings, held against SciPy's own tests, a likelihood by brute force, and known truths."""

from __future__ import annotations

from math import comb

import numpy
import pytest
from scipy.special import expit
from scipy.stats import bootstrap

from mac_runner.comparisons import (
    FIRST_WON,
    SECOND_WON,
    UNDECIDED,
    Array,
    Ratings,
    bradley_terry,
    common_deals,
    deal_table,
    paired_difference,
)

PAIRINGS = [(a, b) for a in range(3) for b in range(3) if a != b]


def games(rng: numpy.random.Generator, deals: int, luck: float = 0.0) -> Array:
    """Games of three players on both sides, each deal with its luck and a few of them without a winner."""
    first, second, advantage = (0.8, 0.0, -0.8), (0.3, -0.5, 0.2), 0.4
    table = numpy.full((deals, len(PAIRINGS)), UNDECIDED, dtype=numpy.int8)
    for deal in range(deals):
        shared = luck * rng.standard_normal()
        for place, (a, b) in enumerate(PAIRINGS):
            if rng.random() < 0.95:
                table[deal, place] = rng.random() < expit(advantage + first[a] - second[b] + shared)
    return table


def rated(table: Array, **more: int) -> Ratings:
    found = bradley_terry(PAIRINGS, table, **more)
    assert found is not None
    return found


def test_mcnemar_is_the_exact_binomial_test_of_the_deals_that_one_of_the_two_won() -> None:
    for only_first, only_second in ((0, 0), (0, 5), (3, 9), (12, 4), (8, 8)):
        first = [1] * only_first + [0] * only_second + [1, 1, 0]
        second = [0] * only_first + [1] * only_second + [1, 1, 0]
        found = paired_difference(first, second)
        n, least = only_first + only_second, min(only_first, only_second)
        expected = min(1.0, 2 * sum(comb(n, k) for k in range(least + 1)) / 2**n)

        assert found.ahead == (only_first, only_second)
        assert found.p == pytest.approx(expected)
        assert found.difference == pytest.approx((only_first - only_second) / (n + 3))
        assert found.wins == (only_first + 2, only_second + 2)


def test_bootstrap_of_a_difference_is_that_of_scipy_and_always_the_same() -> None:
    rng = numpy.random.default_rng(3)
    first, second = (rng.random(150) < rate for rate in (0.7, 0.45))
    found = paired_difference(first, second)
    theirs = bootstrap(
        (first.astype(float), second.astype(float)),
        lambda one, other, axis: (one - other).mean(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20_000,
        rng=numpy.random.default_rng(4),
    ).confidence_interval

    assert found.interval is not None
    assert [*found.interval] == pytest.approx([theirs.low, theirs.high], abs=0.01)
    assert paired_difference(first, second) == found


def test_interval_of_deals_that_all_went_one_way_has_a_width() -> None:
    for first, second, games_of_each in (([1] * 8, [0] * 8, 1), ([1] * 8, [1] * 8, 1), ([1] * 8, [0] * 8, 2)):
        found = paired_difference(first, second, games=games_of_each)

        assert found.interval is not None
        assert -1 <= found.interval.lo < found.interval.hi <= 1
        assert found.interval.lo <= found.difference <= found.interval.hi


@pytest.mark.ci
def test_bootstrap_of_a_difference_covers_the_truth() -> None:
    rng, covered = numpy.random.default_rng(5), 0
    for _ in range(300):
        both = rng.random(100)
        first, second = both + 0.3 * rng.random(100) < 0.7, both < 0.4
        interval = paired_difference(first, second).interval
        assert interval is not None
        covered += interval.lo <= 0.15 <= interval.hi

    assert 0.93 <= covered / 300 <= 0.97


def test_deals_are_matched_whatever_their_order() -> None:
    first, second = [2**63, 5, 9, 7], [7, 1, 2**63]
    here, there = common_deals(first, second)

    assert [first[place] for place in here] == [second[place] for place in there] == [7, 2**63]


def test_a_table_of_deals_has_a_row_for_each_deal_that_any_pairing_played() -> None:
    table = deal_table([[3, 2**63], [2, 3]], [[FIRST_WON, SECOND_WON], [FIRST_WON, UNDECIDED]])

    assert table.tolist() == [[UNDECIDED, FIRST_WON], [FIRST_WON, UNDECIDED], [SECOND_WON, UNDECIDED]]


def test_ratings_are_those_of_the_greatest_likelihood_on_a_grid() -> None:
    """Two players on the first side and two on the second: three parameters, tried one by one."""
    pairings = [(0, 0), (0, 1), (1, 0), (1, 1)]
    rng = numpy.random.default_rng(6)
    table = deal_table(
        [range(60)] * 4, [(rng.random(60) < rate).astype(int).tolist() for rate in (0.6, 0.8, 0.35, 0.5)]
    )
    found = bradley_terry(pairings, table, fits=20)
    assert found is not None
    wins = [(table[:, place] == FIRST_WON).sum() + 0.5 for place in range(4)]

    def likelihood(advantage: Array, first: Array, second: Array) -> Array:
        odds = [advantage + (first, -first)[a] - (second, -second)[b] for a, b in pairings]
        return sum(
            won * numpy.log(expit(x)) + (61 - won) * numpy.log(expit(-x)) for won, x in zip(wins, odds, strict=True)
        )

    steps = numpy.linspace(-1, 1, 101)
    tried = numpy.meshgrid(steps, steps, steps, indexing="ij")
    best = numpy.unravel_index(likelihood(*tried).argmax(), tried[0].shape)
    mine = (found.advantage, found.first[0].rating, found.second[0].rating)

    assert mine == pytest.approx([steps[place] for place in best], abs=0.011)
    assert likelihood(*map(numpy.float64, mine)) >= likelihood(*tried).max()
    assert found.first[0].rate == pytest.approx(expit(found.advantage + found.first[0].rating))
    assert found.second[0].rate == pytest.approx(expit(found.second[0].rating - found.advantage))


def test_ratings_of_many_games_are_the_truth_with_an_average_of_nothing() -> None:
    found = rated(games(numpy.random.default_rng(7), 4_000), fits=20)
    ratings = [[strength.rating for strength in side] for side in (found.first, found.second)]

    assert ratings[0] == pytest.approx([0.8, 0.0, -0.8], abs=0.1)
    assert ratings[1] == pytest.approx([0.3, -0.5, 0.2], abs=0.1)
    assert [sum(side) for side in ratings] == pytest.approx([0, 0])
    assert found.advantage == pytest.approx(0.4, abs=0.1)


def test_intervals_of_ratings_are_over_deals_whose_games_share_their_luck() -> None:
    rng = numpy.random.default_rng(8)
    shared = games(rng, 200, luck=2.0)
    apart = rng.permuted(shared, axis=0)
    widths = [
        found.advantage_interval.hi - found.advantage_interval.lo
        for found in (rated(table, fits=200) for table in (shared, apart))
    ]

    assert widths[0] > 1.4 * widths[1]


@pytest.mark.ci
def test_intervals_of_ratings_are_as_wide_as_ratings_of_new_deals_scatter() -> None:
    rng = numpy.random.default_rng(10)
    scattered = [rated(games(rng, 150, luck=1.0), fits=2) for _ in range(150)]
    found = rated(games(rng, 150, luck=1.0), fits=400)
    for mine, theirs in (
        (found.advantage_interval, [each.advantage for each in scattered]),
        (found.first[0].rating_interval, [each.first[0].rating for each in scattered]),
        (found.second[1].rating_interval, [each.second[1].rating for each in scattered]),
    ):
        assert mine.hi - mine.lo == pytest.approx(2 * 1.96 * numpy.std(theirs), rel=0.25)


def test_who_won_every_game_has_a_finite_rating_and_who_met_nobody_in_common_has_none() -> None:
    table = numpy.full((30, len(PAIRINGS)), SECOND_WON, dtype=numpy.int8)
    table[:, [place for place, (a, _) in enumerate(PAIRINGS) if a == 0]] = FIRST_WON
    found = rated(table, fits=20)

    assert 1 < found.first[0].rating < 10
    assert found.first[0].rate > 0.9
    assert bradley_terry([(0, 1), (1, 0)], table[:, :2]) is None
    assert bradley_terry(PAIRINGS, numpy.full((30, len(PAIRINGS)), UNDECIDED, dtype=numpy.int8)) is None


def test_ratings_of_the_same_games_are_the_same() -> None:
    table = games(numpy.random.default_rng(9), 40)

    assert rated(table, fits=30) == rated(table[::-1], fits=30)
