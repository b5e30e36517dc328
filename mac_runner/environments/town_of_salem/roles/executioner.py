"""Executioner: wants one member of the Town lynched (rules, section 11)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles.base import Alignment, Changed, Level, Role, become
from mac_runner.environments.town_of_salem.roles.jester import ROLE as JESTER
from mac_runner.environments.town_of_salem.state import LYNCH, Faction, GameState, Player

# Roles the town would lynch too easily or not at all are never an Executioner's quarry.
SPARED = ("jailor", "mayor")


def _draw_quarry(state: GameState, player: Player) -> Player:
    candidates = [other.seat for other in state.living if other.faction is Faction.TOWN and other.role not in SPARED]
    if not candidates:
        return replace(become(state, player, JESTER), became_on=player.became_on)
    return replace(player, quarry=state.chance("quarry", player.seat).choice(candidates))


def _look_at_quarry(state: GameState, player: Player) -> Changed:
    quarry = None if player.quarry is None else state.players[player.quarry]
    if not player.alive or player.has_met_goal or quarry is None or quarry.death is None:
        return Changed(state)
    if quarry.death.causes == (LYNCH.name,):
        state = state.with_player(replace(player, has_met_goal=True))
        return Changed(state, (private(state, EventKind.GOAL_MET, (player.seat,)),))
    state = state.with_player(become(state, player, JESTER))
    return Changed(state, (private(state, EventKind.CONVERTED, (player.seat,), role=JESTER.name),))


ROLE = Role(
    name="Executioner",
    short_names=("exe",),
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_EVIL,
    card="You have a target, a member of the Town. Basic attacks at night do not kill you. If your target dies in any "
    "way but a lynch, you become a Jester.",
    goal="See your target lynched while you live. You win even if you die afterwards, whoever else wins.",
    group=None,
    investigator_group=5,
    investigator_place=2,
    defence=Level.BASIC,
    is_detection_immune=True,
    is_convertible=True,
    may_become=("jester",),
    deal=_draw_quarry,
    after_deaths=_look_at_quarry,
)
