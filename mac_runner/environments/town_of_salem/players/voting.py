"""Whom the heuristic player wants on trial, and how it judges."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.writing import write
from mac_runner.environments.town_of_salem.state import Ballot


def vote(seat: Seat) -> str:
    """A vote, unless one's standing vote is already right."""
    if "vote" not in seat.choices:
        return write("wait", thought="I have no vote to give.")
    target = _wanted(seat)
    if target is None or target not in seat.choices["vote"].targets:
        return write("wait", thought="Nobody else I would vote for.", will=seat.will())
    return write("vote", target=target, thought=f"I want {target} on trial.", will=seat.will())


def _wanted(seat: Seat) -> str | None:
    if seat.quarry is not None:
        return seat.quarry
    if seat.is_hostile:
        return _scapegoat(seat)
    found = seat.beliefs.most_suspicious()
    return found[0] if found is not None and found[1] >= seat.enough else None


def _scapegoat(seat: Seat) -> str | None:
    """Whom the others already vote for, if not one of ours; else whoever accuses one of us, or the worst."""
    outside = [target for target in seat.view.votes.values() if target not in seat.view.team]
    if outside:
        return max(dict.fromkeys(outside), key=outside.count)
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        return accusers[0]
    found = [(doubt, name) for name, doubt in seat.beliefs.suspicion.items() if name not in seat.view.team]
    doubt, name = max(found, default=(0.0, ""))
    return name if doubt >= seat.enough else None


def judge(seat: Seat) -> str:
    """A ballot on the accused."""
    accused = seat.view.accused or ""
    if seat.is_hostile:
        ballot = Ballot.INNOCENT if accused in seat.view.team else Ballot.GUILTY
    elif accused == seat.quarry:
        ballot = Ballot.GUILTY
    else:
        doubt = seat.beliefs.suspicion.get(accused, 0.0)
        ballot = Ballot.GUILTY if doubt >= seat.enough else Ballot.INNOCENT
    return write("ballot", choice=ballot.value, thought=f"{accused}: {ballot}.")
