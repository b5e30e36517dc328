"""The heuristic player: plays to win by simple rules, from what its seat may know.

The Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The
Mafia kills those who know, keeps quiet, and lies when accused. An Executioner accuses his target; a Jester asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random

from mac_runner.environments.markup import scan
from mac_runner.environments.town_of_salem.events import Event, EventKind
from mac_runner.environments.town_of_salem.knowledge import Choice, SeatView
from mac_runner.environments.town_of_salem.lobbies import roles_in_play, slot_name
from mac_runner.environments.town_of_salem.players.beliefs import (
    CLAIMING_DAY,
    INFORMED,
    Beliefs,
    form_beliefs,
    is_town_role,
)
from mac_runner.environments.town_of_salem.players.statements import accuse, claim, clear, understand
from mac_runner.environments.town_of_salem.players.writing import write
from mac_runner.environments.town_of_salem.state import Ballot, Faction, Phase
from mac_runner.limits import WILL_CHARS_MAX

# How much suspicion it takes on the second day, and how much less with each day: waiting helps the Mafia.
_VOTE_FROM = 1.8
_EASIER_EACH_DAY = 0.2
_VOTE_FROM_MIN = 0.7
_JAIL_FROM = 1.0
_DEATH_NOTE = "Nobody is safe in this town."
# How often somebody does what needs nobody to be aimed at.
_ALONE = 0.3
_WANTED_DEAD = ("Jailor", "Sheriff", "Investigator", "Medium", "Doctor", "Escort")


def play_to_win(view: object, chance: Random) -> str:
    """One reply."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    return _Player(view, chance).reply()


