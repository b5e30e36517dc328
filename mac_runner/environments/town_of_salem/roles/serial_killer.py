"""Serial Killer: kills every night, and whoever gets in the way (rules, sections 9.1 and 7.3)."""

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
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction, GameState, Player

STABBED = DeathCause("serial killer", "stabbed by a Serial Killer", guard_order=1, is_visible=True)

CAUTIOUS = "cautious"


def _change_mind(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    marks = player.marks ^ {CAUTIOUS}
    told = private(state, EventKind.CAUTION, (player.seat,), is_cautious=CAUTIOUS in marks)
    return Changed(state.with_player(replace(player, marks=marks)), (told,))


def _stab(night: NightState, deed: Deed) -> None:
    night.attack(deed.seat, night.house(deed), Level.BASIC, STABBED)


def _turn_on(night: NightState, seat: int, victim: int) -> None:
    night.attack(seat, victim, Level.BASIC, STABBED, is_bloody=True)


def _meet_blocker(night: NightState, seat: int, blocker: int) -> bool:
    """A Serial Killer who is not cautious cannot be kept busy: he turns on the blocker."""
    if CAUTIOUS in night.player(seat).marks:
        return True
    night.later(Step.ATTACK, lambda: _turn_on(night, seat, blocker))
    return night.state.options.sk_blocked != "both"


def _meet_jailor(night: NightState, seat: int) -> None:
    keeper = night.state.keeper
    is_waiting = seat == night.state.prisoner and CAUTIOUS not in night.player(seat).marks
    if keeper is not None and is_waiting:
        night.later(Step.ATTACK, lambda: None if night.is_executed(seat) else _turn_on(night, seat, keeper))


ROLE = Role(
    name="Serial Killer",
    short_names=("SK",),
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_KILLING,
    card="Each night kill one player. Whoever blocks you is killed too, and so is a Jailor who jails you and does not "
    "execute you; their wills cannot be read. By day you may decide to be cautious and leave them alone. Basic attacks "
    "at night do not kill you.",
    goal="See dead everybody who could stop you: Town, Mafia and all other killers.",
    group="serial killer",
    investigator_group=9,
    investigator_place=3,
    kills_jailors=True,
    attack=Level.BASIC,
    defence=Level.BASIC,
    leaves_notes=True,
    suspicious_when=lambda state: True,
    when_blocked=_meet_blocker,
    by_night=_meet_jailor,
    outlasts=lambda other: other.id in ("godfather", "mafioso", "vampire", "transporter"),
    kills_blockers=True,
    causes=(STABBED,),
    abilities=(
        NightAbility(
            verb="stab", tactic=tactics.strike, help="kill that player", step=Step.ATTACK, effect=_stab, aims=others
        ),
        DayAbility(
            verb="caution",
            help="from now on leave alone those who block or jail you; again, to kill them as before",
            effect=_change_mind,
        ),
    ),
)
