"""Who won: by faction, role, model and agent definition, and how games ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from mac_runner.figures.charts import columns, forest
from mac_runner.figures.data import EndedRow
from mac_runner.figures.estimates import (
    Estimate,
    estimate_columns,
    estimate_rows,
    interval_notes,
    of_rate,
    rate_method,
)
from mac_runner.figures.failures import FailedGroup, counted_as_lost, failure_note, status_figure
from mac_runner.figures.model import DataColumn, Figure, Section, Value
from mac_runner.figures.town_of_salem.games import Game, Tally, in_order, side_of

_FINISHED: Final = "finished games"
_LOST: Final = "failed games counted as lost"


class Wins:
    """Counts who won, game by game."""

    def __init__(self) -> None:
        self.games = 0
        self._failed: list[EndedRow] = []
        self._tally = Tally()
        self._endings: Counter[str] = Counter()
        self._lengths: Counter[tuple[int, str]] = Counter()
        self._sides: defaultdict[str, set[str]] = defaultdict(set)

    def fail(self, ended: EndedRow) -> None:
        """Count a failed game."""
        self._failed.append(ended)

    def add(self, game: Game) -> None:
        """Count a finished game."""
        self.games += 1
        self._endings[game.ending] += 1
        teams = game.teams()
        won = {side: game.has_won(side, team) for side, team in teams.items()}
        self._lengths[game.days, " and ".join(in_order(side for side in won if won[side])) or game.ending] += 1
        cases: list[tuple[tuple[str, ...], int, int]] = [(("faction", side), int(won[side]), 1) for side in teams]
        for side, team in teams.items():
            for seat in team:
                cases.append((("role", seat.role), int(seat.won), 1))
            for group in ("model", "definition"):
                for name in {getattr(seat, group) for seat in team}:
                    cases.append(((group, name, side), int(won[side]), 1))
                    self._sides[group].add(name)
        self._tally.add(cases)

    def section(self) -> Section:
        """The chapter."""
        figures = [self._factions(), self._roles(), *self._players(), self._length()]
        return Section(id="wins", title="Who wins", figures=tuple(figure for figure in figures if figure is not None))

    def _factions(self) -> Figure | None:
        sides = in_order(str(key[1]) for key in self._tally.rates if isinstance(key, tuple) and key[0] == "faction")
        if not sides:
            return None
        finished = _FINISHED if self._failed else ""
        estimates = list[Estimate]()
        for side in sides:
            rate = self._tally.get("faction", side)
            estimates.append(of_rate(side, rate, series=finished))
            # Every faction that plays in all games played in the failed ones too.
            if self._failed and rate.games == self.games:
                estimates.append(of_rate(side, counted_as_lost(rate, len(self._failed)), series=_LOST))
        return _forest_figure(
            "wins-by-faction",
            "Which faction wins how often?",
            "Share of games that each faction won. A faction of neutrals has won when one of its players did.",
            estimates,
            games=self.games,
            label="faction",
            notes=failure_note(len(self._failed), self.games, "games"),
        )

    def _roles(self) -> Figure | None:
        roles = [str(key[1]) for key in self._tally.rates if isinstance(key, tuple) and key[0] == "role"]
        order = {side: place for place, side in enumerate(in_order(side_of(role) for role in roles))}
        estimates = [of_rate(role, self._tally.get("role", role), series=side_of(role)) for role in roles]
        estimates.sort(key=lambda one: (order[one.series], -(one.value or 0), one.label))
        if not estimates:
            return None
        return _forest_figure(
            "wins-by-role",
            "Which role wins how often?",
            "Share of players dealt a role who won. Players of one faction win together, so roles of one faction "
            "differ by little more than chance and by goals of their own.",
            estimates,
            games=self.games,
            label="role",
            series="faction",
        )

    def _players(self) -> Iterator[Figure | None]:
        """Models and definitions on each side; one alone says what the factions say."""
        models, definitions = (sorted(self._sides[group]) for group in ("model", "definition"))
        if len(models) > 1:
            yield self._by_side("model", models)
        if len(definitions) > 1 and len(definitions) != len(models):
            yield self._by_side("definition", definitions)

    def _by_side(self, group: str, names: Sequence[str]) -> Figure | None:
        keys = [key for key in self._tally.rates if isinstance(key, tuple) and key[0] == group]
        sides = in_order(str(key[2]) for key in keys)
        estimates = [
            of_rate(name, self._tally.get(group, name, side), series=side)
            for name in names
            for side in sides
            if (group, name, side) in self._tally.rates
        ]
        word = "agent definition" if group == "definition" else group
        return _forest_figure(
            f"wins-by-{group}",
            f"Which {word} wins how often on each side?",
            f"Share of games that a faction won in which the {word} played for it. A game counts once for each "
            f"{word} and faction, however many players it had.",
            estimates,
            games=self.games,
            label=word,
            series="faction",
        )

    def _length(self) -> Figure | None:
        if not self._lengths:
            return None
        sides = in_order(winner for _, winner in self._lengths)
        rows: list[dict[str, Value]] = [
            {"x": days, "part": winner, "count": count} for (days, winner), count in sorted(self._lengths.items())
        ]
        every = sorted(day for (day, _), count in self._lengths.items() for _ in range(count))
        median = every[len(every) // 2]
        return Figure(
            id="game-length",
            title="How long do games last?",
            caption=f"Games by the day on which they ended, and who won. Half of {self.games:,} games ended by day "
            f"{median}, the longest on day {every[-1]}.",
            n=self.games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="part", title="winner"),
                DataColumn(name="count", title="games", kind="count"),
            ),
            rows=tuple(rows),
            spec=columns(rows, x_title="day on which the game ended", title="games", parts=sides, legend="won by"),
        )

    def endings(self) -> Figure:
        """How conversations ended, failed ones in rows of their own."""
        return status_figure(
            "endings",
            "How did games end?",
            dict(self._endings),
            [FailedGroup.of(ended) for ended in self._failed],
            unit="games",
        )


def _forest_figure(
    name: str,
    title: str,
    caption: str,
    estimates: Sequence[Estimate],
    *,
    games: int,
    label: str,
    series: str = "counting",
    notes: tuple[str, ...] = (),
) -> Figure:
    is_one = len({one.series for one in estimates}) == 1 and series == "counting"
    return Figure(
        id=name,
        title=title,
        caption=f"{caption} Lines are 95 % intervals over games.",
        n=games,
        unit="games",
        columns=estimate_columns(label, series="" if is_one else series, value="won", n="cases", units="games"),
        rows=estimate_rows(estimates),
        spec=forest(estimates, title="share won", units="games"),
        methods=(rate_method("games", games),),
        notes=(*interval_notes(estimates, "games"), *notes),
    )
