"""Consort: the Escort of the Mafia (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.roles.base import Alignment, Role
from mac_runner.environments.town_of_salem.roles.escort import BLOCK_ABILITY
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Faction

ROLE = Role(
    name="Consort",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night block one player: whatever they chose to do that night does not happen. You cannot be blocked. If "
    "the Godfather and the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=8,
    investigator_place=3,
    is_block_immune=True,
    may_become=RANKS,
    abilities=(replace(BLOCK_ABILITY, aims=outsiders),),
)
