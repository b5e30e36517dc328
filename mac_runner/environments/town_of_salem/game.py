"""Outcomes of games, and how they are counted: how games ended, and who won by faction, role, definition and model.

A faction is counted once per game in which it took part, however many play for it, and so is a definition or a model
on each side that it was dealt to. A faction has won when it is named among the winners, or when one of its players won
by a goal of their own, as neutrals do. Roles are counted once per player, and so are definitions and models over all
sides. `games` beside `n` says over how many games; players of one game win and lose together, so intervals are by game.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.intervals import ClusteredRate
from mac_runner.measures import Drawn, InGrid, Keys, Mean, Measure, Rate, Share
from mac_runner.results import clustered, number, rate
from mac_runner.types import JsonObject


class PlayerResult(msgspec.Struct, frozen=True):
    """What became of one player. `role` is the one dealt, `final_role` the one held at the end if it changed."""

    definition: str
    model: str
    role: str
    faction: str
    won: bool
    final_role: str | None = None


class GameResult(msgspec.Struct, frozen=True, tag_field="kind", tag="game"):
    """How one game ended."""

    ending: str
    days: int
    winners: frozenset[str]
    players: tuple[PlayerResult, ...]

    def teams(self) -> Mapping[str, Sequence[PlayerResult]]:
        """The players by the faction that they were dealt to, whatever became of them."""
        teams: dict[str, list[PlayerResult]] = {}
        for player in self.players:
            teams.setdefault(faction_dealt(player), []).append(player)
        return teams

    def has_won(self, faction: str, players: Iterable[PlayerResult]) -> bool:
        """Whether `players`, who were dealt to `faction`, won for it: neutrals each by their own goal."""
        return any(player.won for player in players) if faction == Faction.NEUTRAL else faction in self.winners


def faction_dealt(player: PlayerResult) -> str:
    """The faction of the role that was dealt; a role that is not registered here kept the one it had at the end."""
    from mac_runner.environments.town_of_salem.roles import ROLES

    role = ROLES.get(player.role)
    return player.faction if role is None else role.faction


class GameRate(Rate):
    """A rate over the cases of games."""

    def report(self) -> JsonObject:
        """With `games`, and with `clusters` where deals are played several times."""
        return clustered(self.clustered())


class GameMean(Mean):
    """A mean over the cases of games."""

    def report(self) -> JsonObject:
        """With `games`, and with `clusters` where deals are played several times."""
        found = super().report()
        return {name: count for name, count in found.items() if name != "clusters" or count != found[self.noun]}


class _Wins(Rate):
    def report(self) -> JsonObject:
        return rate_report(self.clustered())


def rate_report(counted: ClusteredRate) -> JsonObject:
    """Where each game has one case, the cases are independent and the interval is the plain one."""
    plain = rate(counted.wins, counted.n) if counted.n == counted.clusters else {}
    return {**clustered(counted), **plain}


class _Side:
    """How often a side won, if it turns out to be one.

    A group of neutrals may win under its role's name. Which ones there are is known only once one has won, so every
    role is counted as a side from the start.
    """

    def __init__(self) -> None:
        self._wins, self._is_faction = _Wins(), False

    def add(self, counts: tuple[Share, bool], question: str | None) -> None:
        share, is_faction = counts
        self._wins.add(share, question)
        self._is_faction = self._is_faction or is_faction

    def report(self) -> JsonObject | UnsetType:
        return self._wins.report() if self._is_faction else UNSET


class _Endings:
    """How games ended, and after how many days."""

    def __init__(self) -> None:
        self._endings = Counter[str]()
        self._days = Counter[int]()

    def add(self, game: GameResult, _question: str | None) -> None:
        self._endings[game.ending] += 1
        self._days[game.days] += 1

    def report(self) -> JsonObject:
        n, draws, capped = self._endings.total(), self._endings["draw"], self._endings["capped"]
        return {
            "n": n,
            "won": n - draws - capped,
            "draws": draws,
            "capped": capped,
            "days_mean": round(sum(self._days.elements()) / n, 4),
            "days_max": max(self._days),
        }


_Cases: TypeAlias = Iterator[tuple[Keys, Share]]


def _sides(game: GameResult) -> Iterator[tuple[Keys, tuple[Share, bool]]]:
    factions = {player.faction for player in game.players} | game.winners
    winners = game.winners | {player.faction for player in game.players if player.won}
    roles = {name for player in game.players for name in (player.role, player.final_role or player.role)}
    for name in factions | roles | winners:
        yield (name,), (Share(int(name in winners), 1), name in factions)


def _by_side(name_of: Callable[[PlayerResult], str], game: GameResult) -> _Cases:
    for faction, team in game.teams().items():
        for name in {name_of(player) for player in team}:
            players = [player for player in team if name_of(player) == name]
            yield (name, faction), Share(int(game.has_won(faction, players)), 1)


def _by_player(name_of: Callable[[PlayerResult], str], game: GameResult) -> _Cases:
    return (((name_of(player),), Share(int(player.won), 1)) for player in game.players)


_wins = partial(Measure, tables=(), figures=(), grid=lambda _keys: None, cluster="game")
_NAMES: Final[Mapping[str, Callable[[PlayerResult], str]]] = {
    "role": lambda player: player.role,
    "definition": lambda player: player.definition,
    "model": lambda player: player.model,
}
_BY_ROLE: Final = (
    Drawn(
        id="wins-by-role",
        chart="forest",
        by=("role",),
        title="Which roles win most often?",
        caption="Share of players dealt a role who won. Players of one faction win together. Lines are 95 % intervals "
        "over games.",
        chapter="wins",
        sort=lambda row: -(number(row.record.get("rate")) or 0.0),
    ),
)
WINS: Final[tuple[Measure, ...]] = (
    _wins(
        place="wins.by_faction.{faction}",
        cases=_sides,
        statistic=lambda _keys: _Side(),
        grid=lambda keys: InGrid(f"wins.{keys[0]}", is_headline=True),
    ),
    *(
        _wins(
            place=f"wins.by_{name}_and_faction.{{{name}}}.{{side}}",
            cases=partial(_by_side, _NAMES[name]),
            statistic=lambda _keys: _Wins(),
        )
        for name in ("definition", "model")
    ),
    *(
        _wins(
            place=f"wins.by_{name}.{{{name}}}",
            cases=partial(_by_player, name_of),
            statistic=lambda _keys: _Wins(),
            value="players who won",
            unit="players",
            figures=_BY_ROLE if name == "role" else (),
        )
        for name, name_of in _NAMES.items()
    ),
)
"""Who won: by side first, then over all sides."""
GAMES: Final = (
    _wins(place="games", cases=lambda game: [((), game)], statistic=lambda _keys: _Endings()),
    *WINS,
)
"""How games ended, and who won."""
