"""Arsonist: pours petrol over the houses of a town, and then sets fire to all of them (rules, section 9.2)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    DOUSED,
    Alignment,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
)
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction

BURNT = DeathCause("arsonist", "burnt by an Arsonist")

IGNITE = "ignite"
DOUSE = "douse"


def _pour_over(night: NightState, seat: int) -> None:
    night.mark_for_good(seat, DOUSED)
    if night.role_of(seat) is ROLE:
        night.tell(seat, EventKind.DOUSED)
    else:
        night.unnoticed.append((seat, EventKind.DOUSED))


def _keep_house(night: NightState, seat: int) -> None:
    if night.player(seat).alive:
        night.later(Step.PROTECT, lambda: _pour_over_visitors(night, seat))


def _pour_over_visitors(night: NightState, seat: int) -> None:
    visitors = night.visitors(seat)
    for visitor in visitors:
        _pour_over(night, visitor)
    if visitors:
        names = [night.name_of(night.looks_like(visitor)) for visitor in visitors]
        night.tell(seat, EventKind.VISITED, visitors=list(names))


def _ignite(night: NightState, deed: Deed) -> None:
    for player in night.state.living:
        if DOUSED in player.marks and player.seat != deed.seat:
            night.attack(deed.seat, player.seat, Level.UNSTOPPABLE, BURNT, is_direct=False, reaches_jail=True)


def _wash(night: NightState, deed: Deed) -> None:
    player = night.player(deed.seat)
    night.put(replace(player, marks=player.marks - {DOUSED}))


ROLE = Role(
    name="Arsonist",
    short_names=("arso",),
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_KILLING,
    card="Each night do one of three things: douse one player, who does not learn of it; set fire to all who are "
    "doused, which nothing can stop; or wash off what another Arsonist poured over you. Whoever visits you is doused "
    "too, and you learn who it was. Basic attacks at night do not kill you.",
    goal="See dead everybody who could stop you: Town, Mafia and all other killers.",
    group="arsonist",
    investigator_group=11,
    investigator_place=3,
    attack=Level.UNSTOPPABLE,
    defence=Level.BASIC,
    is_detection_immune=True,
    leaves_notes=True,
    by_night=_keep_house,
    outlasts=lambda other: (
        other.faction is Faction.MAFIA or other.id in ("serial killer", "vampire", "escort", "transporter")
    ),
    causes=(BURNT,),
    abilities=(
        # Scripted players use the first that has something to do.
        NightAbility(
            verb=IGNITE,
            tactic=tactics.ignite,
            help="set fire to everybody who is doused",
            step=Step.ATTACK,
            effect=_ignite,
            is_visit=False,
        ),
        NightAbility(
            verb="wash",
            tactic=tactics.at_once,
            help="wash off the petrol another Arsonist poured over you",
            step=Step.PROTECT,
            effect=_wash,
            is_visit=False,
            is_offered=lambda state, player: player.alive and DOUSED in player.marks,
        ),
        NightAbility(
            verb=DOUSE,
            tactic=tactics.douse,
            help="pour petrol over that player, who does not learn of it",
            step=Step.PROTECT,
            effect=lambda night, deed: _pour_over(night, night.house(deed)),
            aims=others,
            under_control=lambda seat, victim: (
                Deed(seat=seat, verb=IGNITE) if victim == seat else Deed(seat=seat, verb=DOUSE, targets=(victim,))
            ),
        ),
    ),
)
