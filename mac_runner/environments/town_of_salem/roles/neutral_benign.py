"""Neutral Benign: Amnesiac and Survivor (rules, section 11)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import FAILED, EventKind, public
from mac_runner.environments.town_of_salem.model.night import Step
from mac_runner.environments.town_of_salem.model.role import (
    Alignment,
    NightAbility,
    NightState,
    Role,
    become,
    join_team,
)
from mac_runner.environments.town_of_salem.model.state import Faction, GameState, NightAction, Player
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES
from mac_runner.environments.town_of_salem.roles.town_protective import VEST_ABILITY
from mac_runner.environments.town_of_salem.roles.vampire import BITTEN

_role = partial(
    Role,
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_BENIGN,
    group=None,
    investigator_group=3,
    is_detection_immune=True,
    is_convertible=True,
)


# The Amnesiac becomes what one of the dead was.
def _remembered_as(state: GameState, corpse: Player) -> str | None:
    """The role a corpse can be remembered as; None when it is hidden or held."""
    if not _is_shown(state, corpse):
        return None
    role = ROLES[corpse.shown_role or ""]
    if role.id == "godfather" and not any(other.faction is Faction.MAFIA for other in state.living):
        return "mafioso"
    is_held = role.is_unique and any(other.role == role.id for other in state.living)
    return None if is_held else role.id


def _is_shown(state: GameState, corpse: Player) -> bool:
    """Whether a corpse was shown as a role that may be remembered."""
    if corpse.shown_role is None or corpse.shown_role == "amnesiac":
        return False
    role = ROLES[corpse.shown_role]
    is_barred = state.options.amnesiac == "no_unique_town" and role.is_unique and role.faction is Faction.TOWN
    return not is_barred


def _dead(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead to choose from. Only trying shows whether a unique role is free: it is secret that one is held."""
    return tuple(other.seat for other in state.players if _is_shown(state, other))


def _remember(night: NightState, action: NightAction) -> None:
    player = night.player(action.seat)
    role_id = _remembered_as(night.state, night.player(action.targets[0]))
    if not player.alive or BITTEN in night.tonight[action.seat]:
        return
    if role_id is None:
        night.notify(action.seat, FAILED, target=night.name_of(action.targets[0]))
        return
    role = ROLES[role_id]
    night.put(role.deal(night.state, become(night.state, player, role)))
    player = night.player(action.seat)
    name = ROLES[player.role].name
    night.announce(public(night.state, EventKind.REMEMBERED, role=role.name))
    night.notify(action.seat, EventKind.CONVERTED, role=name)
    if player.quarry is not None:
        night.notify(action.seat, EventKind.QUARRY, target=night.name_of(player.quarry))
    join_team(night, player)


AMNESIAC = _role(
    name="Amnesiac",
    short_names=("amne",),
    card="From night 2 on you may choose a dead player whose role was shown; at dawn you take over that role, with "
    "all its uses. Everyone learns which role was remembered, but not by whom.",
    goal="Remember a role; then you win as that role wins.",
    investigator_place=3,
    abilities=(
        NightAbility(
            verb="remember",
            becomes="remembered",
            tactic="remember",
            help="become what that dead player was",
            step=Step.REPORT,
            effect=_remember,
            aims=_dead,
            first_night=2,
            is_visit=False,
        ),
    ),
)


# The Survivor wants to see the end.
VESTS = 4


def _is_there_at_the_end(state: GameState, player: Player) -> bool:
    # A game that was stopped has no end to live to.
    return player.alive and state.result is not None and state.result.ending != "capped"


SURVIVOR = _role(
    name="Survivor",
    card=f"You have {VESTS} vests, and each of them lets you survive basic attacks for one night.",
    goal="You win if you are alive when the game ends, whoever else wins.",
    investigator_place=1,
    has_won=_is_there_at_the_end,
    abilities=(replace(VEST_ABILITY, uses=VESTS),),
)
