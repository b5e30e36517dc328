"""What an ended game puts into the list of a run's conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mac_runner.environments.town_of_salem.game import GameResult
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.results import Column, Columns, Value, parsed
from mac_runner.structs import decode
from mac_runner.types import JsonObject

_FACTIONS: Final = tuple(faction.value for faction in Faction)
_LISTED: Final = frozenset({Faction.TOWN, Faction.MAFIA, Faction.NEUTRAL})


def game_values(outcome: JsonObject) -> Mapping[str, Value]:
    """The columns of one game. It was won by the factions that the table of wins counts.

    A faction's column has the agent definitions that played for it; `won_by` has those with a player who won.
    """
    return _values(parsed(GameResult, outcome, "the outcome in the index"))


def read_game_values(outcome: bytes | msgspec.Raw) -> Mapping[str, Value]:
    """The same from the outcome as JSON."""
    return _values(decode(outcome, GameResult))


def _values(game: GameResult) -> Mapping[str, Value]:
    # One loop: a list has a hundred thousand games.
    sides: dict[str, set[str]] = {faction: set() for faction in _FACTIONS}
    definitions, models, won_by, winners = set[str](), set[str](), set[str](), set(game.winners)
    for player in game.players:
        definition, faction = player.definition, player.faction
        definitions.add(definition)
        models.add(player.model)
        if faction in sides:
            sides[faction].add(definition)
        if player.won:
            winners.add(faction)
            won_by.add(definition)
    return {
        "winner": sorted(winners),
        "ending": game.ending,
        "days": game.days,
        **{faction: sorted(found) for faction, found in sides.items()},
        "definition": sorted(definitions),
        "model": sorted(models),
        "won_by": sorted(won_by),
    }


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
    read_game_values,
)
