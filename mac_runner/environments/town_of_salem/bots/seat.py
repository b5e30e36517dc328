"""One seat of a scripted player deciding one turn: what it sees, and what follows from it.

`Seat` holds a view and a source of chance, and nothing else; it is all that the tactics of abilities ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import takewhile
from random import Random

from mac_runner.environments.town_of_salem.bots.beliefs import Beliefs, form_beliefs, role_named
from mac_runner.environments.town_of_salem.bots.speech import Sentence, plain, points_of, understand, write
from mac_runner.environments.town_of_salem.model.events import DEFENCE_TOO_STRONG, RESULT, Event, EventKind
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import WILL_CHARS_MAX
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.seat.knowledge import Choice, SeatView

# How much suspicion it takes on the second day, and how much less with each day: waiting helps the Mafia.
_VOTE_FROM = 1.8
_EASIER_EACH_DAY = 0.15
_VOTE_FROM_MIN = 0.7
TRUSTED = 1.0
"""Below this suspicion a claim, and the word of one who may know, is taken for true."""
# How much more likely a killer chooses a player who speaks against the killer's side.
_REVENGE = 3.0


@follows_roles
@cache
def _kill_verbs() -> frozenset[str]:
    abilities = (ability for role in ROLES.values() for ability in role.abilities)
    return frozenset(ability.verb for ability in abilities if isinstance(ability, NightAbility) and ability.is_kill)


class Seat:
    """A view, and what follows from it."""

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

    # Who it is and what it knows.

    @cached_property
    def beliefs(self) -> Beliefs:
        """Formed when first asked for: not every turn needs them."""
        return form_beliefs(self.view)

    def doubt(self, name: str) -> float:
        """How suspicious a player is."""
        return self.beliefs.suspicion.get(name, 0.0)

    @cached_property
    def known_roles(self) -> dict[str, str]:
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
        return self.known_roles.get(name) or self.beliefs.claims.get(name)

    def _accusations(self, accused: set[str]) -> list[Event]:
        """Everything said in public against any of these players."""
        return [
            event
            for event in self.view.public
            if event.kind is EventKind.SPEECH and not accused.isdisjoint(understand(event.text("text")).accuses)
        ]

    @cached_property
    def accusers_today(self) -> list[str]:
        """Those who accused this seat today, dead or alive, in order."""
        events = self._accusations({self.view.name})
        return [event.text("player") for event in events if event.day == self.view.day]

    def accusers(self) -> list[str]:
        """The living who accused this seat."""
        names = (event.text("player") for event in self._accusations({self.view.name}))
        return [name for name in names if name in self.view.living]

    def enemies(self) -> set[str]:
        """The living outside this seat's side who accused one of it."""
        side = {self.view.name, *self.view.team}
        return {event.text("player") for event in self._accusations(side)} & set(self.view.living) - side

    # Choosing among players.

    def pick(self, names: Sequence[str]) -> str:
        """Any of `names`."""
        return self.chance.choice(list(names))

    def draw(self, names: Sequence[str], weights: Sequence[float]) -> str:
        """Any of `names`, by weight."""
        return self.chance.choices(list(names), weights)[0]

    def others(self, choice: Choice) -> list[str]:
        """Targets but oneself; a member of the Town avoids those who may shoot their visitors."""
        others = [name for name in choice.targets if name != self.view.name]
        claimed = {name: role_named(self.beliefs.claims.get(name)) for name in others if self.is_town}
        shooters = {name for name, role in claimed.items() if role is not None and role.shoots_visitors}
        return [name for name in others if name not in shooters] or others or list(choice.targets)

    def worst(self, choice: Choice) -> str:
        """The most suspicious target."""
        others = self.others(choice)
        worst = max(map(self.doubt, others))
        return self.pick([name for name in others if self.doubt(name) >= worst])

    def worth_protecting(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that the Town needs most, as far as their claims are believed."""
        claims, suspicion = self.beliefs.claims, self.beliefs.suspicion
        return [
            name for name in names if self.weight_of(claims.get(name)) > 1.0 and suspicion.get(name, TRUSTED) < TRUSTED
        ]

    def weight_of(self, role: str | None) -> float:
        """How much the holder of a role is worth guarding, and worth killing."""
        return 1.0 if role is None else ROLES[role.lower()].worth

    def victim(self, targets: Sequence[str] | None = None) -> str:
        """The one that a killer wants dead: drawn, likelier with a dangerous role and an undoubted word."""
        view = self.view
        survivors = self._survivors()
        outside = [name for name in targets or view.living if name not in view.team and name != view.name]
        names = [name for name in outside if name not in survivors] or outside or list(view.living)
        enemies = self.enemies()
        return self.draw(names, [self._danger(name) * (_REVENGE if name in enemies else 1.0) for name in names])

    def _danger(self, name: str) -> float:
        role = self.role_of(name)
        weight = self.weight_of(role)
        silent = [name for name in self.beliefs.silent if name not in self.view.team]
        hidden = [other.worth for other in self.beliefs.unclaimed if other.hides]
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
        mine = self.beliefs.claims.get(self.view.name)
        if mine is not None:
            return mine
        free = [
            role.name for role in self.beliefs.unclaimed if role.faction is Faction.TOWN and not role.is_risky_claim
        ]
        if free:
            return self.pick(free)
        roles = [role.name for role in self.roles_in_play if role.faction is Faction.TOWN]
        dead = set(self.view.graveyard.values())
        return self.pick([role for role in roles if role not in dead] or roles or [self.view.role.name])

    def say(self, sentences: Iterable[Sentence], thought: str) -> str:
        """Speak, or wait without words or, if blackmailed, without a voice."""
        text = self.words(sentences)
        if not text or "speak" not in self.choices:
            return write("wait", thought=thought, will=self.will())
        return write("speak", text=text, thought=thought, will=self.will())

    def will(self) -> str:
        """A new will when there are findings that the old one lacks: first those against others."""
        if not self.is_town or "will" not in self.choices:
            return ""
        found = sorted(self.beliefs.findings.items(), key=lambda found: not found[1].is_guilty)
        told = [plain("guilty" if finding.is_guilty else "innocent", name=name) for name, finding in found]
        will = " ".join((plain("claim dead", role=self.view.role.name), *told))
        if len(will) > WILL_CHARS_MAX:
            will = will[:WILL_CHARS_MAX].rpartition(".")[0] + "."
        return will if will != self.view.will else ""
