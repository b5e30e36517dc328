"""Who won: wins counted over games by faction, role, agent definition and model.

A faction is counted once per game in which it took part, however many play for it; it has won when it is named among
the winners, or when one of its players won by a goal of their own, as neutrals do. Roles, definitions and models are
counted once per player; `games` beside `n` says over how many games, because players of one game win and lose together
and their interval, which takes them to be independent, is then too narrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mac_runner.reports.intervals import wilson
from mac_runner.reports.rows import GameResult, PlayerResult
from mac_runner.types import JsonObject

_KEYS: tuple[tuple[str, Callable[[PlayerResult], str]], ...] = (
    ("by_role", lambda player: player.role),
    ("by_definition", lambda player: player.definition),
    ("by_model", lambda player: player.model),
)


@dataclass(slots=True)
class _Tally:
    """Cases and wins of one name; `games` is how many games the cases come from."""

    n: int = 0
    wins: int = 0
    games: int = 0


class WinCounter:
    """Counts wins game by game; its memory follows the number of names, not of games."""

    def __init__(self) -> None:
        self._sides: defaultdict[str, _Tally] = defaultdict(_Tally)
        self._factions: set[str] = set()
        self._players: dict[str, defaultdict[str, _Tally]] = {group: defaultdict(_Tally) for group, _ in _KEYS}

    def add(self, game: GameResult) -> None:
        """Count one finished game."""
        self._add_sides(game)
        for group, key in _KEYS:
            tallies = self._players[group]
            for player in game.players:
                tallies[key(player)].n += 1
                tallies[key(player)].wins += player.is_winner
            for name in {key(player) for player in game.players}:
                tallies[name].games += 1

    def _add_sides(self, game: GameResult) -> None:
        # A group of neutrals may win under its role's name. Which ones there are is known only once one has won, so
        # every role is counted as a side from the start, and `report` leaves out those that are none.
        self._factions.update(player.faction for player in game.players)
        self._factions.update(game.winners)
        winners = game.winners | {player.faction for player in game.players if player.is_winner}
        present = {name for player in game.players for name in (player.faction, player.role, player.final_role)}
        for name in present | winners:
            tally = self._sides[name]
            tally.n += 1
            tally.games += 1
            tally.wins += name in winners

    def report(self) -> JsonObject:
        """The counts with rates and intervals, names in alphabetical order."""
        sides = {name: self._sides[name] for name in self._factions}
        report: JsonObject = {"by_faction": _rates(sides.items())}
        for group, tallies in self._players.items():
            report[group] = _rates(tallies.items())
        return report


def _rates(tallies: Iterable[tuple[str, _Tally]]) -> JsonObject:
    return {name: _rate(tally) for name, tally in sorted(tallies)}


def _rate(tally: _Tally) -> JsonObject:
    interval = wilson(tally.wins, tally.n)
    return {
        "n": tally.n,
        "games": tally.games,
        "wins": tally.wins,
        "rate": round(tally.wins / tally.n, 4) if tally.n else None,
        "interval": None if interval is None else [round(interval.lo, 4), round(interval.hi, 4)],
    }
