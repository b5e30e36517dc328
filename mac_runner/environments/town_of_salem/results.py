"""Games counted: how they ended, and who won by faction, role, agent definition and model.

A faction is counted once per game in which it took part, however many play for it. It has won when it is named among
the winners, or when one of its players won by a goal of their own, as neutrals do. Roles, definitions and models are
counted once per player. `games` beside `n` says over how many games: players of one game win and lose together, so
their interval, which takes them to be independent, is too narrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from mac_runner.results import parsed, rate
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


_KEYS: tuple[tuple[str, Callable[[PlayerResult], str]], ...] = (
    ("by_role", lambda player: player.role),
    ("by_definition", lambda player: player.definition),
    ("by_model", lambda player: player.model),
)


@dataclass(slots=True)
class _Wins:
    """Cases and wins of one name; `games` is how many games the cases come from."""

    n: int = 0
    wins: int = 0
    games: int = 0

    def report(self) -> JsonObject:
        return {"n": self.n, "games": self.games, "wins": self.wins, **rate(self.wins, self.n)}


class GameResults:
    """Counts games one by one; its memory follows the number of names."""

    def __init__(self) -> None:
        self._n = 0
        self._days = 0
        self._days_max = 0
        self._endings: defaultdict[str, int] = defaultdict(int)
        self._sides: defaultdict[str, _Wins] = defaultdict(_Wins)
        self._factions: set[str] = set()
        self._players: dict[str, defaultdict[str, _Wins]] = {group: defaultdict(_Wins) for group, _ in _KEYS}

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished game."""
        game = parsed(GameResult, outcome, where)
        self._n += 1
        self._endings[game.ending] += 1
        self._days += game.days
        self._days_max = max(self._days_max, game.days)
        self._add_sides(game)
        for group, key in _KEYS:
            counted = self._players[group]
            for player in game.players:
                counted[key(player)].n += 1
                counted[key(player)].wins += player.won
            for name in {key(player) for player in game.players}:
                counted[name].games += 1

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
            side = self._sides[name]
            side.n += 1
            side.games += 1
            side.wins += name in winners

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
        wins: JsonObject = {"by_faction": _reports((name, self._sides[name]) for name in self._factions)}
        return {"games": games, "wins": wins | {group: _reports(each.items()) for group, each in self._players.items()}}


def _reports(counted: Iterable[tuple[str, _Wins]]) -> JsonObject:
    return {name: wins.report() for name, wins in sorted(counted, key=lambda item: item[0])}
