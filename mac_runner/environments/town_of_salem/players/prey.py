"""Whom killers want dead: those who know too much, as far as the killer can tell."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.statements import understand

# The order of danger.
_WANTED_DEAD = ("Jailor", "Mayor", "Sheriff", "Investigator", "Lookout", "Medium", "Spy", "Doctor", "Escort")


def prey(seat: Seat, targets: Sequence[str] | None = None) -> str:
    """Whom to kill: those known for or claiming a dangerous role, in order of danger, else anybody."""
    view = seat.view
    living = [name for name in targets or view.living if name not in view.team and name != view.name]
    survivors = _survived_us(seat)
    living = [name for name in living if name not in survivors] or living
    roles = {**seat.beliefs.claims, **seat.known_roles}
    for role in _WANTED_DEAD:
        named = [name for name in living if roles.get(name) == role]
        if named:
            return named[0]
    return seat.pick(living or view.living)


def agreed_prey(seat: Seat) -> str | None:
    """Whom the team spoke of killing tonight, by its last word."""
    for event in reversed(seat.view.private):
        if event.day != seat.view.day:
            return None
        if event.kind is EventKind.CHAT:
            takes = understand(str(event.data["text"])).takes
            if takes is not None:
                return takes
    return None


def _survived_us(seat: Seat) -> set[str]:
    """Whom we wanted dead last night and who still lives, and who was ever too strong for us."""
    too_strong = {
        str(event.data["target"]) for event in seat.view.private if event.kind is EventKind.DEFENCE_TOO_STRONG
    }
    return too_strong | {
        name
        for event in seat.view.private
        if event.kind is EventKind.DEED_CHOSEN
        and event.data["verb"] in ("kill", "stab", "bite")
        and event.day == seat.view.day - 1
        for name in (event.data["targets"] if isinstance(event.data["targets"], list) else [])
        if isinstance(name, str)
    }
