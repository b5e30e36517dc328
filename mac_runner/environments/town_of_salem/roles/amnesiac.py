"""Amnesiac: becomes what one of the dead was (rules, section 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.roles import catalogue
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step, become
from mac_runner.environments.town_of_salem.roles.teams import join_team
from mac_runner.environments.town_of_salem.roles.vampire import BITTEN
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night


def _remembered_as(state: GameState, corpse: Player) -> str | None:
    """The role a corpse can be remembered as; None when it is hidden or not to be had."""
    shown = corpse.shown_role
    if shown is None or shown == "amnesiac":
        return None
    role = catalogue.role(shown)
    if role.id == "godfather" and not any(other.faction is Faction.MAFIA for other in state.living):
        return "mafioso"
    if not role.is_unique:
        return role.id
    is_barred = state.options.amnesiac == "no_unique_town" and role.faction is Faction.TOWN
    is_held = any(other.role == role.id for other in state.living)
    return None if is_barred or is_held else role.id


def _dead(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.players if _remembered_as(state, other) is not None)


def _remember(night: Night, deed: Deed) -> None:
    player = night.player(deed.seat)
    role_id = _remembered_as(night.state, night.player(deed.targets[0]))
    if not player.alive or BITTEN in night.tonight[deed.seat]:
        return
    if role_id is None:
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(deed.targets[0]))
        return
    role = catalogue.role(role_id)
    night.put(role.deal(night.state, become(night.state, player, role)))
    player = night.player(deed.seat)
    name = catalogue.role(player.role).name
    night.announce(public(night.state, EventKind.REMEMBERED, role=role.name))
    night.tell(deed.seat, EventKind.CONVERTED, role=name)
    if player.quarry is not None:
        night.tell(deed.seat, EventKind.QUARRY, target=night.name_of(player.quarry))
    join_team(night, player)


ROLE = Role(
    name="Amnesiac",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_BENIGN,
    card="You have forgotten who you are. From night 2 you may choose one of the dead whose role was shown, and at "
    "dawn you are what they were, with all they could do at the start. Everybody learns what was remembered, but not "
    "by whom.",
    goal="Remember a role, and win as that role wins.",
    group=None,
    investigator_group=3,
    is_detection_immune=True,
    is_convertible=True,
    abilities=(
        NightAbility(
            verb="remember",
            help="become what that dead player was",
            step=Step.REPORT,
            effect=_remember,
            aims=_dead,
            first_night=2,
            is_visit=False,
        ),
    ),
)
