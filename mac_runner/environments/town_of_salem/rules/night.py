"""A night from dusk to dawn, step by step in the order of the rules (section 6).

`resolve` is pure: the same state gives the same dawn, so `play_out` can show a finished night again for the record.
Everything is gathered first and judged at the end: a killer who dies still kills. An action is played at the step of
its ability, in seat order; what an ability puts off comes after the actions of its step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from mac_runner.environments.town_of_salem.model.events import (
    ATTACKED,
    BLOCK_RESISTED,
    DEFENCE_TOO_STRONG,
    TARGET_JAILED,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import (
    Attack,
    Changed,
    Judged,
    Level,
    NightAbility,
    NightState,
    Note,
    Step,
)
from mac_runner.environments.town_of_salem.model.state import Death, GameState, NightAction
from mac_runner.environments.town_of_salem.roles import ROLES


def resolve(state: GameState) -> Changed:
    """The state at dawn, with deaths recorded and one-night effects gone, and what happened."""
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
        night.notes.append(Note("jailed", (state.prisoner,), by=state.keeper, was=night.action_of(state.prisoner)))
    night.actions = [action for action in night.actions if action.seat != state.prisoner]
    for step in (Step.DUSK, Step.TRANSPORT, Step.PREPARE, Step.CONTROL, Step.BLOCK):
        _play(night, step)
    night.actions = [action for action in night.actions if action.seat not in night.blocked]
    _settle_orders(night)
    for action in sorted(night.actions, key=lambda action: action.seat):
        if night.ability(action).is_visit and action.targets:
            night.visit(action.seat, night.house(action))
    for step in (Step.PROTECT, Step.INVESTIGATE, Step.ATTACK):
        _play(night, step)
    judge(night)
    for step in (Step.BURY, Step.REPORT):
        _play(night, step)
    return night


def _play(night: NightState, step: Step) -> None:
    """Play the actions of one step in seat order, spending limited uses, then what was put off until now."""
    for action in sorted(night.actions, key=lambda action: action.seat):
        ability = night.ability(action)
        if ability.step is not step or not _reaches(night, action, ability):
            continue
        if ability.uses is not None and ability.is_spent_by_use:
            night.spend(action)
        ability.effect(night, action)
    for plan in night.plans[step]:
        plan()


def _reaches(night: NightState, action: NightAction, ability: NightAbility) -> bool:
    """Whether an action reaches its target: no visit reaches a prisoner, and the visitor learns so."""
    if (
        not ability.is_visit
        or ability.reaches_jail
        or not action.targets
        or night.house(action) != night.state.prisoner
    ):
        return True
    night.notes.append(Note("target in jail", (action.seat,), was=action))
    night.notify(action.seat, TARGET_JAILED, target=night.name_of(action.targets[ability.visited]))
    if ability.step is Step.BLOCK:
        night.notify(night.house(action), BLOCK_RESISTED)
    return False


def _settle_orders(night: NightState) -> None:
    """Let teams agree on their actions. Each kind of order is settled once."""
    wanted = {action.seat: action for action in night.actions}
    settling = {action.verb: night.ability(action).orders for action in night.actions}
    for _, settle in sorted(settling.items()):
        if settle is not None:
            settle(night)
    agreed = {action.seat: action for action in night.actions}
    for seat in sorted(wanted.keys() | agreed.keys()):
        was, now = wanted.get(seat), agreed.get(seat)
        if was != now:
            how = "left to another" if now is None else "sent by the team"
            night.notes.append(Note(how, (seat,), was=was, now=now))


def judge(night: NightState) -> None:
    """Settle all attacks of the night and record the deaths."""
    attacks = [attack for attack in night.attacks if _can_reach(night, attack)]
    night.judged += [Judged(attack, None, "out of reach") for attack in night.attacks if not _can_reach(night, attack)]
    attacks = _step_in(night, attacks)
    fatal: dict[int, list[Attack]] = defaultdict(list)
    for attack in attacks:
        defence = _defence(night, attack.victim)
        if attack.level > defence:
            fatal[attack.victim].append(attack)
        else:
            night.judged.append(Judged(attack, defence, "survived"))
            _notify_survival(night, attack)
    met = {seat: _defence(night, seat) for seat in fatal}
    attacked = sorted({attack.victim for attack in attacks})
    for victim in attacked:
        for protection in night.protections[victim]:
            if protection.notice is not None:
                night.notify(protection.by, protection.notice, target=night.chosen_for(protection.by, victim))
    # Only now: a defence that an attack takes away still counts against every attack of the night.
    for victim in attacked:
        night.role_of(victim).when_attacked(night, victim)
    for seat, overcome in sorted(fatal.items()):
        _overcome(night, seat, overcome, met[seat])
    # A player who died of one attack does not learn of being saved from another.
    night.events = [
        event
        for event in night.events
        if event.kind is not ATTACKED or event.audience is None or not event.audience <= night.fatal.keys()
    ]


def _can_reach(night: NightState, attack: Attack) -> bool:
    is_out_of_reach = attack.victim == night.state.prisoner and not attack.reaches_jail
    return attack.victim in night.living and not is_out_of_reach


def _step_in(night: NightState, attacks: list[Attack]) -> list[Attack]:
    """Redirect direct attacks on the guarded to their guards; each guard meets one and strikes back."""
    guards = {
        house: sorted(((one.by, one.guard) for one in protections if one.guard is not None), key=lambda one: one[0])
        for house, protections in night.protections.items()
    }
    met: list[Attack] = []
    for attack in sorted(attacks, key=lambda attack: (attack.cause.guard_order, attack.attacker)):
        free = guards.get(attack.victim)
        if not attack.is_direct or not free or attack.attacker == attack.victim:
            met.append(attack)
            continue
        seat, guard = free.pop(0)
        role = night.role_of(seat)
        night.judged.append(Judged(attack, None, f"met by {with_article(role.name)}"))
        night.notify(attack.victim, ATTACKED, saved_by=with_article(role.name))
        if seat in night.living:
            met.append(replace(attack, victim=seat, cause=guard.falls_by, instead=None))
        counter = Attack(seat, attack.attacker, role.attack, guard.strikes_by, is_direct=False)
        if _can_reach(night, counter):
            met.append(counter)
    return met


def _defence(night: NightState, seat: int) -> Level:
    role = night.role_of(seat)
    own = role.defence if role.defence_now is None else role.defence_now(night.player(seat))
    return max(own, night.defences.get(seat, Level.NONE), *(one.level for one in night.protections[seat]))


def _notify_survival(night: NightState, attack: Attack) -> None:
    savers = [one.by for one in night.protections[attack.victim] if one.level]
    saved_by = with_article(night.role_of(savers[0]).name) if savers else "your own defence"
    night.notify(attack.victim, ATTACKED, saved_by=saved_by)
    if attack.attacker != attack.victim and (savers or not night.role_of(attack.victim).is_defence_secret):
        chosen = night.chosen_for(attack.attacker, attack.victim)
        night.notify(attack.attacker, DEFENCE_TOO_STRONG, target=chosen)


def _overcome(night: NightState, seat: int, attacks: list[Attack], defence: Level) -> None:
    deadly = [attack for attack in attacks if attack.instead is None]
    for attack in attacks:
        outcome = "killed" if attack.instead is None else "came to nothing" if deadly else "turned"
        night.judged.append(Judged(attack, defence, outcome))
    if not deadly:
        for attack in attacks[:1]:
            if attack.instead is not None:
                attack.instead()
        return
    night.fatal[seat] = deadly
    # A player who changed roles keeps the note, and may hold a role now that leaves none.
    killers = (attack.attacker for attack in deadly if night.role_of(attack.attacker).leaves_notes)
    notes = (night.player(killer).death_note for killer in killers)
    posed_as = night.disguises.get(seat)
    death = Death(
        day=night.state.day,
        at_night=True,
        causes=tuple(sorted({attack.cause.name for attack in deadly})),
        notes=tuple(note for note in dict.fromkeys(notes) if note),
        is_bloody=any(attack.is_bloody for attack in deadly),
        posed_as=None if posed_as is None else night.player(posed_as).role,
    )
    night.put(replace(night.player(seat), death=death))
