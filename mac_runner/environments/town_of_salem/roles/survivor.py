"""Survivor: wants to see the end (rules, section 11)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.roles.base import Alignment, Role
from mac_runner.environments.town_of_salem.roles.vest import VEST_ABILITY
from mac_runner.environments.town_of_salem.state import Faction, GameState, Player

VESTS = 4


def _is_there_at_the_end(state: GameState, player: Player) -> bool:
    # A game that was stopped has no end to be there at.
    return player.alive and state.result is not None and state.result.ending != "capped"


ROLE = Role(
    name="Survivor",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_BENIGN,
    card=f"You have {VESTS} vests, each of which saves you from basic attacks for one night.",
    goal="Be alive when the game ends, whoever else wins.",
    group=None,
    investigator_group=3,
    investigator_place=1,
    is_detection_immune=True,
    is_convertible=True,
    has_won=_is_there_at_the_end,
    abilities=(replace(VEST_ABILITY, uses=VESTS),),
)
