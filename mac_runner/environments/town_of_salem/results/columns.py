"""What an ended game puts into the list of a run's conversations, and when its rounds were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mac_runner.environments.town_of_salem.game.state import Faction, Phase
from mac_runner.environments.town_of_salem.results.games import GameResult
from mac_runner.environments.town_of_salem.view.narration import moment
from mac_runner.results import Column, Columns, Value, parsed
from mac_runner.types import JsonObject

_LISTED: Final = frozenset({Faction.TOWN, Faction.MAFIA, Faction.NEUTRAL})


def game_values(outcome: JsonObject) -> Mapping[str, Value]:
    """The columns of one game. It was won by the factions that the table of wins counts.

    A faction's column has the agent definitions that played for it; `won_by` has those with a player who won.
    """
    game = parsed(GameResult, outcome, "the outcome in the index")
    sides: dict[str, Value] = {
        faction.value: _names(player.definition for player in game.players if player.faction == faction.value)
        for faction in Faction
    }
    return {
        "winner": sorted(game.winners | {player.faction for player in game.players if player.won}),
        "ending": game.ending,
        "days": game.days,
        **sides,
        "definition": _names(player.definition for player in game.players),
        "model": _names(player.model for player in game.players),
        "won_by": _names(player.definition for player in game.players if player.won),
    }


def _names(found: Iterable[str]) -> list[str]:
    return sorted(set(found))


GAME_COLUMNS: Final = Columns(
    {
        "winner": Column("words", is_headline=True),
        "ending": Column("word"),
        "days": Column("number"),
        **{faction.value: Column("words", is_listed=faction in _LISTED) for faction in Faction},
        "definition": Column("words", is_listed=False),
        "model": Column("words", is_listed=False),
        "won_by": Column("words", is_listed=False),
    },
    game_values,
)


class _Moment(msgspec.Struct, frozen=True):
    round: int
    day: int
    phase: str


def moments(record: JsonObject) -> Mapping[int, str]:
    """When each round was: `Day 2, voting`, `Night 3`."""
    acts = parsed(list[_Moment], record.get("acts", []), "the acts of the record")
    return {act.round: moment(act.day, Phase(act.phase)) for act in acts}
