"""Vampire Hunter: looks for Vampires and stakes them (rules, section 10)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Changed,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    become,
    others,
)
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.roles.vigilante import ROLE as VIGILANTE
from mac_runner.environments.town_of_salem.roles.vigilante import SHOOT
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction, GameState, Player

STAKED = DeathCause("staked", "staked by a Vampire Hunter", guard_order=5)


def _check(night: NightState, deed: Deed) -> None:
    house = night.house(deed)
    if night.role_of(house).faction is Faction.VAMPIRE:
        night.attack(deed.seat, house, Level.BASIC, STAKED)
        night.find(deed.seat, deed.targets[0], "a Vampire")
    else:
        night.find(deed.seat, deed.targets[0], "not a Vampire")


def _look_for_work(state: GameState, player: Player) -> Changed:
    """With no Vampire left to hunt, a hunter is a Vigilante with one bullet."""
    if not player.alive or any(other.faction is Faction.VAMPIRE for other in state.living):
        return Changed(state)
    armed = replace(become(state, player, VIGILANTE), uses={SHOOT: 1})
    told = private(state, EventKind.CONVERTED, (player.seat,), role=VIGILANTE.name)
    return Changed(state.with_player(armed), (told,))


ROLE = Role(
    name="Vampire Hunter",
    short_names=("VH",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_KILLING,
    card="Each night check one player: a Vampire is staked. A Vampire who bites you is staked too. You hear what the "
    "Vampires say at night, not who says it. When no Vampire lives, you become a Vigilante with one bullet.",
    goal=GOAL,
    group="town",
    investigator_group=3,
    investigator_place=2,
    attack=Level.BASIC,
    is_raisable=True,
    # In the classic list there are no Vampires to hunt.
    is_classic=False,
    hunts_vampires=True,
    overhears=lambda options: Faction.VAMPIRE,
    after_deaths=_look_for_work,
    may_become=("vigilante",),
    causes=(STAKED,),
    abilities=(
        NightAbility(
            verb="check",
            tactic=tactics.ask,
            help="learn whether that player is a Vampire, and stake them if so",
            step=Step.ATTACK,
            effect=_check,
            aims=others,
        ),
    ),
)
