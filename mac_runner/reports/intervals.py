"""How far a rate counted on `n` cases may be from the true one."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """Both ends of a confidence interval of a rate, inside [0, 1]."""

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
