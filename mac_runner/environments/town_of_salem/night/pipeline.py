"""A night from dusk to dawn, step by step in the order of the rules (section 6).

`resolve` is pure: the same state gives the same dawn, and so a night can be played again from its dusk by who wants to
read how it went (`play_out`). Everything is gathered first and judged at the end. A deed is played at the step of its
ability, in seat order; what an ability puts off comes after the deeds of its step.
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.night.attacks import judge
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.base import Changed, NightAbility, NightState, Step
from mac_runner.environments.town_of_salem.state import Deed, GameState


def resolve(state: GameState) -> Changed:
    """Play the night's deeds and return the state at dawn: deaths recorded, one-night effects gone."""
    night = play_out(state)
    dawn = replace(
        night.state,
        deeds=(),
        hauntings=(),
        jail_choice=None,
        keeper=None,
        prisoner=None,
        seance=None,
        ballots={},
    )
    return Changed(dawn, tuple(night.events))


def play_out(state: GameState) -> NightState:
    """The night as it is at dawn."""
    night = NightState(state, ROLES)
    if state.prisoner is not None:
        night.note("jailed", state.prisoner, by=state.keeper, was=night.deed_of(state.prisoner))
    night.deeds = [deed for deed in night.deeds if deed.seat != state.prisoner]
    for player in state.players:
        night.role_of(player.seat).by_night(night, player.seat)
    for step in (Step.TRANSPORT, Step.PREPARE, Step.CONTROL, Step.BLOCK):
        _play(night, step)
    night.deeds = [deed for deed in night.deeds if deed.seat not in night.blocked]
    _settle_orders(night)
    _settle_visits(night)
    for step in (Step.PROTECT, Step.INVESTIGATE, Step.ATTACK):
        _play(night, step)
    judge(night)
    for step in (Step.BURY, Step.REPORT):
        _play(night, step)
    return night


def _play(night: NightState, step: Step) -> None:
    """Play the deeds of one step in seat order, spending a use of what is limited, then what was put off until now."""
    for deed in sorted(night.deeds, key=lambda deed: deed.seat):
        ability = night.ability(deed)
        if ability.step is not step or not _reaches(night, deed, ability):
            continue
        if ability.uses is not None and ability.is_spent_by_use:
            night.spend(deed)
        ability.effect(night, deed)
    for plan in night.plans(step):
        plan()


def _reaches(night: NightState, deed: Deed, ability: NightAbility) -> bool:
    """Whether a deed reaches its target: nobody's visit reaches a prisoner, and the visitor is told so."""
    if not ability.is_visit or ability.reaches_jail or not deed.targets or night.house(deed) != night.state.prisoner:
        return True
    night.note("target in jail", deed.seat, was=deed)
    night.tell(deed.seat, EventKind.TARGET_JAILED, target=night.name_of(deed.targets[ability.visited]))
    if ability.step is Step.BLOCK:
        night.tell(night.house(deed), EventKind.BLOCK_RESISTED)
    return False


def _settle_orders(night: NightState) -> None:
    """Let those who act as a team agree on who goes where. Each kind of order is settled once."""
    abilities = {
        ability.verb: ability
        for deed in night.deeds
        for ability in night.role_of(deed.seat).abilities
        if isinstance(ability, NightAbility) and ability.orders is not None
    }
    wanted = {deed.seat: deed for deed in night.deeds}
    for verb in sorted(abilities):
        orders = abilities[verb].orders
        if orders is not None:
            orders(night)
    agreed = {deed.seat: deed for deed in night.deeds}
    for seat in sorted(wanted.keys() | agreed.keys()):
        was, now = wanted.get(seat), agreed.get(seat)
        if was != now:
            night.note("left to another" if now is None else "sent by the team", seat, was=was, now=now)


def _settle_visits(night: NightState) -> None:
    for deed in sorted(night.deeds, key=lambda deed: deed.seat):
        if night.ability(deed).is_visit and deed.targets:
            night.visit(deed.seat, night.house(deed))
