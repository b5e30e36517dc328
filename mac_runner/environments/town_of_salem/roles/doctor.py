"""Doctor: gives one player a powerful defence for the night (rules, sections 7.4 and 6 step 10)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step, others
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

SELF_HEALS = "self-heal"


def _patients(state: GameState, player: Player) -> tuple[int, ...]:
    has_self_heal = SELF_HEALS not in player.marks
    return tuple(sorted((*others(state, player), player.seat))) if has_self_heal else others(state, player)


def _heal(night: NightState, deed: Deed) -> None:
    if deed.targets == (deed.seat,):
        night.mark_for_good(deed.seat, SELF_HEALS)
    house = night.house(deed)
    if not night.role_of(house).is_healable(night.player(house)):
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(deed.targets[0]))
        return
    night.healers[house].append(deed.seat)


def _heal_for_a_witch(seat: int, victim: int) -> Deed | None:
    # The one self-heal is the Doctor's own to give away.
    return None if victim == seat else Deed(seat=seat, verb="heal", targets=(victim,))


ROLE = Role(
    name="Doctor",
    short_names=("doc",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_PROTECTIVE,
    card="Each night heal one player: they survive every basic and powerful attack of that night. You learn whether "
    "your patient was attacked. You may heal yourself once in the game.",
    goal=GOAL,
    group="town",
    is_raisable=True,
    investigator_group=9,
    investigator_place=1,
    abilities=(
        NightAbility(
            verb="heal",
            tactic=tactics.protect,
            help="protect that player from attacks tonight (yourself once in the game)",
            step=Step.PROTECT,
            effect=_heal,
            aims=_patients,
            under_control=_heal_for_a_witch,
        ),
    ),
)
