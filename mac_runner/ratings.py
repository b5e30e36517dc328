"""Bradley–Terry ratings of players of two unlike sides, from games over the same deals.

Pure functions over arrays. They need numpy and SciPy, an optional extra, which are imported when they are called. Every
resampling has a fixed seed, so the same games give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mac_runner.compared import Array, percentiles, resampled
from mac_runner.intervals import Interval

FITS: Final = 1_000
"""Bootstrap samples for ratings, each of which is a fit of its own."""
_PRIOR_WINS: Final = 0.5
"""Added to each side of every pairing, so that who has won or lost every game has a rating too."""
FIRST_WON: Final = 1
SECOND_WON: Final = 0
UNDECIDED: Final = -1
"""Results of a game between two sides; UNDECIDED also where there was none."""


class Strength(NamedTuple):
    """How strong a player is on one side. `rating` is in log odds, 0 the average of the players on that side."""

    rating: float
    rating_interval: Interval
    rate: float
    """The chance of winning against the average player of the other side."""
    rate_interval: Interval


class Ratings(NamedTuple):
    """The strength of each player on each side, by number; the chance of the first side is σ(advantage + own − other).

    `advantage` is that of the first side between average players, in log odds.
    """

    first: tuple[Strength, ...]
    second: tuple[Strength, ...]
    advantage: float
    advantage_interval: Interval


def deal_table(keys: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> Array:
    """The result of each deal (row) in each pairing (column), from the deals and the results of each pairing."""
    import numpy

    columns = [numpy.asarray(each, dtype=numpy.uint64) for each in keys]
    known = numpy.unique(numpy.concatenate(columns))
    table = numpy.full((len(known), len(columns)), UNDECIDED, dtype=numpy.int8)
    for place, (column, result) in enumerate(zip(columns, results, strict=True)):
        table[numpy.searchsorted(known, column), place] = numpy.asarray(result, dtype=numpy.int8)
    return table


def bradley_terry(pairings: Sequence[tuple[int, int]], table: Array, *, fits: int = FITS) -> Ratings | None:
    """Rate the players on both sides from the table of `deal_table`; None where the pairings do not tie all together.

    `pairings` has, for each column, the numbers of the first side's and the second side's player. R. A. Bradley and M.
    E. Terry, Biometrika 39 (1952), 324-345, with a strength for each side. Intervals are percentiles over `fits`
    bootstrap samples of deals: a deal is drawn with its games in all pairings, because they share its luck.
    """
    import numpy

    design = _design(pairings)
    rows, counts = numpy.unique(table, axis=0, return_counts=True)
    decided = counts @ (rows != UNDECIDED)
    if not decided.any() or numpy.linalg.matrix_rank(design[decided > 0]) < design.shape[1]:
        return None
    wins = counts @ (rows == FIRST_WON)
    found = _fit(design, wins, decided, numpy.zeros(design.shape[1]))
    sums = resampled(numpy.hstack([rows == FIRST_WON, rows != UNDECIDED]), counts, fits)
    samples = zip(*numpy.split(sums, 2, axis=1), strict=True)
    drawn = [_fit(design, won, of, found) for won, of in samples]
    n_first, n_second = (1 + max(pair[side] for pair in pairings) for side in (0, 1))
    point = _strengths(found[None, :], n_first, n_second)
    spread = _strengths(numpy.array(drawn), n_first, n_second)
    return Ratings(
        first=tuple(_strength(point[1][0, i], spread[1][:, i], point[0][0], spread[0]) for i in range(n_first)),
        second=tuple(_strength(point[2][0, i], spread[2][:, i], -point[0][0], -spread[0]) for i in range(n_second)),
        advantage=float(point[0][0]),
        advantage_interval=percentiles(spread[0]),
    )


def _design(pairings: Sequence[tuple[int, int]]) -> Array:
    """What each parameter adds to the log odds of the first side, by pairing.

    The parameters are the advantage and the ratings of each side but for its last player, whose rating makes the sum 0.
    """
    import numpy

    first, second = (_deviations([pair[side] for pair in pairings]) for side in (0, 1))
    return numpy.hstack([numpy.ones((len(pairings), 1)), first, -second])


def _deviations(players: Sequence[int]) -> Array:
    import numpy

    return numpy.vstack([numpy.eye(max(players)), -numpy.ones(max(players))])[list(players)]


def _fit(design: Array, wins: Array, games: Array, start: Array) -> Array:
    """The parameters of the greatest likelihood."""
    import numpy
    from scipy.optimize import minimize
    from scipy.special import expit

    met = games > 0
    seen, won, played = design[met], wins[met] + _PRIOR_WINS, games[met] + 2 * _PRIOR_WINS

    def surprise(parameters: Array) -> tuple[float, Array]:
        odds = seen @ parameters
        value = played @ numpy.logaddexp(0, odds) - won @ odds
        return float(value), seen.T @ (played * expit(odds) - won)

    def curvature(parameters: Array) -> Array:
        chance = expit(seen @ parameters)
        return seen.T @ (seen * (played * chance * (1 - chance))[:, None])

    return minimize(surprise, start, jac=True, hess=curvature, method="trust-exact").x


def _strengths(parameters: Array, n_first: int, n_second: int) -> tuple[Array, Array, Array]:
    """The advantage and the ratings of each side, for each row of parameters."""
    first, second = parameters[:, 1:n_first], parameters[:, n_first : n_first + n_second - 1]
    return parameters[:, 0], *(_with_last(each) for each in (first, second))


def _with_last(ratings: Array) -> Array:
    import numpy

    return numpy.hstack([ratings, -ratings.sum(axis=1, keepdims=True)])


def _strength(rating: float, ratings: Array, advantage: float, advantages: Array) -> Strength:
    from scipy.special import expit

    return Strength(
        rating=float(rating),
        rating_interval=percentiles(ratings),
        rate=float(expit(rating + advantage)),
        rate_interval=percentiles(expit(ratings + advantages)),
    )
