"""Framer: makes one player look guilty for a night (rules, section 8.2)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Faction

FRAMED = "framed"

ROLE = Role(
    name="Framer",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_DECEPTION,
    card="Each night frame one player: for that night they look suspicious to a Sheriff and like a Framer to an "
    "Investigator. If the Godfather and the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=6,
    investigator_place=1,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="frame",
            tactic=tactics.anybody,
            help="make that player look guilty to investigations tonight",
            step=Step.PROTECT,
            effect=lambda night, deed: night.tonight[night.house(deed)].add(FRAMED),
            aims=outsiders,
        ),
    ),
)
