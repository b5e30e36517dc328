"""Veteran: on alert, shoots whoever comes (rules, section 7.2)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, Level, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction

SHOT = DeathCause("veteran", "shot by a Veteran on alert")

ALERTS = 3


def _go_on_alert(night: NightState, deed: Deed) -> None:
    night.defend(deed.seat, Level.BASIC)
    night.later(Step.ATTACK, lambda: _shoot_visitors(night, deed.seat))


def _shoot_visitors(night: NightState, seat: int) -> None:
    for visitor in night.visitors(seat):
        night.attack(seat, visitor, Level.POWERFUL, SHOT, is_direct=False)


ROLE = Role(
    name="Veteran",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_KILLING,
    card=f"On {ALERTS} nights of the game you may go on alert: you shoot everybody who visits you that night, friend "
    "or foe, and basic attacks do not kill you. You cannot be blocked or controlled.",
    goal=GOAL,
    group="town",
    investigator_group=1,
    investigator_place=2,
    worth=0.2,
    attack=Level.POWERFUL,
    is_unique=True,
    is_block_immune=True,
    is_control_immune=True,
    leaves_notes=True,
    shoots_visitors=True,
    causes=(SHOT,),
    abilities=(
        NightAbility(
            verb="alert",
            tactic=tactics.alert,
            help="shoot whoever visits you tonight",
            step=Step.PREPARE,
            effect=_go_on_alert,
            uses=ALERTS,
            is_visit=False,
        ),
    ),
)
