"""Who lived how long: survival of players by faction and by role, the time to a first lie, and how long games last.

Survival is Kaplan and Meier's estimate over cases that come in games, with bands by game. Times are whole numbers, such
as days. A case that was not seen to end is censored: it was alive up to its time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from mac_runner.environments.town_of_salem.measures import SIDE, Count, Game
from mac_runner.figures.charts import columns, over_time, panels
from mac_runner.figures.estimates import UNITS_MIN, estimate, interval_notes, rate_columns
from mac_runner.figures.model import DataColumn, Figure, Method, Value
from mac_runner.figures.town_of_salem.measures import side_of
from mac_runner.intervals import Interval, student_t, wilson
from mac_runner.printable import counted

_BAND: Final = "log(-log) band with a variance over games, 95 %"
_WARNING: Final = "It takes players to be independent, and players of one game are not: p is too small."


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


class Lives:
    """Keeps of each player how long they lived, and when they first lied; a few numbers each."""

    def __init__(self) -> None:
        self.games = 0
        self._by_side: defaultdict[str, list[Case]] = defaultdict(list)
        self._by_role: defaultdict[str, list[Case]] = defaultdict(list)
        self._lies: defaultdict[str, list[Case]] = defaultdict(list)
        self._lengths: Counter[tuple[int, str]] = Counter()

    def add(self, game: Game, cluster: int | str | None) -> None:
        """Count a finished game."""
        number = self.games if cluster is None else cluster
        self.games += 1
        won = [side for side, team in game.teams().items() if game.has_won(side, team)]
        self._lengths[game.days, " and ".join(sorted(won, key=_place)) or game.ending] += 1
        for seat in game.players:
            is_dead = not seat.alive and seat.died_on_day is not None
            last = seat.died_on_day if is_dead and seat.died_on_day is not None else game.days
            case = Case(number, last, is_dead)
            self._by_side[seat.side].append(case)
            self._by_role[seat.role].append(case)
            if game.cells:
                first = seat.count(Count.FIRST_LIE_DAY)
                self._lies[seat.side].append(Case(number, first or last, bool(first)))

    def survival(self) -> Iterator[Figure]:
        """Survival by faction and by role, and how long games lasted."""
        sides = sorted(self._by_side, key=_place)
        roles = sorted(self._by_role, key=lambda role: (_place(side_of(role)), role))
        yield self._figure(
            "survival-by-faction",
            "Which faction lives longest?",
            "Share of players dealt to each faction who were alive after a day and the night after it "
            f"({_BAND[:-6]}). A player is seen until death or the end of the game.",
            [point for side in sides for point in _curve(side, side, self._by_side[side])],
            notes=self._tests(sides, self._by_side),
        )
        yield self._figure(
            "survival-by-role",
            "Which roles live longest?",
            "Share of players dealt each role who were alive after a day and the night after it, in the colour of the "
            "faction. Bands are 95 % intervals over games.",
            [point for role in roles for point in _curve(role, side_of(role), self._by_role[role])],
            label="role",
        )
        yield self._length()

    def first_lie(self) -> Iterator[Figure]:
        """How long players of each faction go without a lie."""
        if any(case.has_ended for cases in self._lies.values() for case in cases):
            sides = sorted(self._lies, key=_place)
            yield self._figure(
                "first-lie",
                "How soon do players tell their first lie?",
                "Share of players of each faction who have lied by the end of a day, estimated as a survival curve: a "
                "player who died honest is seen until then. Bands are 95 % intervals over games.",
                [point for side in sides for point in _curve(side, side, self._lies[side], is_risen=True)],
                what="first lies",
                value="have lied",
            )

    def _figure(
        self,
        name: str,
        title: str,
        caption: str,
        rows: Sequence[dict[str, Value]],
        *,
        label: str = "faction",
        what: str = "players alive",
        value: str = "are alive",
        notes: Sequence[str] = (),
    ) -> Figure:
        title_of_axis = f"players that {value}"
        if label == "role":
            spec = panels(rows, x_title="day", title=title_of_axis)
        else:
            spec = over_time(rows, x_title="day", title=title_of_axis, is_stepped=True)
        method = Method(
            statement=f"Curves of {what} are Kaplan and Meier's (1958); the variance of their logarithm is summed over "
            "games (Ying and Wei 1994), because players of one game die together",
            unit="game",
            n=self.games,
            interval=_BAND,
        )
        return Figure(
            id=name,
            title=title,
            caption=caption,
            n=self.games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="label", title=label),
                *rate_columns(value, "rate", "players seen"),
            ),
            rows=tuple(rows),
            spec=spec,
            methods=(method,),
            notes=(*interval_notes(rows, "games"), *notes),
        )

    def _tests(self, sides: Sequence[str], cases: Mapping[str, Sequence[Case]]) -> Sequence[str]:
        found = [(one, other, log_rank(cases[one], cases[other])) for one, other in pairwise(sides)]
        tests = [f"{one} and {other} p = {p:.2g}" for one, other, p in found if p is not None]
        has_enough = tests and self.games >= UNITS_MIN
        return (f"Log-rank test of equal survival: {', '.join(tests)}. {_WARNING}",) if has_enough else ()

    def _length(self) -> Figure:
        winners = sorted({winner for _, winner in self._lengths}, key=_place)
        days = range(min(day for day, _ in self._lengths), max(day for day, _ in self._lengths) + 1)
        rows: list[dict[str, Value]] = [
            {"x": day, "part": winner, "count": self._lengths[day, winner]} for winner in winners for day in days
        ]
        every = sorted(self._lengths.elements())
        return Figure(
            id="game-length",
            title="How many days does a game last?",
            caption=f"{counted(self.games, 'games')} by the day on which they ended, and by who won them. "
            f"The median is day {every[len(every) // 2][0]}, the last day {every[-1][0]}.",
            n=self.games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="part", title="won by"),
                DataColumn(name="count", title="games", kind="count"),
            ),
            rows=tuple(row for row in rows if row["count"]),
            spec=columns(rows, x_title="last day of the game", title="games", legend="won by"),
        )


def _place(side: str) -> tuple[int, str]:
    """Where a faction stands in all figures."""
    return SIDE.place(side), side


def _curve(label: str, series: str, cases: Sequence[Case], *, is_risen: bool = False) -> Iterator[dict[str, Value]]:
    """A curve from day 0 on; with `is_risen` the share of those that have ended."""
    games = len({case.game for case in cases})
    yield estimate(label, 0.0 if is_risen else 1.0, None, len(cases), games, series)
    for point in survival(cases):
        share, band = point.share, point.interval if games >= UNITS_MIN else None
        if is_risen:
            share, band = 1 - share, None if band is None else Interval(1 - band.hi, 1 - band.lo)
        yield estimate(label, share, band, point.at_risk, games, series, point.time)
