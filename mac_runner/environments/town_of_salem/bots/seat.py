"""FIXME One seat deciding one turn: what it sees, what it makes of it, and the few ways in which it speaks.

All that decides for a scripted player (`talk`, `voting`, `by_day`, `by_night`) is a function of a `Seat`, and a `Seat`
holds nothing but a view and a source of chance.

Whom killers want dead: those who know too much, as far as the killer can tell, and whom the Town believes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random

from mac_runner.environments.town_of_salem.bots.beliefs import Beliefs, form_beliefs, silent_players
from mac_runner.environments.town_of_salem.bots.statements import accuse, claim, clear, understand, write
from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.game.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.tactics import Choice
from mac_runner.environments.town_of_salem.view.knowledge import SeatView
from mac_runner.limits import WILL_CHARS_MAX

# How much suspicion it takes on the second day, and how much less with each day: waiting helps the Mafia.
_VOTE_FROM = 1.8
_EASIER_EACH_DAY = 0.15
_VOTE_FROM_MIN = 0.7
# Below this suspicion a claim is taken for true.
_TRUSTED = 1.0


class Seat:
    """A view, and what follows from it."""

    def __init__(self, view: SeatView, chance: Random) -> None:
        self.view = view
        self.chance = chance
        self.choices: dict[str, Choice] = {choice.verb: choice for choice in view.choices}

    @cached_property
    def beliefs(self) -> Beliefs:
        """Formed when first asked for: not every turn needs them."""
        return form_beliefs(self.view)

    @property
    def is_hostile(self) -> bool:
        """Whether this seat wins by the Town's losing: then it does not matter whom the Town lynches, unless ours."""
        role = self.view.role
        return role.is_hostile_to_town or (role.group is not None and not self.is_town)

    @property
    def is_town(self) -> bool:
        """Whether this seat is of the Town."""
        return self.view.role.faction is Faction.TOWN

    @property
    def quarry(self) -> str | None:
        """An Executioner's target, while there is something to win by it."""
        return self.view.quarry if self.view.quarry in self.view.living else None

    @property
    def enough(self) -> float:
        """The suspicion it takes today to vote, to judge guilty and to execute."""
        return max(_VOTE_FROM_MIN, _VOTE_FROM - _EASIER_EACH_DAY * (self.view.day - 2))

    @cached_property
    def known_roles(self) -> dict[str, str]:
        """The exact roles this seat found, or was told by its team at night."""
        known = {
            name: role
            for event in self.view.private
            if event.kind is EventKind.CHAT and event.data["channel"] == "mafia"
            for name, role in understand(str(event.data["text"])).roles
        }
        for event in self.view.private:
            role = str(event.data["finding"]).partition(" ")[2] if event.kind is EventKind.RESULT else ""
            if role.lower() in ROLES:
                known[str(event.data["about"])] = role
        return known

    @cached_property
    def have_doused(self) -> frozenset[str]:
        """Whom this seat poured petrol over, since it last set fire."""
        doused: set[str] = set()
        for event in self.view.private:
            if event.kind is EventKind.VISITED and isinstance(event.data["visitors"], list):
                doused.update(map(str, event.data["visitors"]))
            elif event.kind is EventKind.DEED_CHOSEN and event.data["verb"] == "ignite":
                doused.clear()
            elif event.kind is EventKind.DEED_CHOSEN and event.data["verb"] == "douse":
                targets = event.data["targets"]
                doused.update(map(str, targets if isinstance(targets, list) else ()))
        return frozenset(doused)

    def worth_protecting(self, names: Sequence[str]) -> list[str]:
        """Those of `names` whom the Town needs most, as far as they can be believed."""
        claims, suspicion = self.beliefs.claims, self.beliefs.suspicion
        return [
            name
            for name in names
            if self.weight_of(claims.get(name)) > 1.0 and suspicion.get(name, _TRUSTED) < _TRUSTED
        ]

    def weight_of(self, role: str | None) -> float:
        """How much the holder of a role is worth guarding, and worth killing."""
        return 1.0 if role is None else ROLES[role.lower()].worth

    def draw(self, names: Sequence[str], weights: Sequence[float]) -> str:
        """Any of `names`, by weight."""
        return self.chance.choices(list(names), weights)[0]

    def pick(self, names: Sequence[str]) -> str:
        """Any of `names`."""
        return self.chance.choice(list(names))

    def say(self, text: str, thought: str) -> str:
        """Speak, or wait for want of words or, if blackmailed, of a voice."""
        if not text or "speak" not in self.choices:
            return write("wait", thought=thought or "I have nothing to say.", will=self.will())
        return write("speak", text=text, thought=thought, will=self.will())

    def will(self) -> str:
        """A new will when there are findings it does not tell yet."""
        if not self.is_town or "will" not in self.choices:
            return ""
        will = f"{claim(self.view.role.name, dead=True)} {self.findings()}".strip()
        if len(will) > WILL_CHARS_MAX:
            will = will[:WILL_CHARS_MAX].rpartition(".")[0] + "."
        return will if will != self.view.will else ""

    def findings(self) -> str:
        """This seat's findings, in the sentences others understand."""
        guilty = [name for name, is_guilty in self.beliefs.findings.items() if is_guilty]
        innocent = [name for name, is_guilty in self.beliefs.findings.items() if not is_guilty]
        return f"{accuse(guilty)} {clear(innocent)}".strip()

    def is_jailed(self) -> bool:
        """Whether this seat is in jail tonight."""
        return any(event.kind is EventKind.JAILED and event.day == self.view.day for event in self.view.private)

    def accusations(self) -> list[Event]:
        """Everything said in public against oneself."""
        return [
            event
            for event in self.view.public
            if event.kind is EventKind.SPEECH and self.view.name in understand(str(event.data["text"])).accuses
        ]

    def is_accused(self) -> bool:
        """Whether somebody accused this seat today."""
        return any(event.day == self.view.day for event in self.accusations())

    def enemies(self) -> set[str]:
        """The living who accused one of this seat's own side."""
        ours = {self.view.name, *self.view.team}
        return {
            str(event.data["player"])
            for event in self.view.public
            if event.kind is EventKind.SPEECH
            and event.data["player"] in self.view.living
            and event.data["player"] not in ours
            and not ours.isdisjoint(understand(str(event.data["text"])).accuses)
        }

    def accusers(self) -> list[str]:
        """The living who accused this seat."""
        names = (str(event.data["player"]) for event in self.accusations())
        return [name for name in names if name in self.view.living]


