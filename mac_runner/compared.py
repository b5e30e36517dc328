"""How one figure differs between two groups of conversations: a difference, its interval, and the p of the same test.

A group is the sums of a figure by cluster: for each question, deal or conversation, what it comes to and on how many
cases, such as right answers of all answers. The caller names the clusters. Groups that share clusters are compared in
pairs (`compare`), others as independent ones (`compare_apart`).

Resampling needs numpy, the adjustment of p and means need SciPy; both are imported when they are called. Every
resampling has a fixed seed, so the same cases give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from mac_runner.intervals import ClusteredRate, Interval

Array: TypeAlias = Any
"""A numpy array; numpy is not there where the types are checked."""
Sums: TypeAlias = Mapping[Any, tuple[int, int]]
"""By the name of a cluster, the sum and the cases."""
Kind: TypeAlias = Literal["share", "balance", "score"]
"""What a ratio is: a share of cases; (a − b) of (a + b) cases; or a score that is no proportion at all."""
K = TypeVar("K")
Test: TypeAlias = Literal["score", "bootstrap", "student", "newcombe", "welch"]

RESAMPLES: Final = 10_000
CLUSTERS_MIN: Final = 30
"""With fewer clusters than these, a bootstrap interval is too narrow."""
_SEED: Final = 20_001
_DRAWS_MAX: Final = 5_000_000
"""As many random counts are held at a time."""
_Z: Final = NormalDist().inv_cdf(0.975)
_STEPS: Final = 60
"""Bisections, which is beyond the digits of a float."""


def has_stats() -> bool:
    """Whether what this module needs is installed."""
    return find_spec("scipy") is not None


def libraries() -> dict[str, str]:
    """The versions of the libraries that made the numbers, on which the last digits may depend."""
    return {name: str(import_module(name).__version__) for name in ("numpy", "scipy")}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How the second of two groups differs from the first.

    `n` counts the clusters that both have, or those of the smaller group. `interval` and `p` are of the same `test`;
    `q` is `p` adjusted over its family. Effect sizes are of two proportions, and None where they are not asked for.
    """

    n: int
    cases: tuple[int, int]
    values: tuple[float, float]
    difference: float
    interval: Interval | None
    ahead: tuple[int, int] | None = None
    """In how many clusters the first is ahead, and the second; None where nothing is paired."""
    test: Test
    p: float | None
    q: float | None = None
    cohens_h: float | None = None
    """The difference of the arcsines (J. Cohen, 1988, chapter 6)."""
    odds_ratio: float | None = None
    odds_interval: Interval | None = None
    is_odds_corrected: bool = False
    """Whether half a case was added to each of the four counts, because one of them was 0 (Haldane and Anscombe)."""


def compare(
    first: Sums, second: Sums, *, kind: Kind = "share", resamples: int = RESAMPLES, has_effects: bool = False
) -> Comparison | None:
    """Compare two ratios over the clusters that both have. None where one of the two has no case in them.

    Where each cluster is one yes or no in both, it is a pair of truth values, and the test is the score test of matched
    proportions. Else whole clusters are resampled (A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
    Application, 1997, section 2.4). Where no resample differs from another, the bootstrap says nothing: then it is the
    score test of the clusters in which one of the two is ahead. One cluster alone has no interval.
    """
    import numpy

    table = _table(first, second)
    totals = [int(total) for total in table.sum(axis=0)] if len(table) else [0] * 4
    if not (totals[1] and totals[3]):
        return None
    n, signs = len(table), _signs(table)
    ahead = int((signs < 0).sum()), int((signs > 0).sum())
    values = totals[0] / totals[1], totals[2] / totals[3]
    difference = values[1] - values[0]
    is_pairs, has_effects = kind == "share" and _is_truths(table), has_effects and kind != "score"
    drawn = table
    if has_effects or not is_pairs:
        rows, counts = numpy.unique(table, axis=0, return_counts=True)
        drawn = _with_cases(resampled(rows, counts, resamples))
    samples = _with_cases(table) if is_pairs else drawn
    differences = samples[:, 2] / samples[:, 3] - samples[:, 0] / samples[:, 1]
    interval: Interval | None
    test: Test
    if is_pairs or numpy.ptp(differences) <= 1e-12:
        scale = 1.0 if is_pairs else abs(difference) or 1.0
        matched = matched_interval(*ahead, n)
        interval = Interval(min(difference, scale * matched.lo), max(difference, scale * matched.hi)) if n > 1 else None
        p, test = matched_p(*ahead), "score"
    else:
        interval = percentiles(differences)
        beyond = _signs(samples)
        least = min(int((beyond <= 0).sum()), int((beyond >= 0).sum()))
        p, test = min(1.0, 2 * (least + 1) / (len(samples) + 1)), "bootstrap"
    return Comparison(
        n=n,
        cases=(totals[1], totals[3]),
        values=values,
        difference=difference,
        interval=interval,
        p=p,
        test=test,
        ahead=ahead,
        **(_effects(table, drawn, kind) if has_effects else {}),
    )


