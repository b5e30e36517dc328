"""Mafioso: carries out the Mafia's kill (rules, section 8.1)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles.base import Alignment, Level, Role
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, KILL_ABILITY, KILLED
from mac_runner.environments.town_of_salem.state import Faction

ROLE = Role(
    name="Mafioso",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_KILLING,
    card="You carry out the Mafia's kill: the Godfather's choice if he makes one, else your own. When the Godfather "
    "dies you take his place.",
    goal=GOAL,
    group="mafia",
    investigator_group=1,
    investigator_place=3,
    attack=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    may_become=("godfather",),
    causes=(KILLED,),
    abilities=(KILL_ABILITY,),
)
