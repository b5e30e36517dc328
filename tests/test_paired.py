"""Paired ratios, held against resamplings written out, tables of statsmodels, and simulations with a known truth."""

from __future__ import annotations

import math

import numpy
import pandas
import pytest
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import Table2x2, mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_effectsize

from mac_runner import comparisons, paired
from mac_runner.comparisons import Array
from mac_runner.intervals import Interval

SIMULATIONS = 1_000


def clusters(rng: numpy.random.Generator, n: int, *, effect: float = 0.0, size: int = 3) -> Array:
    """Right answers of `size` in each of two settings; how hard a question is, both share."""
    hard = rng.uniform(0.1, 0.8, n)
    first, second = rng.binomial(size, hard), rng.binomial(size, numpy.clip(hard + effect, 0, 1))
    cases = numpy.full(n, size)
    return numpy.stack([first, cases, second, cases], axis=1)


def compared(table: Array, *, kind: paired.Kind = "share", resamples: int = 10_000) -> paired.PairedRatio:
    found = paired.paired_ratio(table, kind=kind, resamples=resamples)
    assert found is not None
    return found


def interval_of(found: paired.PairedRatio) -> Interval:
    assert found.interval is not None
    return found.interval


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
    assert found.clusters == 80
    assert [*interval_of(found)] == pytest.approx(numpy.quantile(differences, (0.025, 0.975)), abs=0.006)
    assert found.odds is not None
    assert found.odds.interval is not None
    assert [*found.odds.interval] == pytest.approx(numpy.quantile(odds, (0.025, 0.975)), rel=0.04)
    beyond = 2 * min(numpy.mean([d <= 0 for d in differences]), numpy.mean([d >= 0 for d in differences]))
    assert found.p == pytest.approx(beyond, abs=0.01)


def test_effect_sizes_and_adjusted_p_are_those_of_statsmodels() -> None:
    table = clusters(numpy.random.default_rng(2), 60, effect=0.15)
    found, (one, n, two, m) = compared(table), table.sum(axis=0)
    expected = Table2x2([[two, m - two], [one, n - one]])

    assert found.cohens_h == pytest.approx(proportion_effectsize(two / m, one / n))
    assert found.odds is not None
    assert found.odds.ratio == pytest.approx(expected.oddsratio)
    assert not found.odds.is_corrected
    chances = [0.001, 0.04, 0.03, 0.5, 0.2]
    assert paired.adjusted(chances) == pytest.approx(multipletests(chances, method="fdr_bh")[1])
    for pair in ((0, 0), (3, 9), (5, 0), (7, 8)):
        assert comparisons.mcnemar(*pair) == pytest.approx(mcnemar([[4, pair[0]], [pair[1], 4]], exact=True).pvalue)


def test_a_count_of_zero_is_corrected_and_said() -> None:
    table = numpy.array([[1, 1, 1, 1]] * 9 + [[0, 1, 1, 1]] * 3)
    odds = compared(table).odds

    assert odds is not None
    assert odds.is_corrected
    assert odds.ratio == pytest.approx((12.5 / 0.5) / (9.5 / 3.5))


def test_a_balance_is_compared_as_a_share() -> None:
    """s_DIS is 2 · share − 1, so its odds are those of the share and its difference is twice that of the share."""
    rng = numpy.random.default_rng(3)
    shares = clusters(rng, 50, effect=-0.1)
    balances = shares.copy()
    balances[:, 0], balances[:, 2] = 2 * shares[:, 0] - 3, 2 * shares[:, 2] - 3
    share, balance = compared(shares), compared(balances, kind="balance")

    assert balance.difference == pytest.approx(2 * share.difference)
    assert balance.cohens_h == pytest.approx(share.cohens_h)
    assert balance.odds is not None
    assert share.odds is not None
    assert balance.odds.ratio == pytest.approx(share.odds.ratio)
    assert compared(balances, kind="score").odds is None


@pytest.mark.ci
def test_interval_covers_the_truth_and_no_effect_is_rarely_significant() -> None:
    """Simulated coverage of 95 % intervals: 93 to 97 %; and about 5 % of p below 0.05 without an effect."""
    rng, effect, covered, significant = numpy.random.default_rng(4), 0.08, 0, 0
    for _ in range(SIMULATIONS):
        interval = interval_of(compared(clusters(rng, 120, effect=effect), resamples=999))
        covered += interval.lo <= effect <= interval.hi
        significant += compared(clusters(rng, 120), resamples=999).p < 0.05

    assert 0.93 <= covered / SIMULATIONS <= 0.97
    assert binomtest(significant, SIMULATIONS, 0.05).pvalue > 0.001


@pytest.mark.ci
def test_pairing_and_clusters_decide_the_width() -> None:
    """Against the truth of a simulation: cases of one question are alike, and what both settings share cancels."""
    rng = numpy.random.default_rng(5)
    spread = numpy.std([compared(clusters(rng, 100), resamples=9).difference for _ in range(SIMULATIONS)])
    interval = interval_of(compared(clusters(rng, 100)))

    assert (interval.hi - interval.lo) / (2 * 1.96) == pytest.approx(spread, rel=0.2)


def test_questions_that_all_agree_still_have_a_width_and_an_honest_p() -> None:
    for rows, p, is_above in (
        ([[1, 1, 1, 1]] * 20, 1.0, False),
        ([[0, 1, 1, 1]] * 2, 0.5, False),
        ([[0, 1, 1, 1]] * 20, 2 * 0.5**20, True),
    ):
        found = compared(numpy.array(rows))
        interval = interval_of(found)

        assert interval.lo < interval.hi
        assert interval.lo <= found.difference <= interval.hi
        assert found.p == pytest.approx(p)
        assert (interval.lo > 0) is is_above


def test_questions_without_cases_do_not_count_and_none_at_all_is_no_comparison() -> None:
    table = clusters(numpy.random.default_rng(6), 40)
    padded = numpy.vstack([table, numpy.zeros((25, 4), dtype=int)])

    assert compared(padded) == compared(table)
    assert paired.paired_ratio(numpy.array([[1, 2, 0, 0]]), kind="share") is None
    assert paired.paired_ratio(numpy.zeros((0, 4)), kind="share") is None


def test_the_order_of_the_questions_does_not_matter_and_the_same_cases_give_the_same_digits() -> None:
    table = clusters(numpy.random.default_rng(7), 90, effect=0.05)

    assert compared(table) == compared(table[::-1]) == compared(table)
    assert not math.isnan(compared(table).p)
