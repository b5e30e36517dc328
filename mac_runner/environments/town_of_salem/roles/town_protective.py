"""Town Protective: Bodyguard and Doctor (rules, section 7.4 and section 6, steps 9 and 10)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import FAILED, Notice, Says
from mac_runner.environments.town_of_salem.model.role import (
    TOWN_GOAL,
    Alignment,
    Guard,
    Level,
    NightAbility,
    NightState,
    Protection,
    Role,
    Step,
    everybody,
    others,
)
from mac_runner.environments.town_of_salem.model.state import DeathCause, Faction, GameState, NightAction, Player

_role = partial(Role, faction=Faction.TOWN, alignment=Alignment.TOWN_PROTECTIVE, goal=TOWN_GOAL, group="town")

VEST_ABILITY = NightAbility(
    verb="vest",
    tactic="vest",
    help="put on a vest: a basic defence for tonight",
    step=Step.PROTECT,
    effect=lambda night, action: night.defend(action.seat, Level.BASIC),
    is_visit=False,
)


# The Bodyguard dies for another and takes the killer along (rules, section 7.4 and section 6, step 9).
STRUCK = DeathCause("bodyguard", "killed by a Bodyguard")
FALLEN = DeathCause("guarding", "killed while guarding somebody")

GUARD = "guard"


def _step_before(night: NightState, action: NightAction, house: int) -> None:
    night.protect(house, Protection(action.seat, "guarded", guard=Guard(falls_by=FALLEN, strikes_by=STRUCK)))


def _put_on(night: NightState, action: NightAction) -> None:
    """A Bodyguard who was moved guards the player who is in his place."""
    house = night.place(action.seat)
    if house == action.seat:
        night.defend(action.seat, Level.BASIC)
    else:
        _step_before(night, action, house)


BODYGUARD = _role(
    name="Bodyguard",
    short_names=("BG",),
    card="Each night guard one player: anyone who attacks them in person meets you instead, and you strike back with a "
    "powerful attack. You will probably die doing so. Once in the game you may wear a vest instead, and survive basic "
    "attacks that night.",
    investigator_group=11,
    investigator_place=1,
    attack=Level.POWERFUL,
    causes=(STRUCK, FALLEN),
    abilities=(
        NightAbility(
            verb=GUARD,
            tactic="protect",
            protects=True,
            account="I stood guard over {target}",
            help="step between that player and whoever attacks them tonight",
            step=Step.PROTECT,
            effect=lambda night, action: _step_before(night, action, night.house(action)),
            aims=others,
            # The one vest is the Bodyguard's own to put on.
            is_forced_on_self=False,
        ),
        replace(VEST_ABILITY, uses=1, effect=_put_on),
    ),
)


# The Doctor gives one player a powerful defence for the night (rules, section 7.4 and section 6, step 10).
SELF_HEALS = "self-heal"

PATIENT_ATTACKED = Notice(
    name="patient_attacked",
    words="Your patient {target} was attacked.",
    befalls="their patient was attacked",
    says=Says.ATTACKED,
    is_finding=True,
)


def _patients(state: GameState, player: Player) -> tuple[int, ...]:
    return others(state, player) if SELF_HEALS in player.marks else everybody(state, player)


def _heal(night: NightState, action: NightAction) -> None:
    if action.targets == (action.seat,):
        night.mark_for_good(action.seat, SELF_HEALS)
    house = night.house(action)
    if not night.role_of(house).is_healable(night.player(house)):
        night.notify(action.seat, FAILED, target=night.name_of(action.targets[0]))
        return
    night.protect(house, Protection(action.seat, "healed", Level.POWERFUL, PATIENT_ATTACKED))


DOCTOR = _role(
    name="Doctor",
    is_key=True,
    short_names=("doc",),
    card="Each night heal one player: they survive basic and powerful attacks that night. You learn whether your "
    "patient was attacked. You may heal yourself once in the game.",
    investigator_group=9,
    investigator_place=1,
    abilities=(
        NightAbility(
            verb="heal",
            tactic="protect",
            protects=True,
            account="I watched over {target}",
            help="protect that player from attacks tonight (yourself once in the game)",
            step=Step.PROTECT,
            effect=_heal,
            aims=_patients,
            # The one self-heal is the Doctor's own to give away.
            is_forced_on_self=False,
        ),
    ),
)
