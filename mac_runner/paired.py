"""Figures of two experiments over the same clusters of cases, such as the questions that both were asked.

A figure is a ratio of two sums over the clusters, such as right answers out of all answers. The cases of a cluster
belong together, so whole clusters are resampled (A. C. Davison and D. V. Hinkley, Bootstrap Methods and their
Application, 1997, section 2.4). Pure functions that need numpy and SciPy, which are imported when they are called.
Every resampling has a fixed seed, so the same cases give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from mac_runner.comparisons import RESAMPLES, Array, mcnemar, percentiles
from mac_runner.intervals import Interval, matched_difference

Kind: TypeAlias = Literal["share", "balance", "score"]
"""What a ratio is: a share of cases; (a − b) of (a + b) cases; or a score that is no proportion at all."""

CLUSTERS_MIN: Final = 30
"""With fewer clusters than these, a bootstrap interval is too narrow."""
_SEED: Final = 20_001
_DRAWS_MAX: Final = 5_000_000
"""As many random counts are held at a time."""


class Odds(NamedTuple):
    """The odds ratio of two shares, the second's over the first's."""

    ratio: float
    interval: Interval | None
    is_corrected: bool
    """Whether half a case was added to each of the four counts, because one of them was 0 (Haldane and Anscombe)."""


class PairedRatio(NamedTuple):
    """How the second of two ratios differs from the first."""

    clusters: int
    cases: tuple[int, int]
    ratios: tuple[float, float]
    difference: float
    interval: Interval | None
    p: float
    """Twice the share of the resamples on the other side of no difference; in `interval` the same resamples."""
    cohens_h: float | None
    odds: Odds | None
    """These two are of proportions, so a score has neither."""


def paired_ratio(table: Array, *, kind: Kind, resamples: int = RESAMPLES) -> PairedRatio | None:
    """Compare two ratios; a row of `table` is a cluster with the sum and the cases of the first, then of the second.

    Clusters without a case do not count. None where one of the two has no case at all. Where no resample differs from
    another, the bootstrap says nothing: the interval is then Agresti and Min's for the clusters in which one of the
    two is ahead (`matched_difference`), and `p` is that of the sign test of these. One cluster alone has no interval.
    """
    import numpy

    table = numpy.asarray(table, dtype=numpy.int64).reshape(-1, 4)
    table = table[(table[:, 1] > 0) | (table[:, 3] > 0)]
    totals = table.sum(axis=0)
    if not len(table) or not (totals[1] and totals[3]):
        return None
    found = float(_differences(totals[None, :])[0])
    interval: Interval | None
    samples = numpy.vstack([*_resampled(table, resamples)])
    # A resample may have drawn no case of one of the two.
    samples = samples[(samples[:, 1] > 0) & (samples[:, 3] > 0)]
    differences = _differences(samples)
    if numpy.ptp(differences) > 1e-12:
        interval = percentiles(differences)
        signs = _signs(samples)
        least = min(int((signs <= 0).sum()), int((signs >= 0).sum()))
        p = min(1.0, 2 * (least + 1) / (len(samples) + 1))
    else:
        signs = _signs(table)
        ahead, behind = int((signs > 0).sum()), int((signs < 0).sum())
        exact = matched_difference(ahead, behind, len(table))
        assert exact is not None, "there is a cluster"
        scale = abs(found) or 1.0
        interval = Interval(min(found, scale * exact.lo), max(found, scale * exact.hi)) if len(table) > 1 else None
        p = mcnemar(ahead, behind)  # The sign test is the same.
    return PairedRatio(
        clusters=len(table),
        cases=(int(totals[1]), int(totals[3])),
        ratios=(float(totals[0] / totals[1]), float(totals[2] / totals[3])),
        difference=found,
        interval=interval,
        p=p,
        cohens_h=None if kind == "score" else _cohens_h(_counts(totals[None, :], kind)),
        odds=None if kind == "score" else _odds(_counts(totals[None, :], kind), _counts(samples, kind)),
    )


def adjusted(chances: Sequence[float]) -> list[float]:
    """The p of one family, adjusted for the rate of false discoveries (Y. Benjamini and Y. Hochberg, 1995)."""
    from scipy.stats import false_discovery_control

    return [float(each) for each in false_discovery_control(chances)] if chances else []


def _resampled(table: Array, resamples: int) -> Iterator[Array]:
    """The sums of each resample of clusters. Drawing clusters is drawing how often each distinct row comes."""
    import numpy

    rows, counts = numpy.unique(table, axis=0, return_counts=True)
    random, at_once = numpy.random.default_rng(_SEED), max(1, _DRAWS_MAX // len(rows))
    for begun in range(0, resamples, at_once):
        size = min(at_once, resamples - begun)
        yield random.multinomial(len(table), counts / len(table), size=size) @ rows


def _differences(sums: Array) -> Array:
    return sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]


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


def _cohens_h(counts: Array) -> float:
    """The difference of the arcsines of two shares (J. Cohen, 1988, chapter 6)."""
    import numpy

    one, not_one, other, not_other = counts[0]
    angles = [2 * numpy.arcsin(numpy.sqrt(yes / (yes + no))) for yes, no in ((one, not_one), (other, not_other))]
    return float(angles[1] - angles[0])


def _odds(counts: Array, samples: Array) -> Odds:
    """The odds ratio, with the percentiles of those of the resamples; None as interval where all are the same."""
    import numpy

    ratio, ratios = float(_odds_ratios(counts)[0]), _odds_ratios(samples)
    interval = percentiles(ratios) if numpy.ptp(ratios) > 1e-12 else None
    return Odds(ratio, interval, is_corrected=bool((counts == 0).any()))


def _odds_ratios(counts: Array) -> Array:
    counts = counts + 0.5 * (counts == 0).any(axis=1, keepdims=True)
    return counts[:, 2] * counts[:, 1] / (counts[:, 3] * counts[:, 0])