class _Player:
    """One seat deciding one turn."""

    def __init__(self, view: SeatView, chance: Random) -> None:
        self.view = view
        self.chance = chance
        self.choices: dict[str, Choice] = {choice.verb: choice for choice in view.choices}

    @cached_property
    def beliefs(self) -> Beliefs:
        """Formed when first asked for: not every turn needs them."""
        return form_beliefs(self.view)

    @property
    def is_mafia(self) -> bool:
        return self.view.role.faction is Faction.MAFIA

    @property
    def is_town(self) -> bool:
        return self.view.role.faction is Faction.TOWN

    @property
    def quarry(self) -> str | None:
        """An Executioner's target, while there is something to win by it."""
        return self.view.quarry if self.view.quarry in self.view.living else None

    @property
    def enough(self) -> float:
        """The suspicion it takes today to vote, to judge guilty and to execute."""
        return max(_VOTE_FROM_MIN, _VOTE_FROM - _EASIER_EACH_DAY * (self.view.day - 2))

    def reply(self) -> str:
        view = self.view
        match view.phase:
            case Phase.GREETING:
                return self._greet()
            case Phase.NIGHT_CHAT:
                return self._chat()
            case Phase.NIGHT:
                return self._act_at_night()
            case Phase.JUDGEMENT:
                return self._judge()
            case Phase.VOTING:
                return self._use_the_day() or self._vote()
            case Phase.DEFENCE | Phase.LAST_WORDS:
                return self._say(self._defence(), "I must convince them.")
            case Phase.BIDDING:
                return self._use_the_day() or self._bid()
            case _:
                return self._use_the_day() or self._discuss()

    def _say(self, text: str, thought: str) -> str:
        if not text:
            return write("wait", thought=thought or "I have nothing to say.", will=self._will())
        return write("speak", text=text, thought=thought, will=self._will())

    def _will(self) -> str:
        """A new will when there are findings it does not tell yet."""
        if not self.is_town or "will" not in self.choices:
            return ""
        will = f"{claim(self.view.role.name, dead=True)} {self._findings()}".strip()
        if len(will) > WILL_CHARS_MAX:
            will = will[:WILL_CHARS_MAX].rpartition(".")[0] + "."
        return will if will != self.view.will else ""

    def _findings(self) -> str:
        guilty = [name for name, is_guilty in self.beliefs.findings.items() if is_guilty]
        innocent = [name for name, is_guilty in self.beliefs.findings.items() if not is_guilty]
        return f"{accuse(guilty)} {clear(innocent)}".strip()

    def _greet(self) -> str:
        if not self.view.observations:
            asked = f'<tool_request name="get_role">{self.view.role.name}</tool_request>'
            return f"<thinking>Let me look at what I can do.</thinking>\n{asked}"
        return self._use_the_day() or self._say(f"Good day. I am {self.view.name}.", "Nothing to go on yet.")

    def _use_the_day(self) -> str | None:
        """A day ability in place of words, when it is worth more."""
        if "jail" in self.choices and not self._has_jailed_today():
            found = self.beliefs.most_suspicious()
            known = found is not None and found[1] >= _JAIL_FROM
            unknown = [name for name in self.choices["jail"].targets if name not in self.beliefs.claims]
            target = found[0] if known and found else self._pick(unknown or self.choices["jail"].targets)
            return write("jail", target=target, thought=f"I want a word with {target}.", will=self._will())
        if "seance" in self.choices:
            trusted = min(self.beliefs.suspicion, key=lambda name: self.beliefs.suspicion[name])
            return write("seance", target=trusted, thought=f"I trust {trusted} most.")
        return None if self.view.is_alive else write("wait", thought="I am dead.")

    def _has_jailed_today(self) -> bool:
        return any(event.kind is EventKind.JAIL_CHOSEN and event.day == self.view.day for event in self.view.private)

    def _pick(self, names: Sequence[str]) -> str:
        return self.chance.choice(list(names))

    def _bid(self) -> str:
        """Most for an accusation, less for other words, nothing for what it has said today already."""
        words = next((tag.text for tag in scan(self._discuss(), ("speak",)).tags), "")
        if not words or self._has_said_today(words):
            return write("bid", choice="0", thought="Let me hear the others.")
        is_accusing = bool(understand(words).accuses)
        return write("bid", choice="4" if is_accusing else "2", thought=f"I would say: {words}")

    def _has_said_today(self, words: str) -> bool:
        said = {"player": self.view.name, "text": words}
        return any(
            event.kind is EventKind.SPEECH and event.day == self.view.day and event.data == said
            for event in self.view.public
        )

    def _discuss(self) -> str:
        view, role = self.view, self.view.role.name
        if self.quarry is not None:
            return self._say(f"{claim('Sheriff')} {accuse([self.quarry])}", f"They must lynch {self.quarry}.")
        if role == "Jester":
            return self._say(claim("Godfather"), "Let them think the worst of me.")
        if self.is_mafia:
            return self._say(self._lie(), "They must not see who we are.")
        role = self._claimed_role()
        guilty = [name for name, is_guilty in self.beliefs.findings.items() if is_guilty and name in view.living]
        heard = self._heard_from_the_dead()
        if guilty or heard:
            return self._say(f"{claim(role)} {accuse(dict.fromkeys(guilty + heard))}", "They must know this.")
        if self._is_accused() or self._is_impersonated() or self._owes_a_claim():
            return self._say(f"{claim(role)} {self._findings()}".strip(), "I must speak up.")
        return self._confide() or self._say("", "I have nothing to tell yet.")

    def _confide(self) -> str | None:
        """A whisper to somebody one has found innocent and has not told so yet."""
        told = {str(event.data["to"]) for event in self.view.private if event.kind is EventKind.WHISPER}
        innocent = [name for name, is_guilty in self.beliefs.findings.items() if not is_guilty]
        whisper = self.choices.get("whisper")
        confidants = [name for name in innocent if whisper and name in whisper.targets and name not in told]
        if not confidants:
            return None
        text = f"{claim(self.view.role.name)} {clear(confidants[:1])}"
        return write("whisper", target=confidants[0], text=text, thought="One I can trust.", will=self._will())

    def _heard_from_the_dead(self) -> list[str]:
        if self.view.role.name != "Medium":
            return []
        return [name for name, doubt in self.beliefs.suspicion.items() if doubt >= self.enough and self._is_news(name)]

    def _is_news(self, name: str) -> bool:
        """Whether one of the dead has accused `name` in the night chat."""
        return any(
            name in understand(str(event.data["text"])).accuses
            for event in self.view.private
            if event.kind is EventKind.CHAT and event.data["channel"] == "dead"
        )

    def _owes_a_claim(self) -> bool:
        return self.view.day >= CLAIMING_DAY and self.view.name not in self.beliefs.claims

    def _accusations(self) -> list[Event]:
        """Everything said in public against oneself."""
        return [
            event
            for event in self.view.public
            if event.kind is EventKind.SPEECH and self.view.name in understand(str(event.data["text"])).accuses
        ]

    def _is_accused(self) -> bool:
        return any(event.day == self.view.day for event in self._accusations())

    def _is_impersonated(self) -> bool:
        role = self.view.role.name
        return any(claimed == role and name != self.view.name for name, claimed in self.beliefs.claims.items())

    def _accusers(self) -> list[str]:
        names = (str(event.data["player"]) for event in self._accusations())
        return [name for name in names if name in self.view.living]

    def _lie(self) -> str:
        """What a member of the Mafia says by day: little, until accused; then the word of one against the other."""
        accusers = [name for name in self._accusers() if name not in self.view.team]
        if accusers:
            return f"{claim(self._cover())} {accuse(accusers[:1])}"
        return claim(self._cover()) if self._owes_a_claim() else ""

    def _cover(self) -> str:
        """A role of the Town to hide behind: one's earlier claim, else one that nobody has claimed."""
        mine = self.beliefs.claims.get(self.view.name)
        if mine is not None:
            return mine
        dead = set(self.view.graveyard.values())
        taken = dead | set(self.beliefs.claims.values())
        roles = [role.name for role in roles_in_play(self.view.lobby) if role.faction is Faction.TOWN]
        named = [slot_name(slot) for slot in self.view.lobby if is_town_role(slot)]
        roles = named or roles or [self.view.role.name]
        free = [role for role in roles if role not in taken and not (role == "Jailor" and self._is_jailed())]
        informed = [role for role in free if role in INFORMED]
        return self._pick(informed or free or [role for role in roles if role not in dead] or roles)

    def _defence(self) -> str:
        if self.is_mafia:
            return self._lie() or claim(self._cover())
        if self.view.role.name == "Jester":
            return claim("Godfather")
        if self.quarry is not None:
            return f"{claim('Sheriff')} {accuse([self.quarry])}"
        return f"{claim(self._claimed_role())} {self._findings()}".strip()

    def _claimed_role(self) -> str:
        """Who is of the Town has nothing to hide."""
        return self.view.role.name if self.is_town else self._cover()

    def _vote(self) -> str:
        """A vote, unless one's standing vote is already right."""
        if "vote" not in self.choices:
            return write("wait", thought="I have no vote to give.")
        target = self._wanted()
        if target is None or target not in self.choices["vote"].targets:
            return write("wait", thought="Nobody else I would vote for.", will=self._will())
        return write("vote", target=target, thought=f"I want {target} on trial.", will=self._will())

    def _wanted(self) -> str | None:
        if self.quarry is not None:
            return self.quarry
        if self.is_mafia:
            return self._scapegoat()
        found = self.beliefs.most_suspicious()
        return found[0] if found is not None and found[1] >= self.enough else None

    def _scapegoat(self) -> str | None:
        """Whom the others already vote for, if not one of ours; else whoever accuses one of us."""
        outside = [target for target in self.view.votes.values() if target not in self.view.team]
        if outside:
            return max(dict.fromkeys(outside), key=outside.count)
        accusers = [name for name in self._accusers() if name not in self.view.team]
        return accusers[0] if accusers else None

    def _judge(self) -> str:
        accused = self.view.accused or ""
        if self.is_mafia:
            ballot = Ballot.INNOCENT if accused in self.view.team else Ballot.GUILTY
        elif accused == self.quarry:
            ballot = Ballot.GUILTY
        else:
            doubt = self.beliefs.suspicion.get(accused, 0.0)
            ballot = Ballot.GUILTY if doubt >= self.enough else Ballot.INNOCENT
        return write("ballot", choice=ballot.value, thought=f"{accused}: {ballot}.")

    def _chat(self) -> str:
        channel = self.choices["speak"].choices[0]
        match channel:
            case "mafia":
                text = f"I say we take {self._prey()}."
            case "jail":
                text = self._defence() if self._is_jailed() else "Who are you?"
            case _:
                # The dead have nothing to hide; among the living, whoever lies by day lies to a dead Medium too.
                dead = f"{claim(self.view.role.name, dead=True)} {self._findings()}".strip()
                text = self._defence() if self.view.is_alive else dead
        return write("speak", text=text, choice=channel, thought="Here I can be open." if channel != "jail" else "")

    def _is_jailed(self) -> bool:
        return any(event.kind is EventKind.JAILED and event.day == self.view.day for event in self.view.private)

    def _prey(self) -> str:
        """Whom the Mafia wants dead: those who claimed to know, in order of danger, else anybody."""
        living = [name for name in self.view.living if name not in self.view.team and name != self.view.name]
        survivors = self._survived_us()
        living = [name for name in living if name not in survivors] or living
        for role in _WANTED_DEAD:
            named = [name for name in living if self.beliefs.claims.get(name) == role]
            if named:
                return named[0]
        return self._pick(living)

    def _survived_us(self) -> set[str]:
        """Whom we wanted dead last night: somebody looks after those who still live."""
        return {
            name
            for event in self.view.private
            if event.kind is EventKind.DEED_CHOSEN and event.data["verb"] == "kill" and event.day == self.view.day - 1
            for name in (event.data["targets"] if isinstance(event.data["targets"], list) else [])
            if isinstance(name, str)
        }

    def _act_at_night(self) -> str:
        own = {ability.verb for ability in self.view.role.abilities}
        offered = [choice for choice in self.view.choices if choice.verb in own]
        if not offered:
            return write("wait", thought="There is nothing I can do.")
        choice = self.chance.choice(offered) if len(offered) > 1 else offered[0]
        if choice.verb == "execute":
            return self._execute()
        if not choice.targets:
            use = self.chance.random() < _ALONE
            return write(choice.verb if use else "wait", thought="It may be the night for it.", will=self._will())
        target = self._aim(choice)
        if target is None:
            return write("wait", thought="Nobody is worth it tonight.", will=self._will())
        second = self._pick(choice.seconds) if choice.seconds else ""
        text = claim(self._cover(), dead=True) if choice.verb == "forge" else ""
        note = "" if self.view.death_note or "death_note" not in self.choices else _DEATH_NOTE
        return write(
            choice.verb,
            target=target,
            second=second,
            text=text,
            thought=f"Tonight I choose {target}.",
            will=self._will(),
            death_note=note,
        )

    def _execute(self) -> str:
        jailed = [str(event.data["prisoner"]) for event in self.view.private if event.kind is EventKind.JAILING]
        doubt = self.beliefs.suspicion.get(jailed[-1], 0.0) if jailed else 0.0
        return write("execute" if doubt >= self.enough else "wait", thought=f"My doubt: {doubt:.1f}.")

    def _aim(self, choice: Choice) -> str | None:
        """The best target of a night ability, by what the ability is for."""
        suspicion = self.beliefs.suspicion
        others = [name for name in choice.targets if name != self.view.name]
        match choice.verb:
            case "kill":
                return self._prey()
            case "heal":
                worth = [name for name in others if self.beliefs.claims.get(name) in INFORMED and suspicion[name] < 1.0]
                return self._pick(worth or others)
            case "interrogate" | "investigate":
                asked = {str(event.data["about"]) for event in self.view.private if event.kind is EventKind.RESULT}
                fresh = [name for name in others if name not in asked]
                return self._pick(fresh or others)
            case "block":
                worst = max(suspicion[name] for name in others)
                return self._pick([name for name in others if suspicion[name] >= worst])
            case _:
                return self._pick(others)
