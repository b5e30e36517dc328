"""What players publicly did and said, by name: votes, ballots, whispers, role claims, accusations.

Read off the public events, what is said as `speech` understands it, for the tools and for the short form of past days.
It quotes nobody: what comes out is made of names and role names alone, so that no words of a player pass through it.
Nothing here says whether a claim is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mac_runner.environments.town_of_salem.claims import ClaimKind, extract
from mac_runner.environments.town_of_salem.game.events import Event, EventKind


@dataclass(slots=True)
class Conduct:
    """What one player did where all could see it, in order, each with its day: `(2, "Elias")`."""

    claims: list[tuple[int, str]] = field(default_factory=list)
    accuses: list[tuple[int, str]] = field(default_factory=list)
    votes: list[tuple[int, str]] = field(default_factory=list)
    ballots: list[tuple[int, str]] = field(default_factory=list)
    whispers: list[tuple[int, str]] = field(default_factory=list)
    trials: list[tuple[int, str]] = field(default_factory=list)


def conduct_of(events: Iterable[Event], players: tuple[str, ...]) -> dict[str, Conduct]:
    """The conduct of every player in these public events, in seat order."""
    found = {player: Conduct() for player in players}
    accused = ""
    for event in events:
        data, day = event.data, event.day
        match event.kind:
            case EventKind.SPEECH:
                _listen(found[str(data["player"])], day, str(data["player"]), str(data["text"]), players)
            case EventKind.VOTE:
                found[str(data["player"])].votes.append((day, str(data["target"])))
            case EventKind.UNVOTE:
                found[str(data["player"])].votes.append((day, f"{data['target']}, taken back"))
            case EventKind.WHISPER_SEEN:
                found[str(data["player"])].whispers.append((day, f"to {data['to']}"))
                found[str(data["to"])].whispers.append((day, f"from {data['player']}"))
            case EventKind.TRIAL:
                accused = str(data["accused"])
            case EventKind.BALLOTS:
                for ballot, judges in data.items():
                    for judge in judges if isinstance(judges, list) else ():
                        found[str(judge)].ballots.append((day, f"{accused} {ballot}"))
            case EventKind.VERDICT:
                outcome = "lynched" if data["is_guilty"] else "acquitted"
                found[str(data["accused"])].trials.append((day, outcome))
            case _:
                pass
    return found


def _listen(conduct: Conduct, day: int, speaker: str, text: str, players: tuple[str, ...]) -> None:
    for role in claimed_roles(text, players):
        if (day, role) not in conduct.claims:
            conduct.claims.append((day, role))
    for name in accused_names(text, players):
        if name != speaker and (day, name) not in conduct.accuses:
            conduct.accuses.append((day, name))


def claimed_roles(text: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The roles the speaker says to be, in order."""
    said = (claim for claim in extract(text, players) if claim.kind is ClaimKind.ROLE)
    return tuple(dict.fromkeys(role for claim in said for role in claim.roles))


def accused_names(text: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players somebody speaks against, by accusation or by a result, in order."""
    return tuple(dict.fromkeys(claim.about for claim in extract(text, players) if claim.is_against and claim.about))
