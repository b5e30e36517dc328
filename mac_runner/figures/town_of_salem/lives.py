"""Who lived how long: survival of players by faction and by role, and the time to a first lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from mac_runner.environments.town_of_salem.measures import Count
from mac_runner.figures.charts import over_time, panels
from mac_runner.figures.estimates import UNITS_MIN, Estimate, estimate_columns, estimate_rows, interval_notes
from mac_runner.figures.model import Figure, Method
from mac_runner.figures.statistics.survival import Case, log_rank, survival
from mac_runner.figures.town_of_salem.games import Game, in_order, side_of
from mac_runner.intervals import Interval

_BAND: Final = "log(-log) band with a variance over games, 95 %"
_WARNING: Final = "It takes players to be independent, and players of one game are not: p is too small."


class Lives:
    """Keeps of each player how long they lived, and when they first lied; a few numbers each."""

    def __init__(self) -> None:
        self._games = 0
        self._by_side: defaultdict[str, list[Case]] = defaultdict(list)
        self._by_role: defaultdict[str, list[Case]] = defaultdict(list)
        self._lies: defaultdict[str, list[Case]] = defaultdict(list)

    def add(self, game: Game) -> None:
        """Count a finished game."""
        number = self._games if game.cluster is None else game.cluster
        self._games += 1
        for seat in game.players:
            is_dead = not seat.alive and seat.died_on_day is not None
            last = seat.died_on_day if is_dead and seat.died_on_day is not None else game.days
            case = Case(number, last, is_dead)
            self._by_side[seat.side].append(case)
            self._by_role[seat.role].append(case)
            if game.is_measured:
                first = seat.count(Count.FIRST_LIE_DAY)
                self._lies[seat.side].append(Case(number, first or last, bool(first)))

    def figures(self) -> Iterator[Figure]:
        """Survival by faction and by role."""
        if not self._games:
            return
        sides = in_order(self._by_side)
        curves = [point for side in sides for point in _curve(side, side, self._by_side[side])]
        yield Figure(
            id="survival-by-faction",
            title="Which faction lives longest?",
            caption="Share of players dealt to each faction who were alive after a day and the night after it "
            f"({_BAND[:-6]}). A player is seen until death or the end of the game.",
            n=self._games,
            unit="games",
            columns=estimate_columns("faction", x="day", value="alive", n="players seen", units="games"),
            rows=estimate_rows(curves),
            spec=over_time(estimate_rows(curves), x_title="day", title="players alive", is_stepped=True),
            methods=(self._method("players alive"),),
            notes=(*interval_notes(curves, "games"), *self._tests(sides, self._by_side)),
        )
        yield self._roles()

    def _roles(self) -> Figure:
        order = in_order(side_of(role) for role in self._by_role)
        roles = sorted(self._by_role, key=lambda role: (order.index(side_of(role)), role))
        curves = [point for role in roles for point in _curve(role, side_of(role), self._by_role[role])]
        return Figure(
            id="survival-by-role",
            title="Which roles live longest?",
            caption="Share of players dealt each role who were alive after a day and the night after it, in the "
            "colour of the faction. Bands are 95 % intervals over games.",
            n=self._games,
            unit="games",
            columns=estimate_columns("role", x="day", value="alive", n="players seen", units="games"),
            rows=estimate_rows(curves),
            spec=panels(estimate_rows(curves), x_title="day", title="alive"),
            methods=(self._method("players alive"),),
            notes=interval_notes(curves, "games"),
        )

    def first_lie(self) -> Figure | None:
        """How long players of each faction go without a lie."""
        if not any(case.has_ended for cases in self._lies.values() for case in cases):
            return None
        sides = in_order(self._lies)
        curves = [point for side in sides for point in _curve(side, side, self._lies[side], is_risen=True)]
        return Figure(
            id="first-lie",
            title="How soon do players tell their first lie?",
            caption="Share of players of each faction who have lied by the end of a day, estimated as a survival "
            "curve: a player who died honest is seen until then. Bands are 95 % intervals over games.",
            n=self._games,
            unit="games",
            columns=estimate_columns("faction", x="day", value="have lied", n="players seen", units="games"),
            rows=estimate_rows(curves),
            spec=over_time(estimate_rows(curves), x_title="day", title="players who have lied", is_stepped=True),
            methods=(self._method("first lies"),),
            notes=interval_notes(curves, "games"),
        )

    def _method(self, what: str) -> Method:
        return Method(
            statement=f"Curves of {what} are Kaplan and Meier's (1958); the variance of their logarithm is summed over "
            "games (Ying and Wei 1994), because players of one game die together",
            unit="game",
            n=self._games,
            interval=_BAND,
        )

    def _tests(self, sides: Sequence[str], cases: Mapping[str, Sequence[Case]]) -> Iterator[str]:
        if self._games < UNITS_MIN:
            return
        found = [(one, other, log_rank(cases[one], cases[other])) for one, other in pairwise(sides)]
        tests = [f"{one} and {other} p = {p:.2g}" for one, other, p in found if p is not None]
        if tests:
            yield f"Log-rank test of equal survival: {', '.join(tests)}. {_WARNING}"


def _curve(label: str, series: str, cases: Sequence[Case], *, is_risen: bool = False) -> Iterator[Estimate]:
    """A curve from day 0 on; with `is_risen` the share of those that have ended."""
    games = len({case.game for case in cases})
    yield Estimate(label, 0.0 if is_risen else 1.0, None, len(cases), games, series)
    for point in survival(cases):
        share, band = point.share, point.interval if games >= UNITS_MIN else None
        if is_risen:
            share, band = 1 - share, None if band is None else Interval(1 - band.hi, 1 - band.lo)
        yield Estimate(label, share, band, point.at_risk, games, series, point.time)