# How much the rather one kills who speaks against one's own side.
_REVENGE = 3.0
_LEADERS = ("Godfather", "Mafioso")


def prey(seat: Seat, targets: Sequence[str] | None = None) -> str:
    """Whom to kill: drawn, those the likelier who hold or claim a dangerous role and whom nobody doubts."""
    view = seat.view
    living = [name for name in targets or view.living if name not in view.team and name != view.name]
    survivors = _survived_us(seat)
    living = [name for name in living if name not in survivors] or living or list(view.living)
    enemies = seat.enemies()
    return seat.draw(living, [_worth(seat, name) * (_REVENGE if name in enemies else 1.0) for name in living])


def _worth(seat: Seat, name: str) -> float:
    role = seat.known_roles.get(name) or seat.beliefs.claims.get(name)
    weight = seat.weight_of(role)
    silent = [name for name in silent_players(seat.view, seat.beliefs.claims) if name not in seat.view.team]
    if role is None and name in silent and "Jailor" in seat.beliefs.unclaimed:
        weight += (seat.weight_of("Jailor") - weight) / len(silent)
    # Whom the Town doubts it may lynch by itself.
    doubt = max(0.0, seat.beliefs.suspicion.get(name, 0.0))
    return weight / (1.0 + doubt)


def agreed_prey(seat: Seat) -> str | None:
    """Whom the team spoke of killing tonight: the last word of its leader, else the last of anybody."""
    said = [
        (str(event.data["player"]), takes)
        for event in seat.view.private
        if event.day == seat.view.day and event.kind is EventKind.CHAT
        if (takes := understand(str(event.data["text"])).takes) is not None
    ]
    led = [takes for speaker, takes in said if speaker == _leader(seat)]
    return led[-1] if led else said[-1][1] if said else None


def _leader(seat: Seat) -> str | None:
    ranks = {role: name for name, role in seat.view.team.items()}
    return next((ranks[role] for role in _LEADERS if role in ranks), None)


def _survived_us(seat: Seat) -> set[str]:
    """Whom we wanted dead last night and who still lives, and who was ever too strong for us."""
    too_strong = {
        str(event.data["target"]) for event in seat.view.private if event.kind is EventKind.DEFENCE_TOO_STRONG
    }
    return too_strong | {
        name
        for event in seat.view.private
        if event.kind is EventKind.DEED_CHOSEN
        and event.data["verb"] in ("kill", "stab", "bite")
        and event.day == seat.view.day - 1
        for name in (event.data["targets"] if isinstance(event.data["targets"], list) else [])
        if isinstance(name, str)
    }
