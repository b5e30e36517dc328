"""Transporter: swaps two players for a night (rules, section 6 step 1)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player


def _anybody(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living)


def _swap(night: NightState, deed: Deed) -> None:
    for target in dict.fromkeys(deed.targets):
        night.visit(deed.seat, target)
    one, other = deed.targets
    if night.state.prisoner in deed.targets:
        night.note("target in jail", deed.seat, was=deed)
        night.tell(deed.seat, EventKind.TARGET_JAILED, target=night.name_of(night.state.prisoner))
    elif one != other:
        night.note("moved", one, other, by=deed.seat)
        night.swap(one, other)
        for moved in deed.targets:
            night.tell(moved, EventKind.TRANSPORTED)


ROLE = Role(
    name="Transporter",
    short_names=("TP",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night swap two players, yourself among them if you like: whoever aims at one reaches the other. Both "
    "learn that they were moved. You cannot be blocked or controlled.",
    goal=GOAL,
    group="town",
    investigator_group=8,
    investigator_place=2,
    is_block_immune=True,
    is_control_immune=True,
    outlasts=lambda other: other.id == "mafioso",
    abilities=(
        NightAbility(
            verb="swap",
            tactic=tactics.swap,
            help="swap two players tonight: whoever aims at one reaches the other",
            step=Step.TRANSPORT,
            effect=_swap,
            aims=_anybody,
            second_aims=_anybody,
            is_visit=False,
        ),
    ),
)