def how_paired(unit: str, tests: Collection[Test]) -> str:
    """What interval and p of paired comparisons are from, in words; `tests` are those of the rows that are shown."""
    score, bootstrap = "the score test of pairs (McNemar, Tango)", f"the bootstrap over {unit}s"
    if "student" in tests:
        return "Student's t of the paired differences of means"
    if "score" in tests and "bootstrap" in tests:
        return f"{score} where a {unit} is one yes or no, else {bootstrap} ({RESAMPLES:,} resamples)"
    return score if "score" in tests else f"{bootstrap} ({RESAMPLES:,} resamples)"


def how_apart(tests: Collection[Test]) -> str:
    """The same of independent ones."""
    if "welch" in tests:
        return "Welch's t of their means"
    return (
        "Newcombe's interval (1998, method 10) from the interval of each rate, and the score test over effective cases"
    )


def matched_p(first: int, second: int) -> float:
    """The score test of pairs of truth values, from how often each of the two holds alone (Q. McNemar, 1947).

    Without a correction for continuity: M. W. Fagerland, S. Lydersen and P. Laake, "The McNemar test for binary
    matched-pairs data", BMC Medical Research Methodology 13 (2013), find that it keeps its level where the exact test
    is far below it.
    """
    return 2 * NormalDist().cdf(-abs(second - first) / math.sqrt(first + second)) if first + second else 1.0


def matched_interval(first: int, second: int, n: int) -> Interval:
    """The interval of (second − first) / n of n pairs that the same test does not reject; n must be above 0.

    T. Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998), 891-908.
    """

    def score(difference: float) -> float:
        b = (2 * n - second + first) * difference - (first + second)
        c = -first * difference * (1 - difference)
        held = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        """The likeliest chance that the first alone holds, given the difference."""
        variance = n * (2 * held + difference * (1 - difference))
        distance = second - first - n * difference
        return math.copysign(math.inf, distance) if variance <= 0 else distance / math.sqrt(variance)

    found = (second - first) / n
    # The score falls from one end to the other.
    return Interval(_last(score, -1.0, found, _Z), _last(score, found, 1.0, -_Z))


def _last(score: Callable[[float], float], lo: float, hi: float, wanted: float) -> float:
    for _ in range(_STEPS):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if score(middle) > wanted else (lo, middle)
    return (lo + hi) / 2


def compare_apart(first: ClusteredRate, second: ClusteredRate) -> Comparison | None:
    """Compare two independent rates over cases that come in clusters; None where one has no case.

    The interval is R. G. Newcombe's (Statistics in Medicine 17 (1998), 873-890, method 10) from the interval of each
    rate; `p` is that of the score test of as many independent cases as they are worth.
    """
    one, other = first.interval, second.interval
    if one is None or other is None:
        return None
    values = first.wins / first.n, second.wins / second.n
    difference = values[1] - values[0]
    below = math.hypot(values[1] - other.lo, one.hi - values[0])
    above = math.hypot(other.hi - values[1], values[0] - one.lo)
    return Comparison(
        n=min(first.games, second.games),
        cases=(first.n, second.n),
        values=values,
        difference=difference,
        interval=Interval(max(-1.0, difference - below), min(1.0, difference + above)),
        p=_score_test(values, (first.cases_worth, second.cases_worth)),
        test="newcombe",
    )


def _score_test(rates: tuple[float, float], worth: tuple[float, float]) -> float:
    pooled = (rates[0] * worth[0] + rates[1] * worth[1]) / sum(worth)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / worth[0] + 1 / worth[1]))
    return 1.0 if spread == 0 else 2 * NormalDist().cdf(-abs(rates[1] - rates[0]) / spread)


def compare_means(
    first: Mapping[Any, tuple[float, int]], second: Mapping[Any, tuple[float, int]], *, is_paired: bool
) -> Comparison | None:
    """Compare two means over clusters, each of which counts with the mean of its own cases: by Student's t.

    Independent ones by Welch's. None where one has no case; without a spread there is no interval and no p.
    """
    from scipy.stats import ttest_ind, ttest_rel

    shared = [cluster for cluster in first if cluster in second] if is_paired else []
    clusters = (shared, shared) if is_paired else ([*first], [*second])
    one, other = (
        [each[cluster][0] / each[cluster][1] for cluster in chosen if each[cluster][1]]
        for each, chosen in zip((first, second), clusters, strict=True)
    )
    if not one or not other:
        return None
    differences = [b - a for a, b in zip(one, other, strict=False)]
    interval, p = None, None
    if min(len(one), len(other)) > 1 and len(set(differences if is_paired else [*one, *other])) > 1:
        test = ttest_rel(other, one) if is_paired else ttest_ind(other, one, equal_var=False)
        lo, hi = test.confidence_interval(0.95)
        interval, p = Interval(float(lo), float(hi)), float(test.pvalue)
    values = math.fsum(one) / len(one), math.fsum(other) / len(other)
    ahead = sum(each < 0 for each in differences), sum(each > 0 for each in differences)
    return Comparison(
        n=min(len(one), len(other)),
        cases=(len(one), len(other)),
        values=values,
        difference=values[1] - values[0],
        interval=interval,
        p=p,
        test="student" if is_paired else "welch",
        ahead=ahead if is_paired else None,
    )


