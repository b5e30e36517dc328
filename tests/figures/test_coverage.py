"""Simulated studies: 95 % intervals of figures hold the truth in 95 % of them, although cases come in games.

`MAC_RUNNER_TEST_SCALE` plays so many times more studies, which the nightly run does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

import pytest

from mac_runner.compared import Sums, compare, compare_apart
from mac_runner.figures.testing import Case, survival
from mac_runner.intervals import ClusteredRate, Interval, wilson
from tests.faults.tier import SCALE
from tests.kit import known

STUDIES: Final = 250 * SCALE
GAMES: Final = 40
LEAST, MOST = 0.93, 0.97
NOISE: Final = 3.3 * math.sqrt(0.95 * 0.05 / STUDIES)
"""How far the coverage of this many studies lies from the true one, once in a thousand."""


class Share:
    """How many intervals held the truth."""

    def __init__(self, truth: float) -> None:
        self.truth, self.held, self.n = truth, 0, 0

    def see(self, interval: Interval | None) -> None:
        """Count an interval."""
        lo, hi = known(interval)
        self.n += 1
        self.held += lo <= self.truth <= hi

    def is_right(self) -> bool:
        """Whether the coverage can be one of 93 to 97 %."""
        return LEAST - NOISE <= self.held / self.n <= MOST + NOISE


def team_game(chance: Random) -> tuple[int, int]:
    """The wins and players of a team, whose players win together."""
    players = chance.randint(4, 7)
    return players * (chance.random() < 0.4), players


def discussion(chance: Random) -> tuple[int, int]:
    """The right answers of four speakers, who read each other."""
    easy = chance.betavariate(0.6, 0.9)
    return sum(chance.random() < easy for _ in range(4)), 4


def votes_of_game(chance: Random) -> tuple[int, int]:
    """Right votes of a game with few or many votes."""
    skill = chance.betavariate(2, 3)
    n = chance.randint(1, 12)
    return sum(chance.random() < skill for _ in range(n)), n


def rate_of(game: Callable[[Random], tuple[int, int]], chance: Random) -> ClusteredRate:
    rate = ClusteredRate()
    for _ in range(GAMES):
        rate.add(*game(chance))
    return rate


@pytest.mark.parametrize("game", [team_game, discussion, votes_of_game])
def test_interval_of_a_rate_covers_while_one_over_single_cases_does_not(
    game: Callable[[Random], tuple[int, int]],
) -> None:
    chance = Random(f"rate {game.__name__}")
    clustered, naive = Share(0.4), Share(0.4)
    for _ in range(2 * STUDIES):
        rate = rate_of(game, chance)
        clustered.see(rate.interval)
        naive.see(wilson(rate.wins, rate.n))

    assert clustered.is_right(), clustered.held / clustered.n
    assert not naive.is_right(), naive.held / naive.n


def test_interval_of_a_difference_of_independent_groups_covers() -> None:
    chance, found = Random("unpaired"), Share(0.0)
    for _ in range(STUDIES):
        one, other = rate_of(team_game, chance), rate_of(discussion, chance)
        found.see(known(compare_apart(one, other)).interval)

    assert found.is_right(), found.held / found.n


@pytest.mark.ci
def test_interval_of_a_paired_difference_covers_and_is_the_narrower_one() -> None:
    """Two players of the same deals: the luck of a deal is in both."""
    pytest.importorskip("scipy")
    chance, found, narrower = Random("paired"), Share(0.25), 0
    for _ in range(STUDIES):
        luck = [chance.random() for _ in range(GAMES)]
        one = {deal: int(each < 0.3) for deal, each in enumerate(luck)}
        # The other is as lucky in four of five deals.
        other = {
            deal: int((each if chance.random() < 0.8 else chance.random()) < 0.55) for deal, each in enumerate(luck)
        }
        paired = known(known(compare(_sums(one), _sums(other))).interval)
        unpaired = known(known(compare_apart(_single(one), _single(other))).interval)
        found.see(paired)
        narrower += paired.hi - paired.lo < unpaired.hi - unpaired.lo

    assert found.is_right(), found.held / found.n
    assert narrower > 0.9 * STUDIES


def _sums(won: dict[int, int]) -> Sums:
    return {deal: (each, 1) for deal, each in won.items()}


def _single(won: dict[int, int]) -> ClusteredRate:
    rate = ClusteredRate()
    for each in won.values():
        rate.add(each, 1)
    return rate


def lives(game: int, chance: Random) -> Iterator[Case]:
    """Five players of a game that is deadly or is not, seen until it ends."""
    hazard, last = chance.choice((0.05, 0.4)), chance.randint(4, 9)
    for _ in range(5):
        day = next(day for day in range(1, 100) if day > last or chance.random() < hazard)
        yield Case(game, min(day, last), day <= last)


@pytest.mark.ci
def test_band_of_survival_covers_while_one_over_single_players_does_not() -> None:
    stats = pytest.importorskip("scipy.stats")
    day, truth = 3, (0.95**3 + 0.6**3) / 2
    chance, banded, naive = Random("survival"), Share(truth), Share(truth)
    for _ in range(STUDIES):
        cases = [case for game in range(GAMES) for case in lives(game, chance)]
        (point,) = (point for point in survival(cases) if point.time == day)
        banded.see(point.interval)
        seen = stats.CensoredData(
            uncensored=[case.time for case in cases if case.has_ended],
            right=[case.time for case in cases if not case.has_ended],
        )
        band = stats.ecdf(seen).sf.confidence_interval(method="log-log")
        naive.see(Interval(float(band.low.evaluate(day)), float(band.high.evaluate(day))))

    assert banded.is_right(), banded.held / banded.n
    assert not naive.is_right(), naive.held / naive.n
