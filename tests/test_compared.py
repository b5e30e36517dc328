"""Comparisons, ratings and values, held against SciPy, statsmodels, brute force and known truths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import pandas
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, xlogy
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import Table2x2, mcnemar
from statsmodels.stats.proportion import proportion_effectsize

from mac_runner.compared import (
    Array,
    Comparison,
    Kind,
    Sums,
    compare,
    matched_interval,
    matched_p,
)
from mac_runner.ratings import FIRST_WON, SECOND_WON, UNDECIDED, Ratings, bradley_terry, deal_table
from mac_runner.runs.testing import RESAMPLED, SAID, Rollout, value_of
from mac_runner.store.testing import objects
from mac_runner.types import JsonObject
from tests.kit import known

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
    return known(bradley_terry(PAIRINGS, table, **more))


PAIRS = [(0, 0, 5), (0, 5, 20), (3, 9, 15), (12, 4, 50), (8, 8, 16), (0, 20, 20), (1, 0, 400)]
"""How often the first of a pair alone holds, the second alone, and how many pairs there are."""


def test_p_of_pairs_is_that_of_mcnemars_test_without_a_correction() -> None:
    for first, second, n in PAIRS:
        cross = [[n - first - second, first], [second, 0]]
        expected = mcnemar(cross, exact=False, correction=False).pvalue if first + second else 1.0

        assert matched_p(first, second) == pytest.approx(expected), (first, second)


def score_by_hand(first: int, second: int, n: int, difference: float) -> float:
    """The score statistic, with the likeliest chances under `difference` found by search."""
    counts = numpy.array([first, second, n - first - second])

    def surprise(chance: float) -> float:
        return -float(xlogy(counts, [chance, chance + difference, 1 - 2 * chance - difference]).sum())

    bounds = max(0.0, -difference), (1 - difference) / 2
    chance = minimize_scalar(surprise, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return (second - first - n * difference) / math.sqrt(n * (2 * chance + difference * (1 - difference)))


def test_interval_of_pairs_holds_the_differences_that_the_same_test_does_not_reject() -> None:
    for first, second, n in PAIRS:
        found = matched_interval(first, second, n)
        for end, z in zip(found, (1.959964, -1.959964), strict=True):
            if abs(end) < 1:
                assert score_by_hand(first, second, n, end) == pytest.approx(z, abs=1e-3), (first, second, n)
        assert found.lo < (second - first) / n <= found.hi
        assert (found.lo <= 0 <= found.hi) is (matched_p(first, second) >= 0.05), (first, second, n)


def test_one_yes_or_no_for_each_deal_is_compared_by_the_score_test_and_several_games_by_bootstrap() -> None:
    first = dict.fromkeys(range(30), (0, 1)) | dict.fromkeys(range(12), (1, 1))
    second = dict.fromkeys(range(3, 33), (1, 1))
    found = known(compare(first, second))
    several = known(compare({deal: (won, 2) for deal, (won, _) in first.items()}, second))

    assert (found.test, found.n, found.ahead) == ("score", 27, (0, 18))
    assert found.p == matched_p(0, 18)
    assert found.interval == matched_interval(0, 18, 27)
    assert (several.test, several.n) == ("bootstrap", 27)
    assert compare(first, {"elsewhere": (1, 1)}) is None


def test_a_table_of_games_has_a_row_for_each_deal_that_any_pairing_played() -> None:
    table = deal_table([[3, 2**63], [2, 3]], [[FIRST_WON, SECOND_WON], [FIRST_WON, UNDECIDED]])

    assert table.tolist() == [[UNDECIDED, FIRST_WON], [FIRST_WON, UNDECIDED], [SECOND_WON, UNDECIDED]]


def test_ratings_are_those_of_the_greatest_likelihood_on_a_grid() -> None:
    """Two players on the first side and two on the second: three parameters, tried one by one."""
    pairings = [(0, 0), (0, 1), (1, 0), (1, 1)]
    rng = numpy.random.default_rng(6)
    table = deal_table(
        [range(60)] * 4, [(rng.random(60) < rate).astype(int).tolist() for rate in (0.6, 0.8, 0.35, 0.5)]
    )
    found = known(bradley_terry(pairings, table, fits=20))
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
    assert rated(shared, fits=30) == rated(shared[::-1], fits=30)


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


SIMULATIONS = 1_000


def clusters(rng: numpy.random.Generator, n: int, *, effect: float = 0.0, size: int = 3) -> Array:
    """Right answers of `size` in each of two settings; how hard a question is, both share."""
    hard = rng.uniform(0.1, 0.8, n)
    first, second = rng.binomial(size, hard), rng.binomial(size, numpy.clip(hard + effect, 0, 1))
    cases = numpy.full(n, size)
    return numpy.stack([first, cases, second, cases], axis=1)


def sums(table: Array) -> tuple[Sums, Sums]:
    rows = [[int(each) for each in row] for row in table]
    return dict(enumerate((row[0], row[1]) for row in rows)), dict(enumerate((row[2], row[3]) for row in rows))


def compared(table: Array, *, kind: Kind = "share", resamples: int = 10_000) -> Comparison:
    return known(compare(*sums(table), kind=kind, resamples=resamples))


def sizes(table: Array, *, kind: Kind = "share") -> Comparison:
    return known(compare(*sums(table), kind=kind, has_effects=True))


def naive_differences(table: Array, *, resamples: int = 4_000) -> list[tuple[float, float]]:
    """The difference and the odds ratio of resamples, question by question in pandas."""
    frame = pandas.DataFrame(table, columns=["one", "n", "two", "m"])
    found = []
    for seed in range(resamples):
        one, n, two, m = (float(each) for each in frame.sample(len(frame), replace=True, random_state=seed).sum())
        cells = [two, m - two, one, n - one]
        if 0 in cells:
            cells = [each + 0.5 for each in cells]
        found.append((two / m - one / n, cells[0] / cells[1] / (cells[2] / cells[3])))
    return found


@pytest.mark.ci
def test_difference_and_interval_are_those_of_questions_drawn_one_by_one() -> None:
    table = clusters(numpy.random.default_rng(1), 80, effect=0.1)
    table[:7, 2:] -= numpy.minimum(table[:7, 2:], 1)[:, :1]  # Some questions have fewer cases in one setting.
    table[:7, 3] = numpy.maximum(table[:7, 3], table[:7, 2])
    found, naive = compared(table), naive_differences(table)
    differences, odds = zip(*naive, strict=True)

    assert found.difference == pytest.approx(table[:, 2].sum() / table[:, 3].sum() - table[:, 0].sum() / (3 * 80))
    assert found.n == 80
    assert [*known(found.interval)] == pytest.approx(numpy.quantile(differences, (0.025, 0.975)), abs=0.006)
    assert [*known(sizes(table).odds_interval)] == pytest.approx(numpy.quantile(odds, (0.025, 0.975)), rel=0.04)
    beyond = 2 * min(numpy.mean([d <= 0 for d in differences]), numpy.mean([d >= 0 for d in differences]))
    assert found.p == pytest.approx(beyond, abs=0.01)


def test_effect_sizes_are_those_of_statsmodels() -> None:
    table = clusters(numpy.random.default_rng(2), 60, effect=0.15)
    found, (one, n, two, m) = sizes(table), table.sum(axis=0)
    expected = Table2x2([[two, m - two], [one, n - one]])

    assert found.cohens_h == pytest.approx(proportion_effectsize(two / m, one / n))
    assert found.odds_ratio == pytest.approx(expected.oddsratio)
    assert not found.is_odds_corrected
    # A count of zero is corrected, and said to be.
    odds = sizes(numpy.array([[1, 1, 1, 1]] * 9 + [[0, 1, 1, 1]] * 3))
    assert odds.is_odds_corrected
    assert odds.odds_ratio == pytest.approx((12.5 / 0.5) / (9.5 / 3.5))


def test_a_balance_is_compared_as_a_share() -> None:
    """s_DIS is 2 · share − 1, so its odds are those of the share and its difference is twice that of the share."""
    rng = numpy.random.default_rng(3)
    shares = clusters(rng, 50, effect=-0.1)
    balances = shares.copy()
    balances[:, 0], balances[:, 2] = 2 * shares[:, 0] - 3, 2 * shares[:, 2] - 3
    share, balance = compared(shares), compared(balances, kind="balance")

    assert balance.difference == pytest.approx(2 * share.difference)
    share_sizes, balance_sizes = sizes(shares), sizes(balances, kind="balance")
    assert balance_sizes.cohens_h == pytest.approx(share_sizes.cohens_h)
    assert balance_sizes.odds_ratio == pytest.approx(share_sizes.odds_ratio)
    assert known(compare(*sums(balances), kind="score", has_effects=True)).cohens_h is None
    assert share.cohens_h is None, "they were not asked for"


@pytest.mark.ci
def test_interval_covers_the_truth_and_no_effect_is_rarely_significant() -> None:
    """Simulated coverage of 95 % intervals: 93 to 97 %; and about 5 % of p below 0.05 without an effect."""
    rng, effect, covered, significant = numpy.random.default_rng(4), 0.08, 0, 0
    for _ in range(SIMULATIONS):
        lo, hi = known(compared(clusters(rng, 120, effect=effect), resamples=999).interval)
        covered += lo <= effect <= hi
        significant += known(compared(clusters(rng, 120), resamples=999).p) < 0.05

    assert 0.93 <= covered / SIMULATIONS <= 0.97
    assert binomtest(significant, SIMULATIONS, 0.05).pvalue > 0.001


@pytest.mark.ci
def test_pairing_and_clusters_decide_the_width() -> None:
    """Against the truth of a simulation: cases of one question are alike, and what both settings share cancels."""
    rng = numpy.random.default_rng(5)
    spread = numpy.std([compared(clusters(rng, 100), resamples=9).difference for _ in range(SIMULATIONS)])
    lo, hi = known(compared(clusters(rng, 100)).interval)

    assert (hi - lo) / (2 * 1.96) == pytest.approx(spread, rel=0.2)


def test_questions_that_all_agree_still_have_a_width_and_an_honest_p() -> None:
    for rows, p, is_above in (
        ([[1, 1, 1, 1]] * 20, 1.0, False),
        ([[0, 1, 1, 1]] * 2, matched_p(0, 2), False),
        ([[0, 3, 3, 3]] * 20, matched_p(0, 20), True),
    ):
        found = compared(numpy.array(rows))
        lo, hi = known(found.interval)

        assert lo < hi
        assert lo <= found.difference <= hi
        assert found.p == pytest.approx(p)
        assert (lo > 0) is is_above


def test_questions_without_cases_do_not_count_and_none_at_all_is_no_comparison() -> None:
    table = clusters(numpy.random.default_rng(6), 40)
    padded = numpy.vstack([table, numpy.zeros((25, 4), dtype=int)])

    assert compared(padded) == compared(table)
    assert compare({1: (1, 2)}, {1: (0, 0)}) is None
    assert compare({}, {}) is None


def test_the_order_of_the_questions_does_not_matter_and_the_same_cases_give_the_same_digits() -> None:
    table = clusters(numpy.random.default_rng(7), 90, effect=0.05)

    assert compared(table) == compared(table[::-1]) == compared(table)
    assert not math.isnan(known(compared(table).p))


TURN: JsonObject = {"of": "small-000000", "turn": "4/Abel/0/0", "agent": "Abel"}


def value(said: Sequence[float], drawn: Sequence[float]) -> JsonObject:
    """The value of a turn from figures of equal draws."""
    rolled = [
        Rollout(arm=arm, draw=draw, figure=figure, reply=f"{arm} {draw}")
        for arm, figures in ((SAID.name, said), (RESAMPLED.name, drawn))
        for draw, figure in enumerate(figures, 1)
    ]
    return value_of(rolled, [SAID.name, RESAMPLED.name], turn=TURN, figure="won", is_scripted=False)


def test_draws_are_compared_in_pairs_and_few_are_said_to_be_few() -> None:
    (pair,) = objects(value([1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0]), "differences")
    assert (pair["pairs"], pair["ahead"], pair["difference"]) == (6, [3, 1], 2 / 6)
    assert pair["p"] == matched_p(3, 1)
    for count, is_few in ((1, True), (3, True), (9, True), (10, False), (40, False)):
        assert ("rough" in str(value([1.0] * count, [0.0] * count)["notes"])) is is_few, count
