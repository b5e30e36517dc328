"""Vigilante: shoots, and cannot live with having shot one of the Town (rules, section 7.2)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
)
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction

SHOT = DeathCause("vigilante", "shot by a Vigilante", guard_order=2)
GUILT = DeathCause("guilt", "dead of guilt")

SHOOT = "shoot"
BULLETS = 3
GUILTY = "guilty"


def _shoot(night: NightState, deed: Deed) -> None:
    victim = night.house(deed)
    night.attack(deed.seat, victim, Level.BASIC, SHOT)
    night.later(Step.BURY, lambda: _look_at(night, deed.seat, victim))


def _look_at(night: NightState, seat: int, victim: int) -> None:
    """Who killed one of the Town throws the gun away and does not survive the next night."""
    is_his = any(attack.attacker == seat for attack in night.fatal.get(victim, ()))
    if is_his and victim != seat and night.role_of(victim).faction is Faction.TOWN:
        night.set_uses(seat, SHOOT, 0)
        night.mark_for_good(seat, GUILTY)
        night.tell(seat, EventKind.GUILT, target=night.name_of(victim))


def _regret(night: NightState, seat: int) -> None:
    if GUILTY in night.player(seat).marks and seat in night.living:
        night.attack(seat, seat, Level.UNSTOPPABLE, GUILT, is_direct=False, reaches_jail=True)


ROLE = Role(
    name="Vigilante",
    short_names=("vig", "vigi"),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_KILLING,
    card=f"You have {BULLETS} bullets. From night 2 you may shoot one player a night. If you kill a member of the "
    "Town, you lose the gun and die of guilt the night after, and nothing can prevent it.",
    goal=GOAL,
    group="town",
    investigator_group=1,
    investigator_place=1,
    attack=Level.BASIC,
    leaves_notes=True,
    is_raisable=True,
    holds_out=lambda player: player.uses[SHOOT] > 0,
    by_night=_regret,
    causes=(SHOT, GUILT),
    abilities=(
        NightAbility(
            verb=SHOOT,
            tactic=tactics.shoot,
            help="shoot that player",
            step=Step.ATTACK,
            effect=_shoot,
            aims=others,
            uses=BULLETS,
            first_night=2,
        ),
    ),
)
