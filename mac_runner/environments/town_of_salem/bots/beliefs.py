"""What a scripted player makes of what it has seen: how suspicious the others are.

Scores are sums of evidence: 0 is nothing known, about 2 is enough for a vote, below 0 speaks for a player. The
weights are judgement, tuned by playing; nothing outside this file depends on their values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from mac_runner.environments.town_of_salem.bots.speech import understand
from mac_runner.environments.town_of_salem.model.events import (
    MAFIA_MEMBER,
    NOT_SUSPICIOUS,
    RESULT,
    SUSPICIOUS,
    UNKNOWN_ROLE,
    Event,
    EventKind,
    Says,
    visitors_in,
)
from mac_runner.environments.town_of_salem.model.state import LYNCH, Ballot, Faction
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play, roles_of
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView

_OWN_FINDING = 5.0
_PROVEN_WORD = 3.5
_INFORMED_WORD = 1.5
_BARE_WORD = 0.4
_FALSE_CLAIM = 2.5
_BAD_ACCUSER = 1.0
_BAD_INFORMER = 3.0
_WRONG_BALLOT = 0.4
_SILENCE = 2.0
_ODDS = 4.0
# From this day on the Town says what it is, but for roles that hide; a day later, silence is suspicious.
CLAIMING_DAY = 3
_CLEARED = -1.0
_UNCONTESTED = 1.5


class Finding(NamedTuple):
    """What a seat knows of another player."""

    is_guilty: bool
    kind: str
    """The kind of sentence that tells of it."""
    day: int
    """The day it was shown, or the night it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """What one seat makes of the game so far."""

    suspicion: Mapping[str, float]
    """By living player, oneself excluded."""
    claims: Mapping[str, str]
    """The role that each player claims, or showed to all."""
    findings: Mapping[str, Finding]
    """This seat's own."""
    unclaimed: Sequence[Role]
    """What the role list still has room for when the living are taken at their word."""
    contradicted: frozenset[str]
    """The living others whose claims it has no room for."""
    silent: Sequence[str]
    """Those who should have claimed a role by now."""

    def most_suspicious(self) -> tuple[str, float] | None:
        """The player with the highest score; the first in seat order among equals."""
        return max(self.suspicion.items(), key=lambda found: found[1], default=None)


def form_beliefs(view: SeatView) -> Beliefs:
    """Weigh everything this seat has seen."""
    said = [(speaker, understand(text)) for speaker, text in _utterances(view)]
    claims = {speaker: statement.claims for speaker, statement in said if statement.claims}
    claims |= {e.text("player"): e.text("role") for e in view.public if e.kind is EventKind.REVEALED}
    others = [name for name in view.living if name != view.name]
    living = {name: role for name, role in claims.items() if name in others}
    graves = [role for role in view.graveyard.values() if role != UNKNOWN_ROLE]
    room = Room(view.lobby, [*graves, *(view.team.values() or ([view.role.name] if view.is_alive else []))])
    unclaimed = [ROLES[role.lower()] for role in room.left(living.values())]
    score: dict[str, float] = defaultdict(float)
    findings = own_findings(view, claims)
    for name, finding in findings.items():
        score[name] += _OWN_FINDING if finding.is_guilty else -_OWN_FINDING / 2
    # Where more players claim a role than the list has, some of them lie.
    chances = chances_of_lie(room, living)
    for name, chance in chances.items():
        score[name] += _FALSE_CLAIM * chance
        if not chance and room.named[living[name]] and view.day > CLAIMING_DAY:
            # The holder of this role would have spoken up against a liar by now.
            score[name] -= _UNCONTESTED
    # Each accusation or clearing once per speaker, the last word of a speaker about a player counting.
    words: dict[tuple[str, str], bool] = {}
    for speaker, statement in said:
        for name in statement.accuses:
            words[speaker, name] = True
        for name in statement.clears:
            words[speaker, name] = False
    _weigh_words(view, claims, words, score)
    for _, judge in wrong_ballots(view):
        score[judge] += _WRONG_BALLOT
    # The share of the others who must be evil by the role list and the graves.
    evil = _evil_in(view.lobby) - sum(not is_town_role(role) for role in graves)
    for name in others:
        score[name] += _ODDS * max(0.0, evil / len(others) - 0.5)
    # A role that hides may claim nothing for ever, and could be any of the silent.
    silent = [name for name in others if name not in claims] if view.day > CLAIMING_DAY else []
    for name in silent:
        score[name] += _SILENCE * (1.0 - any(role.hides for role in unclaimed) / len(silent))
    return Beliefs(
        suspicion={name: score[name] for name in others},
        claims=claims,
        findings=findings,
        unclaimed=unclaimed,
        contradicted=frozenset(name for name, chance in chances.items() if chance),
        silent=silent,
    )


