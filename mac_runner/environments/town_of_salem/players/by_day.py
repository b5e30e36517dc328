"""What the heuristic player does by day in place of words: the day abilities, by verb."""

from __future__ import annotations

from collections import Counter

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.writing import write

_REVEAL_FROM_DAY = 3
# How many votes short of a trial a vote is close.
_CLOSE = 2


def use_the_day(seat: Seat) -> str | None:
    """A day ability in place of words, when it is worth more."""
    if "jail" in seat.choices and not _has_jailed_today(seat):
        target = _prisoner(seat)
        if target is not None:
            return write("jail", target=target, thought=f"I want a word with {target}.", will=seat.will())
    if "reveal" in seat.choices and (seat.view.day >= _REVEAL_FROM_DAY or _is_vote_close(seat)):
        return write("reveal", thought="It is time they know me.", will=seat.will())
    if "seance" in seat.choices:
        trusted = min(seat.beliefs.suspicion, key=lambda name: seat.beliefs.suspicion[name])
        return write("seance", target=trusted, thought=f"I trust {trusted} most.")
    return None if seat.view.is_alive else write("wait", thought="I am dead.")


def _prisoner(seat: Seat) -> str | None:
    """Whom to lock up: the worst of those who can be executed, else one of whom nothing is known, if that is safe."""
    suspicion = seat.beliefs.suspicion
    can_execute = seat.view.day > 1 and seat.view.uses.get("execute", 0) > 0
    guilty = sorted((name for name in suspicion if suspicion[name] >= seat.enough), key=lambda name: -suspicion[name])
    if guilty and can_execute:
        # The Town will see to the worst of all.
        return guilty[min(1, len(guilty) - 1)]
    if not any(role.kills_jailors for role in roles_in_play(seat.view.lobby)):
        unknown = [name for name in suspicion if name not in seat.beliefs.claims]
        return seat.pick(unknown or list(suspicion))
    trusted = seat.worth_protecting([*suspicion])
    return seat.pick(trusted) if trusted else None


def _has_jailed_today(seat: Seat) -> bool:
    return any(event.kind is EventKind.JAIL_CHOSEN and event.day == seat.view.day for event in seat.view.private)


def _is_vote_close(seat: Seat) -> bool:
    """Whether somebody is about to be put on trial."""
    given = Counter(seat.view.votes.values())
    return bool(given) and max(given.values()) >= seat.view.votes_needed - _CLOSE
