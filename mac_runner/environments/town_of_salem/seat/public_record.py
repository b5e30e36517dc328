"""What players did and said in public, by name: votes, ballots, whispers, role claims, accusations.

The tools and the shortened days read it. Speech is understood as in `claims`, and only names and role names come out,
so no words of a player pass through here. Nothing here says whether a claim is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mac_runner.environments.town_of_salem.claims import ClaimKind, extract
from mac_runner.environments.town_of_salem.model.events import Event, EventKind


@dataclass(slots=True)
class Conduct:
    """What one player did in public, in order, each with its day: `(2, "Elias")`."""

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
        day = event.day
        match event.kind:
            case EventKind.SPEECH:
                speaker = event.text("player")
                _add_speech(found[speaker], day, speaker, event.text("text"), players)
            case EventKind.VOTE:
                found[event.text("player")].votes.append((day, event.text("target")))
            case EventKind.UNVOTE:
                found[event.text("player")].votes.append((day, f"{event.text('target')}, taken back"))
            case EventKind.WHISPER_SEEN:
                found[event.text("player")].whispers.append((day, f"to {event.text('to')}"))
                found[event.text("to")].whispers.append((day, f"from {event.text('player')}"))
            case EventKind.TRIAL:
                accused = event.text("accused")
            case EventKind.BALLOTS:
                for ballot in event.data:
                    for judge in event.names(ballot):
                        found[judge].ballots.append((day, f"{accused} {ballot}"))
            case EventKind.VERDICT:
                outcome = "lynched" if event.data["is_guilty"] else "acquitted"
                found[event.text("accused")].trials.append((day, outcome))
            case _:
                pass
    return found


def _add_speech(conduct: Conduct, day: int, speaker: str, text: str, players: tuple[str, ...]) -> None:
    for claim in extract(text, players):
        if claim.kind is ClaimKind.ROLE:
            found, said = conduct.claims, claim.roles
        elif claim.is_against and claim.about not in ("", speaker):
            found, said = conduct.accuses, (claim.about,)
        else:
            continue
        found.extend((day, name) for name in dict.fromkeys(said) if (day, name) not in found)