def _utterances(view: SeatView) -> Iterator[tuple[str, str]]:
    """Each speaker and text that this seat heard. A will speaks for its writer, and the dead speak at night."""
    for event in view.public:
        if event.kind is EventKind.SPEECH:
            yield event.text("player"), event.text("text")
        elif event.kind is EventKind.DEATH and event.data["will"]:
            yield event.text("player"), event.text("will")
    for event in view.private:
        if event.kind is EventKind.WHISPER or (event.kind is EventKind.CHAT and event.data["channel"] != "mafia"):
            yield event.text("player"), event.text("text")


def _weigh_words(
    view: SeatView,
    claims: Mapping[str, str],
    words: Mapping[tuple[str, str], bool],
    score: dict[str, float],
) -> None:
    """What players said about one another, against or for them, adds to the score of both."""
    for (speaker, about), is_accusation in words.items():
        shown = view.graveyard.get(about)
        if speaker in (view.name, about) or shown == UNKNOWN_ROLE:
            continue
        if shown is None:
            weight = _credit(view, claims, speaker, score[speaker])
            score[about] += weight if is_accusation else _CLEARED * min(weight, 1.0)
        elif is_accusation != is_town_role(shown):
            # The grave shows whether the word was true.
            score[speaker] -= _BAD_ACCUSER
        else:
            score[speaker] += _BAD_INFORMER if is_informed(claims.get(speaker)) and is_accusation else _BAD_ACCUSER


def _credit(view: SeatView, claims: Mapping[str, str], speaker: str, doubt: float) -> float:
    shown = view.graveyard.get(speaker, UNKNOWN_ROLE)
    if shown == UNKNOWN_ROLE:
        credit = _INFORMED_WORD if is_informed(claims.get(speaker)) else _BARE_WORD
        return credit / (1.0 + max(doubt, 0.0))
    if not is_town_role(shown):
        return 0.0
    return _PROVEN_WORD if is_informed(shown) else _BARE_WORD


def wrong_ballots(view: SeatView) -> Iterator[tuple[str, str]]:
    """Each lynched player with a judge whose ballot the grave showed to be wrong."""
    ballots: Event | None = None
    for event in view.public:
        if event.kind is EventKind.BALLOTS:
            ballots = event
        elif event.kind is EventKind.DEATH and event.data["causes"] == [LYNCH.name] and ballots is not None:
            wrong = Ballot.GUILTY if is_town_role(event.text("role")) else Ballot.INNOCENT
            for judge in ballots.names(wrong):
                yield event.text("player"), judge


@follows_roles
@cache
def _evil_in(lobby: tuple[str, ...]) -> float:
    """How many players of a role list do not belong to the Town, on average."""
    slots = [[not is_town_role(role) for role in slot] for slot in _slots(lobby)]
    return sum(sum(slot) / len(slot) for slot in slots)


def role_named(name: str | None) -> Role | None:
    """The role of that public name; None for a name that no role has."""
    return None if name is None else ROLES.get(name.lower())


def is_town_role(name: str | None) -> bool:
    """Whether a role, by its public name, belongs to the Town; False for an unknown one."""
    role = role_named(name)
    return role is not None and role.faction is Faction.TOWN


def is_informed(name: str | None) -> bool:
    """Whether the word of this role's holder about others has a source."""
    role = role_named(name)
    return role is not None and role.is_informed


