"""How far a rate counted on `n` cases may be from the true one."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    lo: float
    hi: float


def wilson(wins: int, n: int, *, confidence: float = 0.95) -> Interval | None:
    """The score interval of a binomial rate; None when n is 0, where nothing is known.

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


def matched_difference(first: int, second: int, n: int, *, confidence: float = 0.95) -> Interval | None:
    """An interval of (first − second) / n, where each of n cases counts for one of the two or for neither.

    A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in
    Medicine 24 (2005), 729-740: Wald's interval after half a case has been added to each of four cells. None when n is
    0. It takes the cases to be independent.
    """
    if min(first, second) < 0 or first + second > n:
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
