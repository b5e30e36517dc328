"""The rewards of a player of Town of Salem."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.results.games import PlayerResult, faction_dealt
from mac_runner.results import parsed
from mac_runner.types import JsonObject


class _Player(PlayerResult, frozen=True, kw_only=True):
    agent: str
    alive: bool


class _Game(msgspec.Struct, frozen=True):
    winners: frozenset[str]
    players: tuple[_Player, ...]


def game_rewards(outcome: JsonObject, agent: str) -> Mapping[str, float]:
    """Whether a player won, whether its faction did, and whether it lived to the end; nothing for another name.

    The faction is that of the role it was dealt. A neutral player has no faction but its own goal.
    """
    game = parsed(_Game, outcome, "the outcome")
    player = next((player for player in game.players if player.agent == agent), None)
    if player is None:
        return {}
    faction = faction_dealt(player)
    has_faction_won = player.won if faction == Faction.NEUTRAL else faction in game.winners
    return {"won": float(player.won), "faction_won": float(has_faction_won), "survived": float(player.alive)}