@follows_roles
@cache
def _slots(lobby: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The roles that each slot of a list may hold, by their public names."""
    return tuple(tuple(ROLES[role].name for role in roles_of(slot)) for slot in lobby)


class Room:
    """The slots of the public role list that no known player fills.

    A slot that names a role (`named`, by role name) has room for one claim to it. A slot filled by lot (`drawn`, the
    roles it may hold) has room for one claim to any of them. Claims beyond the room are lies.
    """

    def __init__(self, lobby: Iterable[str], known: Iterable[str]) -> None:
        slots = _slots(tuple(lobby))
        self.named = Counter(slot[0] for slot in slots if len(slot) == 1)
        self.drawn = [slot for slot in slots if len(slot) > 1]
        for role in known:
            self._take(role)

    def _take(self, role: str) -> None:
        if self.named[role]:
            self.named[role] -= 1
            return
        # A player who changed roles in the game fills no slot of the new one.
        slot = next((slot for slot in self.drawn if role in slot), None)
        if slot is not None:
            self.drawn.remove(slot)

    def drawn_for(self, role: str) -> int:
        """How many drawn slots could hold a role."""
        return sum(role in slot for slot in self.drawn)

    def left(self, claims: Iterable[str]) -> list[str]:
        """The roles one more player could claim without a contradiction."""
        counts = Counter(claims)
        surplus = sum((counts - self.named).values())
        drawn = {role for slot in self.drawn for role in slot} if surplus < len(self.drawn) else set[str]()
        return sorted({role for role in self.named if self.named[role] > counts[role]} | drawn)


def chances_of_lie(room: Room, claims: Mapping[str, str]) -> dict[str, float]:
    """The chance that each of these claims, by player, is a lie, spread evenly over all who claim the same."""
    claimants: dict[str, list[str]] = defaultdict(list)
    for name, role in claims.items():
        claimants[role].append(name)
    surplus = {role: max(0, len(names) - room.named[role]) for role, names in claimants.items()}
    drawn_for = {role: room.drawn_for(role) for role in claimants}
    contenders = sum(min(surplus[role], drawn_for[role]) for role in claimants)
    granted = min(1.0, len(room.drawn) / contenders) if contenders else 0.0
    return {
        name: (surplus[role] - granted * min(surplus[role], drawn_for[role])) / len(names)
        for role, names in claimants.items()
        for name in names
    }


def own_findings(view: SeatView, claims: Mapping[str, str]) -> dict[str, Finding]:
    """Who is guilty and who is not, by what this seat found and saw; what leaves that open is left out."""
    findings: dict[str, Finding] = {}
    for event in view.private:
        if event.kind is RESULT:
            about, finding = event.text("about"), event.text("finding")
            visitors = visitors_in(finding)
            if visitors is not None:
                findings |= dict.fromkeys(_caught(view, event, visitors), Finding(True, "caught", event.day))
            elif (verdict := _verdict(view, finding, claims.get(about))) is not None:
                findings[about] = Finding(verdict, "guilty" if verdict else "innocent", event.day)
        elif event.notice.says is Says.VISITED_BY_MAFIA:
            # The Mafia does not call on its own.
            others = [name for name in event.names("visited") if name != view.name]
            findings |= dict.fromkeys(others, Finding(False, "called on", event.day))
    for event in view.public:
        if event.kind is EventKind.REVEALED and event.text("player") != view.name:
            findings[event.text("player")] = Finding(False, "shown", event.day)
    return findings


def _caught(view: SeatView, seen: Event, visitors: list[str]) -> list[str]:
    """The one visitor of a house whose owner was murdered that night; among several it could be any."""
    murders = (
        event
        for event in view.public
        if event.kind is EventKind.DEATH and event.data["player"] == seen.data["about"] and event.day - seen.day <= 1
    )
    causes = {cause for event in murders for cause in event.names("causes")}
    is_caught = len(visitors) == 1 and visitors[0] in view.players and bool(causes & _visible_causes())
    return visitors if is_caught else []


@follows_roles
@cache
def _visible_causes() -> frozenset[str]:
    return frozenset(cause.name for role in ROLES.values() for cause in role.causes if cause.is_visible)


def _verdict(view: SeatView, finding: str, claimed: str | None) -> bool | None:
    if finding in (SUSPICIOUS, NOT_SUSPICIOUS):
        return finding == SUSPICIOUS
    if finding == MAFIA_MEMBER:
        return True
    named = [role for role in roles_in_play(view.lobby) if role.name in finding]
    if not named:
        return None
    if len({role.faction is Faction.TOWN for role in named}) > 1:
        # A claim to be none of those is a lie.
        return True if claimed is not None and claimed not in {role.name for role in named} else None
    return named[0].faction is not Faction.TOWN
