"""Survival over time, of cases that come in games: Kaplan and Meier's estimate with bands by game, and log-rank.

Times are whole numbers, such as days. A case that was not seen to end is censored: it was alive up to its time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mac_runner.intervals import Interval, student_t, wilson


class Case(NamedTuple):
    """One case of a game: how long it was seen, and whether it ended then."""

    game: int | str
    time: int
    has_ended: bool


class SurvivalPoint(NamedTuple):
    """The share of cases that were alive after `time`."""

    time: int
    at_risk: int
    ended: int
    share: float
    interval: Interval | None


def survival(cases: Iterable[Case]) -> tuple[SurvivalPoint, ...]:
    """The share alive after each time at which a case ended or was censored (E. L. Kaplan and P. Meier, 1958).

    Cases of a game end together, so the variance of its logarithm is that of sums over games (Z. Ying and L. J. Wei,
    Journal of Multivariate Analysis 50 (1994), 17-29). The band is Student's on the scale of log(-log S). Where no case
    or every case has ended, each game counts as one case of a rate. One game has no band.
    """
    cases = [*cases]
    games = {game: place for place, game in enumerate(dict.fromkeys(case.game for case in cases))}
    by_time: defaultdict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_time[case.time].append(case)
    at_risk = [0] * len(games)
    for case in cases:
        at_risk[games[case.game]] += 1
    influence = [0.0] * len(games)
    points, share = list[SurvivalPoint](), 1.0
    for time in sorted(by_time):
        ended = [0] * len(games)
        for case in by_time[time]:
            ended[games[case.game]] += case.has_ended
        risk, deaths = sum(at_risk), sum(ended)
        hazard = deaths / risk
        if hazard < 1:
            for place in range(len(games)):
                influence[place] += (ended[place] - at_risk[place] * hazard) / (risk * (1 - hazard))
        share *= 1 - hazard
        points.append(SurvivalPoint(time, risk, deaths, share, _band(share, influence)))
        for case in by_time[time]:
            at_risk[games[case.game]] -= 1
    return tuple(points)


def _band(share: float, influence: Sequence[float]) -> Interval | None:
    """The interval of a share of survivors, from what each game adds to the logarithm."""
    games = len(influence)
    if games < 2:
        return None
    if share in (0.0, 1.0):
        return wilson(share * games, games)
    variance = games / (games - 1) * math.fsum(each * each for each in influence)
    if variance == 0:
        return None
    log = math.log(share)
    reach = student_t(games - 1) * math.sqrt(variance) / abs(log)
    # Beyond this the ends are 0 and 1 to the last digit.
    reach = min(reach, 50.0)
    return Interval(math.exp(log * math.exp(reach)), math.exp(log * math.exp(-reach)))


def log_rank(first: Sequence[Case], second: Sequence[Case]) -> float | None:
    """The p of the log-rank test that two groups survive alike. It takes cases to be independent.

    None where one of them has no case, or none that ended in either.
    """
    from scipy.stats import CensoredData, logrank

    if not first or not second or not any(case.has_ended for case in (*first, *second)):
        return None
    one, other = (
        CensoredData(
            uncensored=[case.time for case in cases if case.has_ended],
            right=[case.time for case in cases if not case.has_ended],
        )
        for cases in (first, second)
    )
    found = float(logrank(one, other).pvalue)
    return None if math.isnan(found) else found
