"""Who won: by faction, role, model and agent definition, and how long games lasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mac_runner.environments.town_of_salem.measures import Count
from mac_runner.figures.charts import columns
from mac_runner.figures.estimates import Estimate, failure_notes, of_rate
from mac_runner.figures.model import DataColumn, Figure, Value
from mac_runner.figures.town_of_salem.forests import rate_forest, role_estimates
from mac_runner.figures.town_of_salem.games import FailedSeat, Game, Key, Tally, in_order, side_of
from mac_runner.printable import counted
from mac_runner.results import DEFAULTS_NOTE, is_noted, with_defaults

_FINISHED: Final = "finished games"
_LOST: Final = "failed games counted as lost"
_GROUPS: Final = {"model": "model", "definition": "agent definition"}


class Wins:
    """Counts who won, game by game."""

    def __init__(self) -> None:
        self._games = 0
        self._failed = 0
        self._tally = Tally()
        self._with_failed = Tally()
        self._defaults = Tally()
        self._lengths: Counter[tuple[int, str]] = Counter()

    def add(self, game: Game) -> None:
        """Count a finished game."""
        self._games += 1
        teams = game.teams()
        won = {side: game.has_won(side, team) for side, team in teams.items()}
        self._lengths[game.days, " and ".join(in_order(side for side in won if won[side])) or game.ending] += 1
        cases: list[tuple[Key, int, int]] = [(("faction", side), int(won[side]), 1) for side in teams]
        for side, team in teams.items():
            cases += [(("role", seat.role), int(seat.won), 1) for seat in team]
            cases += [(("model", name, side), int(won[side]), 1) for name in {seat.model for seat in team}]
            cases += [(("definition", name, side), int(won[side]), 1) for name in {seat.definition for seat in team}]
        self._tally.add(cases)
        self._with_failed.add(cases)
        self._defaults.add(
            (key, seat.count(Count.DEFAULT), seat.count(Count.TURN))
            for seat in game.players
            for side in (seat.side,)
            for key in (("faction", side), ("model", seat.model, side), ("definition", seat.definition, side))
        )

    def fail(self, seats: Iterable[FailedSeat]) -> None:
        """Count a game that failed as lost by all who played it."""
        self._failed += 1
        known = [seat for seat in seats if side_of(seat.role)]
        lost: set[Key] = {("faction", side_of(seat.role)) for seat in known}
        lost |= {("model", seat.model, side_of(seat.role)) for seat in known}
        lost |= {("definition", seat.definition, side_of(seat.role)) for seat in known}
        self._with_failed.add((key, 0, 1) for key in lost)

    def figures(self) -> Iterator[Figure | None]:
        """The figures."""
        sides = in_order(str(key[1]) for key in self._tally.keys_of("faction"))
        yield rate_forest(
            "wins-by-faction",
            "How often does each faction win?",
            "Share of games that each faction won. Neutrals have won when one of them did.",
            [one for side in sides for one in self._estimates(side, "faction", side)],
            notes=(*failure_notes(self._failed, self._games, "games"), *self._default_notes("faction")),
            games=self._games,
            label="faction",
            value="games won",
            series="counting" if self._failed else "",
        )
        yield self._roles()
        models, definitions = ({str(key[1]) for key in self._tally.keys_of(group)} for group in _GROUPS)
        if len(models) > 1:
            yield self._by_side("model", sorted(models), sides)
        if len(definitions) > 1 and len(definitions) != len(models):
            yield self._by_side("definition", sorted(definitions), sides)

    def _estimates(self, label: str, *key: str) -> Iterator[Estimate]:
        label = with_defaults(label, self._defaults.share(*key))
        yield of_rate(label, self._tally.get(*key), series=_FINISHED if self._failed else "")
        if self._failed:
            yield of_rate(label, self._with_failed.get(*key), series=_LOST)

    def _roles(self) -> Figure | None:
        estimates = role_estimates(self._tally, "role")
        return rate_forest(
            "wins-by-role",
            "Which roles win most often?",
            "Share of players dealt a role who won. Players of one faction win together.",
            estimates,
            games=self._games,
            label="role",
            value="players who won",
            cases="players",
            series="faction",
        )

    def _by_side(self, group: str, names: Sequence[str], sides: Sequence[str]) -> Figure | None:
        word = _GROUPS[group]
        estimates = [
            one for side in sides for name in names for one in self._estimates(f"{name} as {side}", group, name, side)
        ]
        return rate_forest(
            f"wins-by-{group}",
            f"Which {word} wins most often, on which side?",
            f"Share of games that a faction won in which the {word} played for it. A game counts once for each "
            f"{word} and faction, however many players it had.",
            estimates,
            games=self._games,
            label=word,
            value="games won",
            series="counting" if self._failed else "",
            notes=(*failure_notes(self._failed, self._games, "games"), *self._default_notes(group)),
        )

    def _default_notes(self, group: str) -> tuple[str, ...]:
        is_any = any(is_noted(self._defaults.share(*key)) for key in self._defaults.keys_of(group))
        return (DEFAULTS_NOTE,) if is_any else ()

    def length(self) -> Figure | None:
        """How long games lasted."""
        if not self._lengths:
            return None
        winners = in_order(winner for _, winner in self._lengths)
        days = range(min(day for day, _ in self._lengths), max(day for day, _ in self._lengths) + 1)
        rows: list[dict[str, Value]] = [
            {"x": day, "part": winner, "count": self._lengths[day, winner]} for winner in winners for day in days
        ]
        every = sorted(self._lengths.elements())
        median = every[len(every) // 2][0]
        return Figure(
            id="game-length",
            title="How many days does a game last?",
            caption=f"{counted(self._games, 'games')} by the day on which they ended, and by who won them. "
            f"The median is day {median}, the last day {every[-1][0]}.",
            n=self._games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="part", title="won by"),
                DataColumn(name="count", title="games", kind="count"),
            ),
            rows=tuple(row for row in rows if row["count"]),
            spec=columns(rows, x_title="last day of the game", title="games", parts=winners, legend="won by"),
        )
