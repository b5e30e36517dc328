"""Games counted: how they ended, and who won by faction, role, agent definition and model.

A faction is counted once per game in which it took part, however many play for it, and so is a definition or a model
on each side that it was dealt to. A faction has won when it is named among the winners, or when one of its players won
by a goal of their own, as neutrals do. Roles are counted once per player, and so are definitions and models over all
sides. `games` beside `n` says over how many games; players of one game win and lose together, so intervals are by game.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.intervals import ClusteredRate
from mac_runner.results import clustered, parsed, rate
from mac_runner.types import JsonObject


class PlayerResult(msgspec.Struct, frozen=True):
    """What became of one player. `role` is the one dealt, `final_role` the one held at the end if it changed."""

    definition: str
    model: str
    role: str
    faction: str
    won: bool
    final_role: str | None = None


class GameResult(msgspec.Struct, frozen=True):
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


_Key: TypeAlias = Callable[[PlayerResult], str]
_Rates: TypeAlias = defaultdict[str, ClusteredRate]
_BY_PLAYER: Final[Mapping[str, _Key]] = {
    "by_role": lambda player: player.role,
    "by_definition": lambda player: player.definition,
    "by_model": lambda player: player.model,
}
_BY_SIDE: Final[Mapping[str, _Key]] = {
    "by_definition_and_faction": lambda player: player.definition,
    "by_model_and_faction": lambda player: player.model,
}


class GameResults:
    """Counts games one by one; its memory follows the number of names."""

    def __init__(self) -> None:
        self._n = 0
        self._days = 0
        self._days_max = 0
        self._endings: defaultdict[str, int] = defaultdict(int)
        self._sides: defaultdict[str, ClusteredRate] = defaultdict(ClusteredRate)
        self._factions: set[str] = set()
        self._by_player = {group: _rates() for group in _BY_PLAYER}
        self._by_side = {group: defaultdict[str, _Rates](_rates) for group in _BY_SIDE}

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished game."""
        game = parsed(GameResult, outcome, where)
        self._n += 1
        self._endings[game.ending] += 1
        self._days += game.days
        self._days_max = max(self._days_max, game.days)
        self._add_sides(game)
        for group, key in _BY_PLAYER.items():
            for name, players in _grouped(game.players, key):
                self._by_player[group][name].add(sum(player.won for player in players), len(players))
        for faction, team in game.teams().items():
            for group, key in _BY_SIDE.items():
                for name, players in _grouped(team, key):
                    self._by_side[group][name][faction].add(game.has_won(faction, players), 1)

    def _add_sides(self, game: GameResult) -> None:
        # A group of neutrals may win under its role's name. Which ones there are is known only once one has won, so
        # every role is counted as a side from the start, and `report` leaves out those that never won as one.
        self._factions.update(player.faction for player in game.players)
        self._factions.update(game.winners)
        winners = game.winners | {player.faction for player in game.players if player.won}
        present = {
            name for player in game.players for name in (player.faction, player.role, player.final_role or player.role)
        }
        for name in present | winners:
            self._sides[name].add(name in winners, 1)

    def report(self) -> JsonObject:
        """`games` and `wins`, names in alphabetical order."""
        draws, capped = self._endings["draw"], self._endings["capped"]
        games: JsonObject = {
            "n": self._n,
            "won": self._n - draws - capped,
            "draws": draws,
            "capped": capped,
            "days_mean": round(self._days / self._n, 4) if self._n else None,
            "days_max": self._days_max,
        }
        wins: JsonObject = {
            "by_faction": _reports({name: self._sides[name] for name in self._factions}),
            **{
                group: {name: _reports(factions) for name, factions in sorted(names.items())}
                for group, names in self._by_side.items()
            },
            **{group: _reports(names) for group, names in self._by_player.items()},
        }
        return {"games": games, "wins": wins}


def _rates() -> _Rates:
    return defaultdict(ClusteredRate)


def _grouped(players: Iterable[PlayerResult], key: _Key) -> Iterator[tuple[str, list[PlayerResult]]]:
    groups: defaultdict[str, list[PlayerResult]] = defaultdict(list)
    for player in players:
        groups[key(player)].append(player)
    yield from groups.items()


def _reports(counted: Mapping[str, ClusteredRate]) -> JsonObject:
    return {name: rate_report(each) for name, each in sorted(counted.items())}


def rate_report(counted: ClusteredRate) -> JsonObject:
    """Where each game has one case, the cases are independent and the interval is the plain one."""
    plain = rate(counted.wins, counted.n) if counted.n == counted.clusters else {}
    return {**clustered(counted), **plain}
