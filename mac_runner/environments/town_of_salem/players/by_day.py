"""What the heuristic player does by day in place of words: the day abilities, by verb."""

from __future__ import annotations

from collections import Counter

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.writing import write

_JAIL_FROM = 1.0
_REVEAL_FROM_DAY = 3
# How many votes short of a trial a vote is close.
_CLOSE = 2


def use_the_day(seat: Seat) -> str | None:
    """A day ability in place of words, when it is worth more."""
    if "jail" in seat.choices and not _has_jailed_today(seat):
        found = seat.beliefs.most_suspicious()
        known = found is not None and found[1] >= _JAIL_FROM
        unknown = [name for name in seat.choices["jail"].targets if name not in seat.beliefs.claims]
        target = found[0] if known and found else seat.pick(unknown or seat.choices["jail"].targets)
        return write("jail", target=target, thought=f"I want a word with {target}.", will=seat.will())
    if "reveal" in seat.choices and (seat.view.day >= _REVEAL_FROM_DAY or _is_vote_close(seat)):
        return write("reveal", thought="It is time they know me.", will=seat.will())
    if "seance" in seat.choices:
        trusted = min(seat.beliefs.suspicion, key=lambda name: seat.beliefs.suspicion[name])
        return write("seance", target=trusted, thought=f"I trust {trusted} most.")
    return None if seat.view.is_alive else write("wait", thought="I am dead.")


def _has_jailed_today(seat: Seat) -> bool:
    return any(event.kind is EventKind.JAIL_CHOSEN and event.day == seat.view.day for event in seat.view.private)


def _is_vote_close(seat: Seat) -> bool:
    """Whether somebody is about to be put on trial."""
    given = Counter(seat.view.votes.values())
    return bool(given) and max(given.values()) >= seat.view.votes_needed - _CLOSE
