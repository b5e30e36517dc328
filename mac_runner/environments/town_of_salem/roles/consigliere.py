"""Consigliere: learns one player's exact role (rules, section 8.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night


def _look_into(night: Night, deed: Deed) -> None:
    name = night.role_of(night.house(deed)).name
    night.find(deed.seat, deed.targets[0], f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


ROLE = Role(
    name="Consigliere",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night learn the exact role of one player. Frames and petrol do not mislead you. If the Godfather and "
    "the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=10,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="look_into",
            help="learn that player's exact role",
            step=Step.INVESTIGATE,
            effect=_look_into,
            aims=outsiders,
        ),
    ),
)
