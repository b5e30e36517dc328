"""Serial Killer: kills every night, and whoever gets in the way (rules, sections 9.1 and 7.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    Role,
    Step,
    others,
)
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night

CAUTIOUS = "cautious"


def _change_mind(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    marks = player.marks ^ {CAUTIOUS}
    told = private(state, EventKind.CAUTION, (player.seat,), is_cautious=CAUTIOUS in marks)
    return Changed(state.with_player(replace(player, marks=marks)), (told,))


def _stab(night: Night, deed: Deed) -> None:
    night.attack(deed.seat, night.house(deed), Level.BASIC, "serial killer")


def _turn_on(night: Night, seat: int, victim: int) -> None:
    night.attack(seat, victim, Level.BASIC, "serial killer", is_bloody=True)


def _meet_blocker(night: Night, seat: int, blocker: int) -> bool:
    """A Serial Killer who is not cautious cannot be kept busy: he turns on the blocker."""
    if CAUTIOUS in night.player(seat).marks:
        return True
    night.later(Step.ATTACK, lambda: _turn_on(night, seat, blocker))
    return night.state.options.sk_blocked != "both"


def _meet_jailor(night: Night, seat: int) -> None:
    keeper = night.state.keeper
    is_waiting = seat == night.state.prisoner and CAUTIOUS not in night.player(seat).marks
    if keeper is not None and is_waiting:
        night.later(Step.ATTACK, lambda: None if night.is_executed(seat) else _turn_on(night, seat, keeper))


ROLE = Role(
    name="Serial Killer",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_KILLING,
    card="Each night kill one player. Whoever blocks you is killed too, and so is a Jailor who jails you and does not "
    "execute you; their wills cannot be read. By day you may decide to be cautious and leave them alone. Basic attacks "
    "at night do not kill you.",
    goal="See dead everybody who could stop you: Town, Mafia and all other killers.",
    group="serial killer",
    investigator_group=9,
    attack=Level.BASIC,
    defence=Level.BASIC,
    leaves_notes=True,
    suspicious_when=lambda state: True,
    when_blocked=_meet_blocker,
    by_night=_meet_jailor,
    abilities=(
        NightAbility(verb="stab", help="kill that player", step=Step.ATTACK, effect=_stab, aims=others),
        DayAbility(
            verb="caution",
            help="from now on leave alone those who block or jail you; again, to kill them as before",
            effect=_change_mind,
        ),
    ),
)
