"""Differences of two groups: paired where both had the same deals or questions, else between independent groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TypeVar

from mac_runner.comparisons import common_deals, paired_difference
from mac_runner.intervals import ClusteredRate, Interval
from mac_runner.paired import Kind, adjusted, paired_ratio

_Deal = TypeVar("_Deal")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDifference:
    """How much a rate of the second group is above that of the first.

    `n` counts the pairs, or the units of the smaller group. `q` is `p` adjusted over its family.
    """

    n: int
    is_paired: bool
    value: float
    interval: Interval | None
    p: float | None
    q: float | None = None


def rate_difference(first: ClusteredRate, second: ClusteredRate) -> RateDifference | None:
    """The difference of two independent rates over cases that come in games; None where one has no case.

    The interval is R. G. Newcombe's (Statistics in Medicine 17 (1998), 873-890, method 10) from the interval of each
    rate; `p` is that of the score test of as many independent cases as they are worth.
    """
    one, other = first.interval, second.interval
    if one is None or other is None:
        return None
    rates = first.wins / first.n, second.wins / second.n
    difference = rates[1] - rates[0]
    below = math.hypot(rates[1] - other.lo, one.hi - rates[0])
    above = math.hypot(other.hi - rates[1], rates[0] - one.lo)
    return RateDifference(
        n=min(first.games, second.games),
        is_paired=False,
        value=difference,
        interval=Interval(max(-1.0, difference - below), min(1.0, difference + above)),
        p=_score_test(rates, (first.cases_worth, second.cases_worth)),
    )


def _score_test(rates: tuple[float, float], worth: tuple[float, float]) -> float:
    pooled = (rates[0] * worth[0] + rates[1] * worth[1]) / sum(worth)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / worth[0] + 1 / worth[1]))
    return 1.0 if spread == 0 else 2 * NormalDist().cdf(-abs(rates[1] - rates[0]) / spread)


def won_difference(first: dict[int, int], second: dict[int, int]) -> RateDifference | None:
    """How much more of the shared deals the second has won: by deal, 1 or 0. None where they share none.

    Interval and `p` are those of `comparisons.paired_difference`: a bootstrap over deals, and McNemar's exact test.
    """
    here, there = common_deals([*first], [*second])
    if not len(here):
        return None
    wins = [*first.values()], [*second.values()]
    found = paired_difference([wins[1][place] for place in there], [wins[0][place] for place in here])
    return RateDifference(
        n=found.deals, is_paired=True, value=found.difference, interval=found.interval, p=float(found.p)
    )


def ratio_difference(
    first: Mapping[_Deal, tuple[int, int]], second: Mapping[_Deal, tuple[int, int]], *, kind: Kind = "share"
) -> RateDifference | None:
    """How a ratio of sums differs over the deals that two groups share: by deal, the sum and the cases."""
    shared = [(*first[deal], *second[deal]) for deal in first if deal in second]
    found = paired_ratio(shared, kind=kind) if shared else None
    if found is None:
        return None
    return RateDifference(
        n=found.clusters, is_paired=True, value=found.difference, interval=found.interval, p=float(found.p)
    )


def with_q(family: Sequence[RateDifference | None]) -> list[RateDifference | None]:
    """A family of differences, each `p` adjusted for the rate of false discoveries over all of them."""
    chances = [one.p for one in family if one is not None and one.p is not None]
    found = iter(adjusted(chances))
    return [one if one is None or one.p is None else replace(one, q=next(found)) for one in family]
