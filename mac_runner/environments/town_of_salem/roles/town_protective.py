"""FIXME The bulletproof vest, which several roles own.

Bodyguard: dies for another and takes the killer along (rules, sections 7.4 and 6 step 9).

Doctor: gives one player a powerful defence for the night (rules, sections 7.4 and 6 step 10).
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import DeathCause, Deed, Faction, GameState, Player
from mac_runner.environments.town_of_salem.night.state import Guard, Level, NightState, Step
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import TOWN_GOAL, Alignment, NightAbility, Role, others

VEST = "vest"
VEST_ABILITY = NightAbility(
    verb=VEST,
    tactic=tactics.vest,
    help="put on a vest: a basic defence for tonight",
    step=Step.PROTECT,
    effect=lambda night, deed: night.defend(deed.seat, Level.BASIC),
    is_visit=False,
)


STRUCK = DeathCause("bodyguard", "killed by a Bodyguard")
FALLEN = DeathCause("guarding", "killed while guarding somebody")

GUARD = "guard"


def _step_before(night: NightState, deed: Deed, house: int) -> None:
    night.guards[house].append(Guard(deed.seat, falls_by=FALLEN, strikes_by=STRUCK))


def _put_on(night: NightState, deed: Deed) -> None:
    """A Bodyguard who was moved finds somebody else behind his vest, and guards them."""
    house = night.place(deed.seat)
    if house == deed.seat:
        night.defend(deed.seat, Level.BASIC)
    else:
        _step_before(night, deed, house)


BODYGUARD = Role(
    name="Bodyguard",
    short_names=("BG",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_PROTECTIVE,
    card="Each night guard one player: whoever attacks them in person meets you instead, and you strike back with a "
    "powerful attack; you will hardly survive it. Once in the game you may put on a vest instead and be safe from "
    "basic attacks yourself.",
    goal=TOWN_GOAL,
    group="town",
    investigator_group=11,
    investigator_place=1,
    attack=Level.POWERFUL,
    is_raisable=True,
    causes=(STRUCK, FALLEN),
    abilities=(
        NightAbility(
            verb=GUARD,
            tactic=tactics.protect,
            help="step between that player and whoever attacks them tonight",
            step=Step.PROTECT,
            effect=lambda night, deed: _step_before(night, deed, night.house(deed)),
            aims=others,
            # The one vest is the Bodyguard's own to put on.
            under_control=lambda seat, victim: (
                None if victim == seat else Deed(seat=seat, verb=GUARD, targets=(victim,))
            ),
        ),
        replace(VEST_ABILITY, uses=1, effect=_put_on),
    ),
)


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


DOCTOR = Role(
    name="Doctor",
    short_names=("doc",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_PROTECTIVE,
    card="Each night heal one player: they survive every basic and powerful attack of that night. You learn whether "
    "your patient was attacked. You may heal yourself once in the game.",
    goal=TOWN_GOAL,
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
