"""How far a rate counted on `n` cases may be from the true one.

The cases of one game depend on each other, so clustered sums take each game for one cluster. Where a deal is played
several times, its games depend on each other too: games that are counted under `one_cluster` with the same name, one
after the other, are one cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from typing import Final, NamedTuple

_CLUSTER: ContextVar[object | None] = ContextVar("cluster", default=None)


@contextmanager
def one_cluster(name: object | None) -> Iterator[None]:
    """What is counted inside belongs to the cluster with this name; with None, each game is a cluster of its own.

    The games of a cluster are counted one after the other, so that sums need not remember other clusters.
    """
    before = _CLUSTER.set(name)
    try:
        yield
    finally:
        _CLUSTER.reset(before)


def current_cluster() -> object | None:
    """The name of the cluster that is being counted (`one_cluster`)."""
    return _CLUSTER.get()


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    lo: float
    hi: float


def wilson(wins: float, n: float, *, confidence: float = 0.95) -> Interval | None:
    """The score interval of a binomial rate; None when n is 0, where nothing is known.

    `n` is the number of cases, or of as many independent ones as they are worth.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22 (1927), 209-212. Unlike the textbook's p ± z·sqrt(p(1-p)/n) it stays inside [0, 1]
    and has a width at rates of 0 and 1. It takes the cases to be independent.
    """
    if not 0 <= wins <= n:
        raise ValueError(f"{wins} wins of {n}: wins must lie between 0 and n")
    if n == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = wins / n
    shrink = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    half_width = z / shrink * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At a rate of 0 or 1 one end is exact, and rounding must not move the interval off the rate.
    return Interval(lo=max(0.0, min(rate, centre - half_width)), hi=min(1.0, max(rate, centre + half_width)))


def matched_difference(first: float, second: float, n: float, *, confidence: float = 0.95) -> Interval | None:
    """An interval of (first − second) / n, where each of n cases counts for one of the two or for neither.

    The counts are of cases, or of as many independent ones as they are worth.

    A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in
    Medicine 24 (2005), 729-740: Wald's interval after half a case has been added to each of four cells. None when n is
    0. It takes the cases to be independent.
    """
    if min(first, second) < 0 or first + second > n * (1 + 1e-9):
        raise ValueError(f"{first} and {second} of {n}: together they must lie between 0 and n")
    if n == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    one, other, cases = first + 0.5, second + 0.5, n + 2
    centre = (one - other) / cases
    half_width = z * math.sqrt(max(0.0, one + other - (one - other) ** 2 / cases)) / cases
    difference = (first - second) / n
    return Interval(
        lo=max(-1.0, min(difference, centre - half_width)), hi=min(1.0, max(difference, centre + half_width))
    )


def detectable_difference(variance: float, n: float, *, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The difference of two means that two groups of `n` independent cases each show with the given power.

    `variance` is that of a case. A two-sided test at `alpha`, by the normal approximation, without the chance to be
    significant on the wrong side (J. Cohen, Statistical Power Analysis, 2nd ed. 1988, section 2.3). None when n is 0.
    """
    if n <= 0:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    return z * math.sqrt(2 * variance / n)


def student_t(degrees: int, *, confidence: float = 0.95) -> float:
    """How far the middle `confidence` of Student's t distribution reaches to either side.

    By bisection over the finite sums for whole degrees of freedom (M. Abramowitz and I. A. Stegun, Handbook of
    Mathematical Functions, 1964, 26.7.3 and 26.7.4).
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: there must be one at least")
    if degrees > _T_IS_NORMAL:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    lo, hi = 0.0, 1.0
    while _t_within(hi, degrees) < confidence:
        lo, hi = hi, 2 * hi
    while (middle := (lo + hi) / 2) not in (lo, hi):
        lo, hi = (middle, hi) if _t_within(middle, degrees) < confidence else (lo, middle)
    return hi


_T_IS_NORMAL: Final = 10_000
"""Above so many degrees of freedom the normal distribution differs by less than 1 in 10,000."""


def _t_within(t: float, degrees: int) -> float:
    """The probability that Student's t is at most `t` from 0."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for step in range(1 + is_odd, degrees - 2, 2):
        term *= square * step / (step + 1)
        total += term
    within = math.sin(angle) * total
    return (angle + within) * 2 / math.pi if is_odd else within


