"""Consigliere: learns one player's exact role (rules, section 8.2)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    NightAbility,
    NightState,
    Role,
    Step,
    with_article,
)
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction


def _look_into(night: NightState, deed: Deed) -> None:
    night.find(deed.seat, deed.targets[0], with_article(night.role_of(night.house(deed)).name))


ROLE = Role(
    name="Consigliere",
    short_names=("consig",),
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night learn the exact role of one player. Frames and petrol do not mislead you. If the Godfather and "
    "the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=10,
    investigator_place=2,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="look_into",
            tactic=tactics.ask,
            help="learn that player's exact role",
            step=Step.INVESTIGATE,
            effect=_look_into,
            aims=outsiders,
        ),
    ),
)