def with_q(family: Mapping[K, Comparison | None]) -> dict[K, Comparison]:
    """A family of comparisons, each with its `q`; without those that had nothing to compare.

    It is p adjusted for the rate of false discoveries (Y. Benjamini and Y. Hochberg, 1995).
    """
    from scipy.stats import false_discovery_control

    found = {key: one for key, one in family.items() if one is not None}
    chances = {key: one.p for key, one in found.items() if one.p is not None}
    adjusted = false_discovery_control([*chances.values()]) if chances else ()
    for key, q in zip(chances, adjusted, strict=True):
        found[key] = msgspec.structs.replace(found[key], q=float(q))
    return found


def _effects(table: Array, samples: Array, kind: Kind) -> dict[str, Any]:
    """The effect sizes of two ratios by cluster, and what they are in resamples."""
    import numpy

    counts = _counts(table.sum(axis=0)[None, :], kind)
    ratios = _odds_ratios(_counts(samples, kind))
    one, not_one, other, not_other = counts[0]
    angles = [2 * numpy.arcsin(numpy.sqrt(yes / (yes + no))) for yes, no in ((one, not_one), (other, not_other))]
    return {
        "cohens_h": float(angles[1] - angles[0]),
        "odds_ratio": float(_odds_ratios(counts)[0]),
        "odds_interval": percentiles(ratios) if numpy.ptp(ratios) > 1e-12 else None,
        "is_odds_corrected": bool((counts == 0).any()),
    }


def percentiles(values: Array) -> Interval:
    """The middle 95 % of resampled values."""
    import numpy

    return Interval(*(float(end) for end in numpy.quantile(values, (0.025, 0.975))))


def _table(first: Sums, second: Sums) -> Array:
    """A row for each cluster that both have, with the sum and the cases of the first, then of the second.

    Rows without a case are left out; the order of the clusters does not matter.
    """
    import numpy

    shared = sorted((*first[cluster], *second[cluster]) for cluster in first if cluster in second)
    table = numpy.asarray(shared, dtype=numpy.int64).reshape(-1, 4)
    return table[(table[:, 1] > 0) | (table[:, 3] > 0)]


def _is_truths(table: Array) -> bool:
    """Whether each cluster is all or nothing, of as many cases everywhere: then more cases than one say no more."""
    cases = table[:, (1, 3)]
    hits = table[:, (0, 2)]
    return bool((cases == cases[0, 0]).all() and ((hits == 0) | (hits == cases)).all())


def resampled(rows: Array, counts: Array, resamples: int) -> Array:
    """The sums of each resample of clusters, `counts` of which have the same row: a sum for each column.

    Drawing clusters is drawing how often each distinct row comes.
    """
    import numpy

    clusters = int(counts.sum())
    random, at_once = numpy.random.default_rng(_SEED), max(1, _DRAWS_MAX // len(rows))
    sizes = [min(at_once, resamples - begun) for begun in range(0, resamples, at_once)]
    return numpy.vstack([random.multinomial(clusters, counts / clusters, size=size) @ rows for size in sizes])


def _with_cases(sums: Array) -> Array:
    """Those in which both have a case; a resample may have drawn none of one of the two."""
    return sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]


def _signs(sums: Array) -> Array:
    """The sign of each difference, in whole numbers; 0 where one of the two has no case."""
    import numpy

    return numpy.sign(sums[:, 2] * sums[:, 1] - sums[:, 0] * sums[:, 3])


def _counts(sums: Array, kind: Kind) -> Array:
    """For each row how often it holds and does not, of the first and of the second."""
    import numpy

    one, n_one, other, n_other = sums.T
    if kind == "balance":
        one, other = (one + n_one) // 2, (other + n_other) // 2
    return numpy.stack([one, n_one - one, other, n_other - other], axis=1).astype(float)


def _odds_ratios(counts: Array) -> Array:
    counts = counts + 0.5 * (counts == 0).any(axis=1, keepdims=True)
    return counts[:, 2] * counts[:, 1] / (counts[:, 3] * counts[:, 0])