def interval_of(values: Sequence[float]) -> Interval | None:
    """An interval of the mean of independent values: of a rate where all are 0 or 1. None where nothing is known."""
    is_rate = all(value in (0.0, 1.0) for value in values)
    return wilson(math.fsum(values), len(values)) if is_rate else mean_interval(values)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Student's interval of the mean of independent values.

    None for less than two, and for values that are all the same, which say nothing about how far others may be.
    """
    if len(set(values)) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half_width = student_t(len(values) - 1, confidence=confidence) * math.sqrt(variance / len(values))
    return Interval(lo=mean - half_width, hi=mean + half_width)


@dataclass(slots=True)
class _Clustered:
    """Cases that come in games, and what they come to, as sums over the clusters.

    Its memory does not grow with the number of games, and their order does not matter.
    """

    n: int = 0
    total: int | Fraction = 0
    games: int = 0
    clusters: int = 0
    """As many as games, but where `one_cluster` holds several of them."""
    _totals_squared: int | Fraction = 0
    _total_times_n: int | Fraction = 0
    _n_squared: int = 0
    _last: tuple[object | None, int | Fraction, int] = (None, 0, 0)
    """The name and the sums of the last cluster."""

    def _add(self, total: int | Fraction, n: int) -> None:
        """Count a game with `n` cases that come to `total`; a game without any is not counted."""
        if n == 0:
            return
        self.n += n
        self.total += total
        self.games += 1
        self.clusters += 1
        if (name := _CLUSTER.get()) is not None:
            last, before, n_before = self._last
            if last == name:
                self.clusters -= 1
                self._totals_squared -= before * before
                self._total_times_n -= before * n_before
                self._n_squared -= n_before * n_before
                total, n = total + before, n + n_before
            self._last = name, total, n
        self._totals_squared += total * total
        self._total_times_n += total * n
        self._n_squared += n * n


@dataclass(slots=True)
class ClusteredRate(_Clustered):
    """A rate over cases that come in games, whose cases win and lose together."""

    @property
    def wins(self) -> int:
        """The cases that were won."""
        return int(self.total)

    def add(self, total: int, n: int) -> None:
        """Count a game with `n` cases, of which `total` were won; a game without any is not counted."""
        if not 0 <= total <= n:
            raise ValueError(f"{total} wins of {n}: wins must lie between 0 and n")
        self._add(total, n)

    @property
    def cases_worth(self) -> float:
        """How many independent cases the cases are worth: n divided by the design effect; never more than n.

        The variance is that of a ratio estimated from clusters (W. G. Cochran, Sampling Techniques, 3rd ed. 1977,
        section 9A.1). One cluster, or clusters that all went one way, say nothing about it: each then counts as one
        case.
        """
        if self.clusters < 2 or self.wins in (0, self.n):
            return float(self.clusters)
        rate = self.wins / self.n
        squares = self._totals_squared - 2 * rate * self._total_times_n + rate * rate * self._n_squared
        variance = self.clusters / (self.clusters - 1) * max(0.0, squares) / self.n**2
        return min(float(self.n), rate * (1 - rate) / variance) if variance > 0 else float(self.n)

    @property
    def interval(self) -> Interval | None:
        """Wilson's interval over as many cases as these are worth (E. L. Korn and B. I. Graubard, 1998)."""
        if self.n == 0:
            return None
        worth = self.cases_worth
        return wilson(self.wins / self.n * worth, worth)


@dataclass(slots=True)
class ClusteredMean(_Clustered):
    """A mean per case over cases that come in games."""

    def add(self, total: int, n: int) -> None:
        """Count a game with `n` cases that come to `total`; a game without any is not counted."""
        self._add(total, n)

    @property
    def interval(self) -> Interval | None:
        """The normal interval of a ratio estimated from clusters (W. G. Cochran 1977, section 9A.1).

        None for less than two clusters, which say nothing about how clusters differ.
        """
        if self.clusters < 2:
            return None
        # In whole numbers: a small difference of large squares is lost in floating point.
        squares = self._totals_squared * self.n**2 - 2 * self.total * self.n * self._total_times_n
        squares += self.total**2 * self._n_squared
        variance = self.clusters / (self.clusters - 1) * (squares / self.n**4)
        half_width = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
        mean = self.total / self.n
        return Interval(lo=mean - half_width, hi=mean + half_width)


