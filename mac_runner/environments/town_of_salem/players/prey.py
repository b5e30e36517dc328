"""Whom killers want dead: those who know too much, as far as the killer can tell, and whom the Town believes."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.players.beliefs import silent_players
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.statements import understand

# How much the rather one kills who speaks against one's own side.
_REVENGE = 3.0
_LEADERS = ("Godfather", "Mafioso")


def prey(seat: Seat, targets: Sequence[str] | None = None) -> str:
    """Whom to kill: drawn, those the likelier who hold or claim a dangerous role and whom nobody doubts."""
    view = seat.view
    living = [name for name in targets or view.living if name not in view.team and name != view.name]
    survivors = _survived_us(seat)
    living = [name for name in living if name not in survivors] or living or list(view.living)
    enemies = seat.enemies()
    return seat.draw(living, [_worth(seat, name) * (_REVENGE if name in enemies else 1.0) for name in living])


def _worth(seat: Seat, name: str) -> float:
    role = seat.known_roles.get(name) or seat.beliefs.claims.get(name)
    weight = seat.weight_of(role)
    silent = [name for name in silent_players(seat.view, seat.beliefs.claims) if name not in seat.view.team]
    if role is None and name in silent and "Jailor" in seat.beliefs.unclaimed:
        weight += (seat.weight_of("Jailor") - weight) / len(silent)
    # Whom the Town doubts it may lynch by itself.
    doubt = max(0.0, seat.beliefs.suspicion.get(name, 0.0))
    return weight / (1.0 + doubt)


def agreed_prey(seat: Seat) -> str | None:
    """Whom the team spoke of killing tonight: the last word of its leader, else the last of anybody."""
    said = [
        (str(event.data["player"]), takes)
        for event in seat.view.private
        if event.day == seat.view.day and event.kind is EventKind.CHAT
        if (takes := understand(str(event.data["text"])).takes) is not None
    ]
    led = [takes for speaker, takes in said if speaker == _leader(seat)]
    return led[-1] if led else said[-1][1] if said else None


def _leader(seat: Seat) -> str | None:
    ranks = {role: name for name, role in seat.view.team.items()}
    return next((ranks[role] for role in _LEADERS if role in ranks), None)


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
