"""Bodyguard: dies for another and takes the killer along (rules, sections 7.4 and 6 step 9)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Guard,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
)
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.roles.vest import VEST_ABILITY
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction

STRUCK = DeathCause("bodyguard", "killed by a Bodyguard")
FALLEN = DeathCause("guarding", "killed while guarding somebody")

GUARD = "guard"


def _step_before(night: NightState, deed: Deed, house: int) -> None:
    night.guards[house].append(Guard(deed.seat, falls_by=FALLEN, strikes_by=STRUCK))


def _put_on(night: NightState, deed: Deed) -> None:
    """A Bodyguard who was moved finds somebody else behind his vest, and guards them."""
    house = night.place(deed.seat)
    if house == deed.seat:
        night.defend(deed.seat, Level.BASIC)
    else:
        _step_before(night, deed, house)


ROLE = Role(
    name="Bodyguard",
    short_names=("BG",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_PROTECTIVE,
    card="Each night guard one player: whoever attacks them in person meets you instead, and you strike back with a "
    "powerful attack; you will hardly survive it. Once in the game you may put on a vest instead and be safe from "
    "basic attacks yourself.",
    goal=GOAL,
    group="town",
    investigator_group=11,
    investigator_place=1,
    attack=Level.POWERFUL,
    is_raisable=True,
    causes=(STRUCK, FALLEN),
    abilities=(
        NightAbility(
            verb=GUARD,
            tactic=tactics.protect,
            help="step between that player and whoever attacks them tonight",
            step=Step.PROTECT,
            effect=lambda night, deed: _step_before(night, deed, night.house(deed)),
            aims=others,
            # The one vest is the Bodyguard's own to put on.
            under_control=lambda seat, victim: (
                None if victim == seat else Deed(seat=seat, verb=GUARD, targets=(victim,))
            ),
        ),
        replace(VEST_ABILITY, uses=1, effect=_put_on),
    ),
)
