"""What players publicly did and said, by name: votes, ballots, whispers, role claims, accusations.

Read off the public events by rules over names and role words, for the tools and for the short form of past days. It
quotes nobody: what comes out is made of names and role names alone, so that no words of a player pass through it.
Nothing here says whether a claim is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.roles import ROLES

_ROLE_NAMES = "|".join(sorted((re.escape(role.name) for role in ROLES.values()), key=len, reverse=True))
_CLAIM = re.compile(rf"\b(?:I am|I['’]?m|I was|my role is)\s+(?:really |just )?(?:the |an? )?({_ROLE_NAMES})\b", re.I)
_SUSPICION = re.compile(r"\b(?:suspicious|suspect|mafia|evil|guilty|lying|liar|lies|killer|lynch|hang)\b", re.I)
_NEGATION = re.compile(r"(?:\b(?:not|never|no|cannot|innocent|if)\b|n['’]t\b)", re.I)
_SENTENCE_END = re.compile(r"[.!?;,\n]+|\bbut\b")
_ROLE_BY_NAME = {role.name.lower(): role.name for role in ROLES.values()}


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
    for role in claimed_roles(text):
        if (day, role) not in conduct.claims:
            conduct.claims.append((day, role))
    for name in accused_names(text, players):
        if name != speaker and (day, name) not in conduct.accuses:
            conduct.accuses.append((day, name))


@lru_cache(maxsize=4096)
def claimed_roles(text: str) -> tuple[str, ...]:
    """The roles the speaker says to be, in order; a sentence that denies or asks is no claim."""
    found = dict[str, None]()
    for sentence, end in _sentences(text):
        claim = _CLAIM.search(sentence)
        if claim and end != "?" and not _NEGATION.search(sentence[: claim.start()]):
            found[_ROLE_BY_NAME[claim.group(1).lower()]] = None
    return tuple(found)


@lru_cache(maxsize=4096)
def accused_names(text: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players named in sentences of suspicion that hold no denial, in order."""
    found = dict[str, None]()
    for sentence, end in _sentences(text):
        if end != "?" and _SUSPICION.search(sentence) and not _NEGATION.search(sentence):
            found.update((name, None) for name in players if re.search(rf"\b{re.escape(name)}\b", sentence))
    return tuple(found)


def _sentences(text: str) -> list[tuple[str, str]]:
    """The clauses of a text, each with what ends it."""
    parts, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        parts.append((text[start : end.start()], end.group()[0]))
        start = end.end()
    return [*parts, (text[start:], "")]
