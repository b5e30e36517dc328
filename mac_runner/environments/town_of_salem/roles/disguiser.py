"""Disguiser: makes one of the Mafia pass for somebody else (rules, section 8.2)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

DISGUISE = "disguise"


def _own(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living if other.faction is Faction.MAFIA)


def _disguise(night: NightState, deed: Deed) -> None:
    member = deed.targets[0]
    if member == night.state.prisoner:
        night.tell(deed.seat, EventKind.TARGET_JAILED, target=night.name_of(member))
        return
    night.disguises[member] = night.house(deed)


ROLE = Role(
    name="Disguiser",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_DECEPTION,
    card="Each night name a member of the Mafia, yourself if you like, and somebody else to be copied: that night the "
    "member shows the other's list to an Investigator and the other's name to a Lookout, and if the member dies that "
    "night, the other's role is shown. If the Godfather and the Mafioso are both dead, a member of the Mafia takes up "
    "the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=9,
    investigator_place=2,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb=DISGUISE,
            tactic=tactics.disguise,
            help="have the first player, who is of the Mafia, pass for the second one tonight",
            step=Step.PROTECT,
            effect=_disguise,
            aims=_own,
            second_aims=outsiders,
            visited=1,
            under_control=lambda seat, victim: Deed(seat=seat, verb=DISGUISE, targets=(seat, victim)),
        ),
    ),
)
