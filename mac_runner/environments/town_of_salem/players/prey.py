"""Whom killers want dead."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.players.seat import Seat

_WANTED_DEAD = ("Jailor", "Sheriff", "Investigator", "Medium", "Doctor", "Escort")


def prey(seat: Seat) -> str:
    """Whom the Mafia wants dead: those who claimed to know, in order of danger, else anybody."""
    living = [name for name in seat.view.living if name not in seat.view.team and name != seat.view.name]
    survivors = _survived_us(seat)
    living = [name for name in living if name not in survivors] or living
    for role in _WANTED_DEAD:
        named = [name for name in living if seat.beliefs.claims.get(name) == role]
        if named:
            return named[0]
    return seat.pick(living)


def _survived_us(seat: Seat) -> set[str]:
    """Whom we wanted dead last night: somebody looks after those who still live."""
    return {
        name
        for event in seat.view.private
        if event.kind is EventKind.DEED_CHOSEN and event.data["verb"] == "kill" and event.day == seat.view.day - 1
        for name in (event.data["targets"] if isinstance(event.data["targets"], list) else [])
        if isinstance(name, str)
    }
