"""Godfather: leads the Mafia and looks innocent (rules, section 8.1)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles.base import Alignment, Level, Role
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, KILL_ABILITY, KILLED
from mac_runner.environments.town_of_salem.state import Faction

ROLE = Role(
    name="Godfather",
    short_names=("GF",),
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_KILLING,
    card="Each night choose whom the Mafia kills; a Mafioso who is able goes in your place. A Sheriff does not find "
    "you suspicious, and basic attacks at night do not kill you.",
    goal=GOAL,
    group="mafia",
    investigator_group=11,
    investigator_place=2,
    attack=Level.BASIC,
    defence=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    is_detection_immune=True,
    outlasts=lambda other: other.id == "transporter",
    causes=(KILLED,),
    abilities=(KILL_ABILITY,),
)
