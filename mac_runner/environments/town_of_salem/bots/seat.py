"""One seat of a scripted player deciding one turn: what it sees, what it makes of that, and how it chooses.

`Seat` holds a view and a source of chance, and nothing else; it is all that the tactics of abilities ask. Suspicion is
a sum of evidence: 0 is nothing known, about 2 is enough for a vote, below 0 speaks for a player. The weights are
judgement, tuned by playing; nothing outside this file depends on their values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from random import Random
from typing import NamedTuple

from mac_runner.environments.town_of_salem.bots.speech import (
    Sentence,
    Statement,
    plain,
    points_of,
    understand,
    write,
)
from mac_runner.environments.town_of_salem.model.events import (
    DEFENCE_TOO_STRONG,
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
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility, Role
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import WILL_CHARS_MAX
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play, roles_of
from mac_runner.environments.town_of_salem.seat.knowledge import Choice, SeatView

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
_CLEARED = -1.0
_UNCONTESTED = 1.5
# From this day on the Town says what it is, but for roles that hide; a day later, silence is suspicious.
CLAIMING_DAY = 3
# How much suspicion it takes on the second day, and how much less with each day: waiting helps the Mafia.
_VOTE_FROM = 1.8
_EASIER_EACH_DAY = 0.15
_VOTE_FROM_MIN = 0.7
TRUSTED = 1.0
"""Below this suspicion a claim, and the word of one who may know, is taken for true."""
# How much more likely a killer chooses a player who speaks against the killer's side.
_REVENGE = 3.0


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


@follows_roles
@cache
def _evil_in(lobby: tuple[str, ...]) -> float:
    """How many players of a role list do not belong to the Town, on average."""
    slots = [[not is_town_role(role) for role in slot] for slot in _slots(lobby)]
    return sum(sum(slot) / len(slot) for slot in slots)


@follows_roles
@cache
def _kill_verbs() -> frozenset[str]:
    abilities = (ability for role in ROLES.values() for ability in role.abilities)
    return frozenset(ability.verb for ability in abilities if isinstance(ability, NightAbility) and ability.is_kill)


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
            if self.named[role]:
                self.named[role] -= 1
            # A player who changed roles in the game fills no slot of the new one.
            elif (filled := next((slot for slot in self.drawn if role in slot), None)) is not None:
                self.drawn.remove(filled)

    def left(self, claims: Iterable[str]) -> list[str]:
        """The roles one more player could claim without a contradiction."""
        counts = Counter(claims)
        surplus = sum((counts - self.named).values())
        drawn = {role for slot in self.drawn for role in slot} if surplus < len(self.drawn) else set[str]()
        return sorted({role for role in self.named if self.named[role] > counts[role]} | drawn)

    def chances_of_lie(self, claims: Mapping[str, str]) -> dict[str, float]:
        """The chance that each of these claims, by player, is a lie, spread evenly over all who claim the same."""
        claimants: dict[str, list[str]] = defaultdict(list)
        for name, role in claims.items():
            claimants[role].append(name)
        surplus = {role: max(0, len(names) - self.named[role]) for role, names in claimants.items()}
        contending = {role: min(surplus[role], sum(role in slot for slot in self.drawn)) for role in claimants}
        contenders = sum(contending.values())
        granted = min(1.0, len(self.drawn) / contenders) if contenders else 0.0
        return {
            name: (surplus[role] - granted * contending[role]) / len(names)
            for role, names in claimants.items()
            for name in names
        }


class Finding(NamedTuple):
    """What a seat knows of another player."""

    is_guilty: bool
    kind: str
    """The kind of sentence that tells of it."""
    day: int
    """The day it was shown, or the night it was found."""


class Seat:
    """A view, and what follows from it, each part when first asked for: not every turn needs all."""

    def __init__(self, view: SeatView, chance: Random) -> None:
        self.view = view
        self.chance = chance
        self.choices = {choice.verb: choice for choice in view.choices}
        self.is_town = view.role.faction is Faction.TOWN
        self.is_hostile = view.role.is_hostile_to_town or (view.role.group is not None and not self.is_town)
        """Whether this seat wins when the Town loses, so that any lynch outside its team helps it."""
        self.quarry = view.quarry if view.quarry in view.living else None
        """The target it wants lynched, while that target lives."""
        self.enough = max(_VOTE_FROM_MIN, _VOTE_FROM - _EASIER_EACH_DAY * (view.day - 2))
        """The suspicion it takes today to vote, to judge guilty and to execute."""
        self.roles_in_play = roles_in_play(view.lobby)
        """Every role that the game may hold."""
        self.suspects = [name for name in view.living if name != view.name]
        """The living others."""

    # What it has heard, and what it found.

    @cached_property
    def _heard(self) -> list[tuple[str, Statement]]:
        """Each speaker with what they said. A will speaks for its writer, and the dead speak at night."""
        said: list[tuple[str, str]] = []
        for event in self.view.public:
            if event.kind is EventKind.SPEECH:
                said.append((event.text("player"), event.text("text")))
            elif event.kind is EventKind.DEATH and event.data["will"]:
                said.append((event.text("player"), event.text("will")))
        for event in self.view.private:
            if event.kind is EventKind.WHISPER or (event.kind is EventKind.CHAT and event.data["channel"] != "mafia"):
                said.append((event.text("player"), event.text("text")))
        return [(speaker, understand(text)) for speaker, text in said]

    @cached_property
    def claims(self) -> Mapping[str, str]:
        """The role that each player claims, or showed to all."""
        claims = {speaker: statement.claims for speaker, statement in self._heard if statement.claims}
        shown = (event for event in self.view.public if event.kind is EventKind.REVEALED)
        return claims | {event.text("player"): event.text("role") for event in shown}

    @cached_property
    def known_roles(self) -> Mapping[str, str]:
        """The exact roles this seat found, or read in its team's chat."""
        known: dict[str, str] = {}
        for event in self.view.private:
            if event.kind is EventKind.CHAT and event.data["channel"] == Faction.MAFIA:
                known |= understand(event.text("text")).roles
        for event in self.view.private:
            role = event.text("finding").partition(" ")[2] if event.kind is RESULT else ""
            if role_named(role) is not None:
                known[event.text("about")] = role
        return known

    def role_of(self, name: str) -> str | None:
        """The role that a player is known to hold, else claims."""
        return self.known_roles.get(name) or self.claims.get(name)

    @cached_property
    def findings(self) -> Mapping[str, Finding]:
        """Who is guilty and who is not, by what this seat found and saw; what leaves that open is left out."""
        findings: dict[str, Finding] = {}
        for event in self.view.private:
            if event.kind is RESULT:
                about, finding = event.text("about"), event.text("finding")
                visitors = visitors_in(finding)
                if visitors is not None:
                    if self._is_caught(event, visitors):
                        findings[visitors[0]] = Finding(True, "caught", event.day)
                elif (is_guilty := self._verdict(finding, self.claims.get(about))) is not None:
                    findings[about] = Finding(is_guilty, "guilty" if is_guilty else "innocent", event.day)
            elif event.notice.says is Says.VISITED_BY_MAFIA:
                # The Mafia does not call on its own.
                others = [name for name in event.names("visited") if name != self.view.name]
                findings |= dict.fromkeys(others, Finding(False, "called on", event.day))
        for event in self.view.public:
            if event.kind is EventKind.REVEALED and event.text("player") != self.view.name:
                findings[event.text("player")] = Finding(False, "shown", event.day)
        return findings

    def _is_caught(self, seen: Event, visitors: Sequence[str]) -> bool:
        """Whether it was the one visitor of a house whose owner was murdered that night; of several it could be any."""
        if len(visitors) != 1 or visitors[0] not in self.view.players:
            return False
        visible = {cause.name for role in ROLES.values() for cause in role.causes if cause.is_visible}
        return any(
            not visible.isdisjoint(event.names("causes"))
            for event in self.view.public
            if event.kind is EventKind.DEATH and event.data["player"] == seen.data["about"]
            if event.day - seen.day <= 1
        )

    def _verdict(self, finding: str, claimed: str | None) -> bool | None:
        """Whether a finding is of one who is guilty; None where it leaves that open."""
        if finding in (SUSPICIOUS, NOT_SUSPICIOUS):
            return finding == SUSPICIOUS
        if finding == MAFIA_MEMBER:
            return True
        named = [role for role in self.roles_in_play if role.name in finding]
        if not named:
            return None
        if len({role.faction is Faction.TOWN for role in named}) > 1:
            # A claim to be none of those is a lie.
            return True if claimed is not None and claimed not in {role.name for role in named} else None
        return named[0].faction is not Faction.TOWN

    # What it makes of that.

    @cached_property
    def _graves(self) -> list[str]:
        """The roles shown for the dead."""
        return [role for role in self.view.graveyard.values() if role != UNKNOWN_ROLE]

    @cached_property
    def _room(self) -> Room:
        view = self.view
        return Room(view.lobby, [*self._graves, *(view.team.values() or ([view.role.name] if view.is_alive else []))])

    @cached_property
    def _living_claims(self) -> Mapping[str, str]:
        return {name: role for name, role in self.claims.items() if name in self.suspects}

    @cached_property
    def unclaimed(self) -> Sequence[Role]:
        """What the role list still has room for when the living are taken at their word."""
        return [ROLES[role.lower()] for role in self._room.left(self._living_claims.values())]

    @cached_property
    def lies(self) -> Mapping[str, float]:
        """The chance that the claim of each living other is a lie, where more claim a role than the list has."""
        return self._room.chances_of_lie(self._living_claims)

    @cached_property
    def silent(self) -> Sequence[str]:
        """Those who should have claimed a role by now."""
        return [name for name in self.suspects if name not in self.claims] if self.view.day > CLAIMING_DAY else []

    @cached_property
    def wrong_ballots(self) -> Sequence[tuple[str, str]]:
        """Each lynched player with a judge whose ballot the grave showed to be wrong."""
        found: list[tuple[str, str]] = []
        ballots: Event | None = None
        for event in self.view.public:
            if event.kind is EventKind.BALLOTS:
                ballots = event
            elif event.kind is EventKind.DEATH and event.data["causes"] == [LYNCH.name] and ballots is not None:
                wrong = Ballot.GUILTY if is_town_role(event.text("role")) else Ballot.INNOCENT
                found += [(event.text("player"), judge) for judge in ballots.names(wrong)]
        return found

    def doubt(self, name: str) -> float:
        """How suspicious a player is."""
        return self.suspicion.get(name, 0.0)

    @cached_property
    def suspicion(self) -> Mapping[str, float]:
        """How suspicious each living other is."""
        day, score = self.view.day, defaultdict[str, float](float)
        for name, finding in self.findings.items():
            score[name] += _OWN_FINDING if finding.is_guilty else -_OWN_FINDING / 2
        for name, chance in self.lies.items():
            score[name] += _FALSE_CLAIM * chance
            if not chance and self._room.named[self.claims[name]] and day > CLAIMING_DAY:
                # The holder of this role would have spoken up against a liar by now.
                score[name] -= _UNCONTESTED
        self._weigh_words(score)
        for _, judge in self.wrong_ballots:
            score[judge] += _WRONG_BALLOT
        # The share of the others who must be evil by the role list and the graves.
        evil = _evil_in(self.view.lobby) - sum(not is_town_role(role) for role in self._graves)
        for name in self.suspects:
            score[name] += _ODDS * max(0.0, evil / len(self.suspects) - 0.5)
        # A role that hides may claim nothing for ever, and could be any of the silent.
        for name in self.silent:
            score[name] += _SILENCE * (1.0 - any(role.hides for role in self.unclaimed) / len(self.silent))
        return {name: score[name] for name in self.suspects}

    def most_suspicious(self) -> str:
        """The most suspicious outside its team, the first in seat order among equals; "" for nobody."""
        return max((name for name in self.suspicion if name not in self.view.team), key=self.doubt, default="")

    def _weigh_words(self, score: dict[str, float]) -> None:
        """What players said about one another adds to the score of both: the last word of each about each."""
        words: dict[tuple[str, str], bool] = {}
        for speaker, statement in self._heard:
            for name in statement.accuses:
                words[speaker, name] = True
            for name in statement.clears:
                words[speaker, name] = False
        for (speaker, about), is_accusation in words.items():
            shown = self.view.graveyard.get(about)
            if speaker in (self.view.name, about) or shown == UNKNOWN_ROLE:
                continue
            is_source = is_informed(self.claims.get(speaker))
            if shown is None:
                weight = self._credit(speaker, is_source, score[speaker])
                score[about] += weight if is_accusation else _CLEARED * min(weight, 1.0)
            elif is_accusation != is_town_role(shown):
                # The grave shows whether the word was true.
                score[speaker] -= _BAD_ACCUSER
            else:
                score[speaker] += _BAD_INFORMER if is_source and is_accusation else _BAD_ACCUSER

    def _credit(self, speaker: str, is_source: bool, doubt: float) -> float:
        """What the word of a player counts who claims to have a source, or not."""
        shown = self.view.graveyard.get(speaker, UNKNOWN_ROLE)
        if shown == UNKNOWN_ROLE:
            return (_INFORMED_WORD if is_source else _BARE_WORD) / (1.0 + max(doubt, 0.0))
        if not is_town_role(shown):
            return 0.0
        return _PROVEN_WORD if is_informed(shown) else _BARE_WORD

    def _accusations(self, *accused: str) -> list[Event]:
        """Everything said in public against any of these players."""
        return [
            event
            for event in self.view.public
            if event.kind is EventKind.SPEECH and not set(accused).isdisjoint(understand(event.text("text")).accuses)
        ]

    @cached_property
    def accusers_today(self) -> list[str]:
        """Those who accused this seat today, dead or alive, in order."""
        events = self._accusations(self.view.name)
        return [event.text("player") for event in events if event.day == self.view.day]

    def accusers(self, *beside: str) -> list[str]:
        """The living outside its team who accused this seat, or one of those beside it, in order."""
        names = [event.text("player") for event in self._accusations(self.view.name, *beside)]
        return [name for name in names if name in self.suspects and name not in self.view.team]

    # Choosing among players.

    def pick(self, names: Sequence[str]) -> str:
        """Any of `names`."""
        return self.chance.choice(list(names))

    def others(self, choice: Choice) -> list[str]:
        """Targets but oneself; a member of the Town avoids those who may shoot their visitors."""
        others = [name for name in choice.targets if name != self.view.name]
        claimed = {name: role_named(self.claims.get(name)) for name in others if self.is_town}
        shooters = {name for name, role in claimed.items() if role is not None and role.shoots_visitors}
        return [name for name in others if name not in shooters] or others or list(choice.targets)

    def worst(self, choice: Choice) -> str:
        """The most suspicious target."""
        others = self.others(choice)
        worst = max(map(self.doubt, others))
        return self.pick([name for name in others if self.doubt(name) >= worst])

    def worth_protecting(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that the Town needs most, as far as their claims are believed."""
        believed = [name for name in names if self.suspicion.get(name, TRUSTED) < TRUSTED]
        return [name for name in believed if self.weight_of(self.claims.get(name)) > 1.0]

    def weight_of(self, role: str | None) -> float:
        """How much the holder of a role is worth guarding, and worth killing."""
        return 1.0 if role is None else ROLES[role.lower()].worth

    def victim(self, targets: Sequence[str] | None = None) -> str:
        """The one that a killer wants dead: drawn, likelier with a dangerous role and an undoubted word."""
        view = self.view
        survivors = self._survivors()
        outside = [name for name in targets or view.living if name not in view.team and name != view.name]
        names = [name for name in outside if name not in survivors] or outside or list(view.living)
        enemies = self.accusers(*view.team)
        weights = [self._danger(name) * (_REVENGE if name in enemies else 1.0) for name in names]
        return self.chance.choices(names, weights)[0]

    def _danger(self, name: str) -> float:
        role = self.role_of(name)
        weight = self.weight_of(role)
        silent = [other for other in self.silent if other not in self.view.team]
        hidden = [other.worth for other in self.unclaimed if other.hides]
        if role is None and name in silent and hidden:
            weight += (max(hidden) - weight) / len(silent)
        # The Town may lynch by itself those it doubts.
        return weight / (1.0 + max(0.0, self.doubt(name)))

    def _survivors(self) -> set[str]:
        """The players this seat tried to kill last night, and those ever too strong for it."""
        found: set[str] = set()
        for event in self.view.private:
            if event.kind is DEFENCE_TOO_STRONG:
                found.add(event.text("target"))
            elif event.kind is EventKind.ACTION_CHOSEN and event.day == self.view.day - 1:
                found.update(event.names("targets") if event.data["verb"] in _kill_verbs() else ())
        return found

    def agreed_victim(self) -> str | None:
        """The one its team spoke of killing tonight: the last word of its leader, else of any member."""
        said = [
            (event.text("player"), takes)
            for event in self.view.private
            if event.day == self.view.day and event.kind is EventKind.CHAT
            if (takes := understand(event.text("text")).takes) is not None
        ]
        ranks = {name: ROLES[role.lower()].team_rank for name, role in self.view.team.items()}
        leader = max(ranks, key=lambda name: ranks[name], default="")
        led = [takes for speaker, takes in said if speaker == leader and ranks[leader]]
        return led[-1] if led else said[-1][1] if said else None

    # Words.

    @cached_property
    def speeches(self) -> list[Event]:
        """All this seat said in public."""
        mine = self.view.name
        return [event for event in self.view.public if event.kind is EventKind.SPEECH and event.data["player"] == mine]

    @cached_property
    def points_made(self) -> frozenset[tuple[str, str]]:
        """All this seat claimed in public."""
        return points_of(event.text("text") for event in self.speeches)

    def chats(self) -> Iterator[Event]:
        """All this seat said on the channels of the night; it goes by its role on some."""
        names = (self.view.name, self.view.role.name)
        return (e for e in self.view.private if e.kind is EventKind.CHAT and e.data["player"] in names)

    def since(self, day: int) -> Iterator[Event]:
        """The public events of that day and later, the latest first."""
        return takewhile(lambda event: event.day >= day, reversed(self.view.public))

    def words(self, sentences: Iterable[Sentence]) -> str:
        """These sentences in words that this seat has not used before, nor others today, as far as there are some."""
        view = self.view
        whispers = (e for e in view.private if e.kind is EventKind.WHISPER and e.data["player"] == view.name)
        own = "\n".join(event.text("text") for event in (*self.speeches, *self.chats(), *whispers))
        heard = "\n".join(
            event.text("text").replace(event.text("player"), view.name)
            for event in self.since(view.day)
            if event.kind is EventKind.SPEECH
        )
        chosen: list[str] = []
        used: set[str] = set()
        for sentence in sentences:
            wordings = {text: text.format(**sentence.fields, me=view.name) for text in sentence.kind.wordings}
            fresh = [text for text in wordings if text not in used and wordings[text] not in own]
            fresh = [text for text in fresh if wordings[text] not in heard] or fresh or list(wordings)
            text = self.pick(fresh)
            used.add(text)
            chosen.append(wordings[text])
        return " ".join(chosen)

    def cover(self) -> str:
        """A role of the Town to hide behind: its earlier claim, else one that the list has room for."""
        mine = self.claims.get(self.view.name)
        if mine is not None:
            return mine
        free = [role.name for role in self.unclaimed if role.faction is Faction.TOWN and not role.is_risky_claim]
        if free:
            return self.pick(free)
        roles = [role.name for role in self.roles_in_play if role.faction is Faction.TOWN]
        dead = set(self.view.graveyard.values())
        return self.pick([role for role in roles if role not in dead] or roles or [self.view.role.name])

    def say(self, sentences: Iterable[Sentence], thought: str, verb: str = "speak", target: str = "") -> str:
        """Speak, or wait without words or, if blackmailed, without a voice."""
        text = self.words(sentences)
        if not text or verb not in self.choices:
            verb, text = "wait", ""
        return write(verb, text=text, target=target, thought=thought, will=self.will())

    def will(self) -> str:
        """A new will when there are findings that the old one lacks: first those against others."""
        if not self.is_town or "will" not in self.choices:
            return ""
        found = sorted(self.findings.items(), key=lambda found: not found[1].is_guilty)
        told = [plain("guilty" if finding.is_guilty else "innocent", name=name) for name, finding in found]
        will = " ".join((plain("claim dead", role=self.view.role.name), *told))
        if len(will) > WILL_CHARS_MAX:
            will = will[:WILL_CHARS_MAX].rpartition(".")[0] + "."
        return will if will != self.view.will else ""
