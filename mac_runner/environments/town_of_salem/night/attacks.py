"""Who survives a night: Bodyguards step in, attacks are compared with defences, the dead are recorded (steps 9, 10).

All attacks are judged together, so that a killer who dies still kills.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.night.pad import Attack, Judged, Night
from mac_runner.environments.town_of_salem.roles import Level
from mac_runner.environments.town_of_salem.state import Death

# The order in which Bodyguards meet those who come for the one they guard.
_MET_FIRST = ("mafia", "serial killer", "vigilante", "werewolf", "vampire", "staked")


def judge(night: Night) -> None:
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
            _tell_survival(night, attack)
    met = {seat: _defence(night, seat) for seat in fatal}
    attacked = sorted({attack.victim for attack in attacks})
    for victim in attacked:
        for healer in night.healers[victim]:
            night.tell(healer, EventKind.PATIENT_ATTACKED, target=night.chosen_for(healer, victim))
    # Only now: what an attack takes away still counts against every attack of the night.
    for victim in attacked:
        night.role_of(victim).when_attacked(night, victim)
    for seat, overcome in sorted(fatal.items()):
        _overcome(night, seat, overcome, met[seat])
    # Whoever died of one attack is not told that somebody saved them from another.
    night.events = [event for event in night.events if not (event.kind is EventKind.ATTACKED and _is_to(event, night))]


def _is_to(event: Event, night: Night) -> bool:
    return event.audience is not None and event.audience <= night.fatal.keys()


def _can_reach(night: Night, attack: Attack) -> bool:
    is_out_of_reach = attack.victim == night.state.prisoner and not attack.reaches_jail
    return attack.victim in night.living and not is_out_of_reach


def _step_in(night: Night, attacks: list[Attack]) -> list[Attack]:
    """Re-address direct attacks on the guarded to their Bodyguards, each of whom meets one and strikes back."""
    guards = {victim: sorted(seats) for victim, seats in night.guards.items()}
    met: list[Attack] = []
    for attack in sorted(attacks, key=_meeting_order):
        free = guards.get(attack.victim)
        if not attack.is_direct or not free or attack.attacker == attack.victim:
            met.append(attack)
            continue
        guard = free.pop(0)
        night.judged.append(Judged(attack, None, "met by a Bodyguard"))
        night.tell(attack.victim, EventKind.ATTACKED, saved_by="a Bodyguard")
        if guard in night.living:
            met.append(replace(attack, victim=guard, cause="guarding", instead=None))
        counter = Attack(
            attacker=guard, victim=attack.attacker, level=Level.POWERFUL, cause="bodyguard", is_direct=False
        )
        if _can_reach(night, counter):
            met.append(counter)
    return met


def _meeting_order(attack: Attack) -> tuple[int, int]:
    kind = _MET_FIRST.index(attack.cause) if attack.cause in _MET_FIRST else len(_MET_FIRST)
    return kind, attack.attacker


def _own_defence(night: Night, seat: int) -> Level:
    role = night.role_of(seat)
    return role.defence if role.defence_now is None else role.defence_now(night.player(seat))


def _defence(night: Night, seat: int) -> Level:
    healed = Level.POWERFUL if night.healers[seat] else Level.NONE
    return max(_own_defence(night, seat), night.defences.get(seat, Level.NONE), healed)


def _tell_survival(night: Night, attack: Attack) -> None:
    role = night.role_of(attack.victim)
    is_healed = bool(night.healers[attack.victim])
    night.tell(attack.victim, EventKind.ATTACKED, saved_by="a Doctor" if is_healed else "your own defence")
    if attack.attacker != attack.victim and (is_healed or not role.is_defence_secret):
        chosen = night.chosen_for(attack.attacker, attack.victim)
        night.tell(attack.attacker, EventKind.DEFENCE_TOO_STRONG, target=chosen)


def _overcome(night: Night, seat: int, attacks: list[Attack], defence: Level) -> None:
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
    # Who has changed roles keeps the note, and may hold a role now that leaves none.
    killers = (attack.attacker for attack in deadly if night.role_of(attack.attacker).leaves_notes)
    notes = (night.player(killer).death_note for killer in killers)
    posed_as = night.disguises.get(seat)
    death = Death(
        day=night.state.day,
        at_night=True,
        causes=tuple(sorted({attack.cause for attack in deadly})),
        notes=tuple(note for note in dict.fromkeys(notes) if note),
        is_bloody=any(attack.is_bloody for attack in deadly),
        posed_as=None if posed_as is None else night.player(posed_as).role,
    )
    night.put(replace(night.player(seat), death=death))