@dataclass(slots=True)
class ClusteredDifference(_Clustered):
    """(first − second) / n over cases that come in games, and each case counts for one of the two or for neither."""

    first: int = 0
    second: int = 0

    def add(self, first: int, second: int, n: int) -> None:
        """Count a game with `n` cases, `first` of them for the one and `second` for the other."""
        self._add(first - second, n)
        self.first += first
        self.second += second

    @property
    def cases_worth(self) -> float:
        """How many independent cases the cases are worth, as in `ClusteredRate`."""
        difference = self.total / self.n if self.n else 0.0
        spread = (self.first + self.second) / self.n - difference**2 if self.n else 0.0
        if self.clusters < 2 or spread <= 0:
            return float(self.clusters)
        squares = (
            self._totals_squared - 2 * difference * self._total_times_n + difference * difference * self._n_squared
        )
        variance = self.clusters / (self.clusters - 1) * max(0.0, squares) / self.n**2
        return min(float(self.n), spread / variance) if variance > 0 else float(self.n)

    @property
    def interval(self) -> Interval | None:
        """The interval of matched proportions over as many cases as these are worth."""
        if self.n == 0:
            return None
        share = self.cases_worth / self.n
        return matched_difference(self.first * share, self.second * share, self.cases_worth)


@dataclass(slots=True)
class ExactMean:
    """The mean of the values of conversations. Its sums are exact, so their order does not matter.

    The values are independent, but for those that are counted in `one_cluster`.
    """

    n: int = 0
    truths: int = 0
    """How many of the values are truth values."""
    least: float | None = None
    most: float | None = None
    _total: int | Fraction = 0
    _squares: int | Fraction = 0
    _clustered: ExactClusteredMean | None = None
    _truths: ClusteredRate = field(default_factory=ClusteredRate)

    def add(self, value: float) -> None:
        """Count a finite number, or a truth value as 0 or 1."""
        if _CLUSTER.get() is not None:
            self._clustered = self._clustered or ExactClusteredMean()
            self._clustered.add([value])
            self._truths.add(int(value is True), 1)
        exact = int(value) if isinstance(value, int) else Fraction(value)
        self.n += 1
        self.truths += isinstance(value, bool)
        self._total += exact
        self._squares += exact * exact
        # With a sign before it, a truth value among numbers is a number too.
        self.least = +value if self.least is None else min(self.least, +value)
        self.most = +value if self.most is None else max(self.most, +value)

    @property
    def is_rate(self) -> bool:
        """Whether all values are truth values."""
        return self.n > 0 and self.truths == self.n

    @property
    def mean(self) -> float | None:
        """None without a value."""
        return float(Fraction(self._total) / self.n) if self.n else None

    @property
    def interval(self) -> Interval | None:
        """Wilson's interval of a rate, else Student's; None for one value, and for values that are all the same."""
        if self._clustered is not None:
            return self._truths.interval if self.is_rate else self._clustered.interval
        if self.is_rate:
            return wilson(int(self._total), self.n)
        if self.n < 2 or self.least == self.most:
            return None
        mean = Fraction(self._total) / self.n
        variance = (self._squares - self.n * mean * mean) / (self.n - 1)
        return _around(mean, variance / self.n, self.n - 1)


@dataclass(slots=True)
class ExactClusteredMean(_Clustered):
    """A mean per case over cases that come in games, of numbers of any size.

    The sums are exact, so the order of games does not matter and no difference is lost to rounding.
    """

    def add(self, values: Sequence[float]) -> None:
        """Count the values of one game; a game without any is not counted."""
        self._add(sum((Fraction(value) for value in values), start=Fraction(0)), len(values))

    @property
    def mean(self) -> float | None:
        """None without a case."""
        return float(Fraction(self.total) / self.n) if self.n else None

    @property
    def interval(self) -> Interval | None:
        """Student's interval of a ratio estimated from clusters (W. G. Cochran 1977, section 9A.1).

        With one case in each cluster it is that of `mean_interval`. None for less than two clusters, and for clusters
        that do not differ, which say nothing about how far others may be; None too beyond the range of a float.
        """
        if self.clusters < 2:
            return None
        squares = self._totals_squared * self.n**2 - 2 * self.total * self.n * self._total_times_n
        squares += self.total**2 * self._n_squared
        if not squares:
            return None
        variance = Fraction(self.clusters, self.clusters - 1) * Fraction(squares) / self.n**4
        return _around(Fraction(self.total) / self.n, variance, self.clusters - 1)


def _around(mean: Fraction, variance: Fraction, degrees: int) -> Interval | None:
    """Student's interval of a mean with this variance; None beyond the range of a float."""
    try:
        half_width = student_t(degrees) * math.sqrt(variance)
    except OverflowError:
        return None
    return Interval(lo=float(mean) - half_width, hi=float(mean) + half_width)
