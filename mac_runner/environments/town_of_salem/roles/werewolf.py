"""Werewolf: rages through a house on every full moon (rules, section 9.3)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, Level, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.moon import is_full_moon
from mac_runner.environments.town_of_salem.state import DeathCause, Faction, GameState, Player

MAULED = DeathCause("werewolf", "mauled by a Werewolf", guard_order=3, is_visible=True)

RAMPAGE = "rampage"


def _houses(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living) if is_full_moon(state) else ()


def _wait_for_the_moon(night: NightState, seat: int) -> None:
    if night.player(seat).alive and is_full_moon(night.state):
        night.later(Step.ATTACK, lambda: _rage(night, seat))


def _rage(night: NightState, seat: int) -> None:
    """Rage at the house chosen, or at home: there after a block too, or with the Jailor when jailed."""
    if seat == night.state.prisoner:
        keeper = night.state.keeper
        if keeper is not None and not night.is_executed(seat):
            _maul(night, seat, keeper)
        return
    house = next((night.house(deed) for deed in night.deeds if deed.seat == seat and deed.targets), seat)
    if house != seat:
        _maul(night, seat, house)
    for visitor in night.visitors(house):
        if visitor not in (seat, house):
            _maul(night, seat, visitor)


def _maul(night: NightState, seat: int, victim: int) -> None:
    night.attack(seat, victim, Level.POWERFUL, MAULED)


ROLE = Role(
    name="Werewolf",
    short_names=("WW",),
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_KILLING,
    card="On every full moon, in every second night, you rage with powerful attacks through one house: its owner and "
    "everybody else who visits it. If you choose no house, your own, or are blocked, you rage at home and attack who "
    "visits you; in jail you attack the Jailor unless you are executed. A Sheriff finds you suspicious on a full moon "
    "only. Basic attacks at night do not kill you.",
    goal="See dead everybody who could stop you: Town, Mafia and all other killers.",
    group="werewolf",
    investigator_group=5,
    investigator_place=3,
    kills_jailors=True,
    attack=Level.POWERFUL,
    defence=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    minds_the_moon=True,
    suspicious_when=is_full_moon,
    by_night=_wait_for_the_moon,
    outlasts=lambda other: other.id in ("godfather", "mafioso", "vampire", "serial killer"),
    causes=(MAULED,),
    abilities=(
        NightAbility(
            verb=RAMPAGE,
            tactic=tactics.strike,
            help="rage at that player's house, attacking its owner and all visitors",
            step=Step.ATTACK,
            # What a Werewolf does happens without a choice too; the choice is only where.
            effect=lambda night, deed: None,
            aims=_houses,
            reaches_jail=True,
        ),
    ),
)
