"""Mafia Killing: Godfather and Mafioso, and the kill of the whole Mafia (rules, section 8.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from mac_runner.environments.town_of_salem.model.events import EventKind, Events, private
from mac_runner.environments.town_of_salem.model.night import Level, Step
from mac_runner.environments.town_of_salem.model.role import Alignment, Changed, NightAbility, NightState, Role, become
from mac_runner.environments.town_of_salem.model.state import (
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Player,
    holder,
)

# The kill of the Mafia and its chain of command.
KILLED = DeathCause("mafia", "killed by the Mafia", guard_order=0, is_visible=True)

KILL = "kill"
_PROMOTED = "promoted by the Mafia"
RANKS = MappingProxyType({"mafioso": _PROMOTED, "godfather": _PROMOTED})
"""The roles that any member may rise to, and why."""
MAFIA_GOAL = "You win with the Mafia when the Town and all others who could stop you are dead."
IN_COMMON = (
    "Its members talk at night, and it kills one player a night. If the Godfather and the Mafioso are both dead, "
    "another member becomes the Mafioso."
)
_role = partial(
    Role,
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_KILLING,
    goal=MAFIA_GOAL,
    in_common=IN_COMMON,
    group="mafia",
)


def members(state: GameState) -> tuple[Player, ...]:
    """Every member of the Mafia, dead or alive, in seat order."""
    return tuple(player for player in state.players if player.faction is Faction.MAFIA)


def outsiders(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player who is not of the Mafia."""
    return tuple(other.seat for other in state.living if other.faction is not Faction.MAFIA)


def _settle_who_kills(night: NightState) -> None:
    """Give the night's one kill to the hand that does it: the Mafioso if he is able, else the Godfather."""
    orders = {action.seat: action for action in night.actions if action.verb == KILL}
    boss = holder(night.state, GODFATHER.id)
    hand = holder(night.state, MAFIOSO.id)
    if hand is None or not night.is_able(hand.seat):
        return
    order = orders.get(boss.seat) if boss is not None and night.is_able(boss.seat) else None
    is_own = hand.seat in night.controlled and night.state.options.mafioso_control == "control"
    if order is None or (is_own and hand.seat in orders):
        night.actions = [action for action in night.actions if action.verb != KILL or action.seat == hand.seat]
        return
    night.actions = [action for action in night.actions if action.verb != KILL]
    night.actions.append(replace(order, seat=hand.seat))


def _kill(night: NightState, action: NightAction) -> None:
    night.attack(action.seat, night.house(action), night.role_of(action.seat).attack, KILLED)


KILL_ABILITY = NightAbility(
    verb=KILL,
    tactic="kill",
    is_kill=True,
    help="have the Mafia kill that player tonight; the Godfather's choice goes before all others",
    step=Step.ATTACK,
    effect=_kill,
    aims=outsiders,
    orders=_settle_who_kills,
)


def promote(state: GameState, fallen: Sequence[Player]) -> Changed:
    """Close the ranks after `fallen` died: a Mafioso follows a Godfather; with neither left, one other member, drawn by
    lot, becomes Mafioso.
    """
    living = [player for player in members(state) if player.alive]
    if not living or any(player.role == GODFATHER.id for player in living):
        return Changed(state)
    heir = next((player for player in living if player.role == MAFIOSO.id), None)
    if heir is not None and all(player.role != GODFATHER.id for player in fallen):
        return Changed(state)
    role = GODFATHER if heir else MAFIOSO
    heir = heir or state.chance("promotion", state.day, state.phase).choice(living)
    state = state.with_player(become(state, heir, role))
    others = [player.seat for player in living if player.seat != heir.seat]
    events: Events = (private(state, EventKind.CONVERTED, (heir.seat,), role=role.name),)
    if others:
        events += (private(state, EventKind.TEAM_CHANGED, others, player=heir.name, role=role.name),)
    return Changed(state, events)


# The Godfather leads the Mafia and looks innocent.
GODFATHER = _role(
    name="Godfather",
    is_key=True,
    short_names=("GF",),
    card="Each night choose whom the Mafia kills. A Mafioso who can act carries out the kill for you. A Sheriff "
    "does not find you suspicious. You survive basic attacks at night.",
    investigator_group=11,
    investigator_place=2,
    attack=Level.BASIC,
    defence=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    is_detection_immune=True,
    outlasts=lambda other: other.id == "transporter",
    causes=(KILLED,),
    team_rank=2,
    abilities=(KILL_ABILITY,),
)


# The Mafioso carries out the Mafia's kill.
MAFIOSO = _role(
    name="Mafioso",
    team_rank=1,
    card="Each night carry out the Mafia's kill, on the Godfather's choice or, if he makes none, on your own. When the "
    "Godfather dies, you take his place.",
    investigator_group=1,
    investigator_place=3,
    attack=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    may_become=MappingProxyType({"godfather": _PROMOTED}),
    causes=(KILLED,),
    abilities=(KILL_ABILITY,),
)
