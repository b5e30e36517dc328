"""FIXME Amnesiac: becomes what one of the dead was (rules, section 11).

Survivor: wants to see the end (rules, section 11).
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.game.events import EventKind, public
from mac_runner.environments.town_of_salem.game.state import Deed, Faction, GameState, Player
from mac_runner.environments.town_of_salem.night.state import NightState, Step
from mac_runner.environments.town_of_salem.roles import catalogue, tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, become, join_team
from mac_runner.environments.town_of_salem.roles.town_protective import VEST_ABILITY
from mac_runner.environments.town_of_salem.roles.vampire import BITTEN


def _remembered_as(state: GameState, corpse: Player) -> str | None:
    """The role a corpse can be remembered as; None when it is hidden or not to be had."""
    if not _is_shown(state, corpse):
        return None
    role = catalogue.role(corpse.shown_role or "")
    if role.id == "godfather" and not any(other.faction is Faction.MAFIA for other in state.living):
        return "mafioso"
    is_held = role.is_unique and any(other.role == role.id for other in state.living)
    return None if is_held else role.id


def _is_shown(state: GameState, corpse: Player) -> bool:
    """Whether a corpse was shown as what may be remembered, as far as everybody knows."""
    if corpse.shown_role is None or corpse.shown_role == "amnesiac":
        return False
    role = catalogue.role(corpse.shown_role)
    is_barred = state.options.amnesiac == "no_unique_town" and role.is_unique and role.faction is Faction.TOWN
    return not is_barred


def _dead(state: GameState, player: Player) -> tuple[int, ...]:
    """Whom he may choose. Trying shows whether a unique role was free: the list would tell that somebody holds it."""
    return tuple(other.seat for other in state.players if _is_shown(state, other))


def _remember(night: NightState, deed: Deed) -> None:
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


AMNESIAC = Role(
    name="Amnesiac",
    short_names=("amne",),
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_BENIGN,
    card="You have forgotten who you are. From night 2 you may choose one of the dead whose role was shown, and at "
    "dawn you are what they were, with all they could do at the start. Everybody learns what was remembered, but not "
    "by whom.",
    goal="Remember a role, and win as that role wins.",
    group=None,
    investigator_group=3,
    investigator_place=3,
    is_detection_immune=True,
    is_convertible=True,
    abilities=(
        NightAbility(
            verb="remember",
            tactic=tactics.remember,
            help="become what that dead player was",
            step=Step.REPORT,
            effect=_remember,
            aims=_dead,
            first_night=2,
            is_visit=False,
        ),
    ),
)


VESTS = 4


def _is_there_at_the_end(state: GameState, player: Player) -> bool:
    # A game that was stopped has no end to be there at.
    return player.alive and state.result is not None and state.result.ending != "capped"


SURVIVOR = Role(
    name="Survivor",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_BENIGN,
    card=f"You have {VESTS} vests, each of which saves you from basic attacks for one night.",
    goal="Be alive when the game ends, whoever else wins.",
    group=None,
    investigator_group=3,
    investigator_place=1,
    is_detection_immune=True,
    is_convertible=True,
    has_won=_is_there_at_the_end,
    abilities=(replace(VEST_ABILITY, uses=VESTS),),
)
