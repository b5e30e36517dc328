"""Jailor: locks one player up for the night, talks with them unseen, and may execute them (rules, section 7.1)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
)
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction, GameState, Player

EXECUTED = DeathCause("jailor", "executed by the Jailor")

EXECUTIONS = 3
EXECUTE = "execute"


def _jail(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    chosen = private(state, EventKind.JAIL_CHOSEN, (player.seat,), target=state.players[target].name)
    return Changed(replace(state, jail_choice=target, keeper=player.seat), (chosen,))


def _has_prisoner(state: GameState, player: Player) -> bool:
    return player.alive and state.prisoner is not None and state.keeper == player.seat


def _execute(night: NightState, deed: Deed) -> None:
    prisoner = night.state.prisoner
    if prisoner is None:
        return
    night.attack(deed.seat, prisoner, Level.UNSTOPPABLE, EXECUTED, is_direct=False, reaches_jail=True)
    if night.role_of(prisoner).faction is Faction.TOWN:
        night.set_uses(deed.seat, deed.verb, 0)
        night.tell(deed.seat, EventKind.EXECUTIONS_LOST, target=night.name_of(prisoner))


ROLE = Role(
    name="Jailor",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_KILLING,
    card="By day choose one player to jail for the coming night; nobody is told. The prisoner can do nothing and "
    "nothing can be done to them, and the two of you can talk; they do not learn who you are. From night 2 you may "
    f"execute your prisoner, {EXECUTIONS} times in the game, and nothing can stop that; after executing a member of "
    "the Town you may execute no more.",
    goal=GOAL,
    group="town",
    investigator_group=4,
    investigator_place=3,
    worth=5.0,
    is_informed=True,
    attack=Level.UNSTOPPABLE,
    is_unique=True,
    leaves_notes=True,
    yields_to=lambda player, other: player.uses[EXECUTE] == 0 and other.id in ("arsonist", "serial killer"),
    causes=(EXECUTED,),
    abilities=(
        DayAbility(
            verb="jail",
            help="choose that player as your prisoner for the coming night (a later choice replaces it)",
            effect=_jail,
            aims=others,
        ),
        NightAbility(
            verb=EXECUTE,
            tactic=tactics.execute,
            help="kill your prisoner",
            step=Step.ATTACK,
            effect=_execute,
            uses=EXECUTIONS,
            first_night=2,
            is_visit=False,
            reaches_jail=True,
            is_offered=_has_prisoner,
        ),
    ),
)
