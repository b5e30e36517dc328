"""The night in which abilities act: what is being done, and the verbs that effects are written in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from mac_runner.environments.town_of_salem.game.events import Event, EventKind, private
from mac_runner.environments.town_of_salem.game.state import DeathCause, Deed, GameState, Player
from mac_runner.types import JsonValue

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.roles.base import NightAbility, Role


class Level(IntEnum):
    """Strength of an attack or a defence: a victim dies iff the attack is the stronger (rules, section 1)."""

    NONE = 0
    BASIC = 1
    POWERFUL = 2
    UNSTOPPABLE = 3


class Step(IntEnum):
    """When in a night an ability takes effect (rules, section 6)."""

    TRANSPORT = 1
    PREPARE = 2
    CONTROL = 3
    BLOCK = 5
    PROTECT = 6
    INVESTIGATE = 7
    ATTACK = 8
    BURY = 11
    REPORT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack of the night.

    Only direct ones can be stepped in front of, and only those that reach the jail harm a prisoner. A bloody one leaves
    a will nobody can read. `instead` is what happens to a victim who is overcome, where that is not death.
    """

    attacker: int
    victim: int
    level: Level
    cause: DeathCause
    is_direct: bool
    reaches_jail: bool = False
    is_bloody: bool = False
    instead: Callable[[], None] | None = None


class Guard(NamedTuple):
    """Somebody who meets one attacker of a house in person."""

    seat: int
    falls_by: DeathCause
    """What the guard dies of."""
    strikes_by: DeathCause
    """What the attacker dies of."""


class Visit(NamedTuple):
    """Who went to whose house."""

    visitor: int
    house: int


class Note(NamedTuple):
    """What came between a choice and what happened, for those who read a finished game.

    `how` in a word or two, the seats it befell, whose doing it was, and what their deed was before and after.
    """

    how: str
    seats: tuple[int, ...]
    by: int | None = None
    was: Deed | None = None
    now: Deed | None = None


class Judged(NamedTuple):
    """An attack that was judged: the defence it met (None: none was asked) and what came of it."""

    attack: Attack
    defence: Level | None
    outcome: str


class NightState:
    """What is being done this night. `notes` and `judged` are for the record alone: nothing is decided by them."""

    def __init__(self, state: GameState, roles: Mapping[str, Role]) -> None:
        self.state = state
        self.roles = roles
        self.living = frozenset(player.seat for player in state.living)
        self.deeds = list(state.deeds)
        self.visits: list[Visit] = []
        self.controlled: set[int] = set()
        self.blocked: set[int] = set()
        self.tonight: dict[int, set[str]] = defaultdict(set)
        self.defences: dict[int, Level] = {}
        self.healers: dict[int, list[int]] = defaultdict(list)
        self.guards: dict[int, list[Guard]] = defaultdict(list)
        self.disguises: dict[int, int] = {}
        self.attacks: list[Attack] = []
        self.fatal: dict[int, list[Attack]] = {}
        self.events: list[Event] = []
        self.notes: list[Note] = []
        self.judged: list[Judged] = []
        self.unnoticed: list[tuple[int, EventKind]] = []
        self._places: dict[int, int] = {}
        self._listeners: dict[int, list[int]] = defaultdict(list)
        self._plans: dict[Step, list[Callable[[], None]]] = defaultdict(list)

    # What is so.

    def player(self, seat: int) -> Player:
        """The player at `seat`, as far as the night has come."""
        return self.state.players[seat]

    def role_of(self, seat: int) -> Role:
        """The role `seat` holds tonight."""
        return self.roles[self.state.players[seat].role]

    def name_of(self, seat: int) -> str:
        """The player's public name."""
        return self.state.players[seat].name

    def ability(self, deed: Deed) -> NightAbility:
        """The ability a deed uses. A deed always names one its role has."""
        return self.role_of(deed.seat).night_ability(deed.verb)

    def place(self, seat: int) -> int:
        """Where one ends up tonight who goes to `seat`: Transporters may have moved them."""
        return self._places.get(seat, seat)

    def deed_of(self, seat: int) -> Deed | None:
        """What `seat` is about to do."""
        return next((deed for deed in self.deeds if deed.seat == seat), None)

    def house(self, deed: Deed) -> int:
        """The house a deed ends up at."""
        ability = self.ability(deed)
        target = deed.targets[ability.visited]
        return self._places.get(target, target) if ability.is_moved else target

    def chosen_for(self, seat: int, house: int) -> str:
        """Whom `seat` chose, the choice having led to `house`; "" when they only met who is there.

        What a player is told of their own deed names the one they chose: neither whom a Transporter put in that place,
        nor a visitor, nor a keeper who is nobody's to know.
        """
        chosen = (deed for deed in self.deeds if deed.seat == seat and deed.targets and self.house(deed) == house)
        return next((self.name_of(deed.targets[self.ability(deed).visited]) for deed in chosen), "")

    def visitors(self, house: int) -> tuple[int, ...]:
        """Who came to a house, in seat order, each once."""
        return tuple(sorted({visit.visitor for visit in self.visits if visit.house == house}))

    def is_able(self, seat: int) -> bool:
        """Whether `seat` can still act tonight: neither jailed nor blocked."""
        return seat != self.state.prisoner and seat not in self.blocked

    def is_executed(self, seat: int) -> bool:
        """Whether `seat` is in jail and will not leave it alive."""
        return seat == self.state.prisoner and any(
            self.ability(deed).reaches_jail for deed in self.deeds if deed.seat == self.state.keeper
        )

    def looks_like(self, seat: int) -> int:
        """Whom one takes `seat` for who sees them tonight."""
        return self.disguises.get(seat, seat)

    def chance(self, *purpose: str | int) -> Random:
        """The generator of one random decision of this night."""
        return self.state.chance("night", self.state.day, *purpose)

    # What happens.

    def tell(self, seat: int, kind: EventKind, **data: JsonValue) -> None:
        """Let one player know."""
        self.events.append(private(self.state, kind, (seat,), **data))

    def announce(self, event: Event) -> None:
        """Let it be known; what everybody learns is told at dawn, after the deaths."""
        self.events.append(event)

    def note(
        self, how: str, *seats: int, by: int | None = None, was: Deed | None = None, now: Deed | None = None
    ) -> None:
        """Keep for the record what came between a choice and what happened."""
        self.notes.append(Note(how, seats, by, was, now))

    def report(self, seat: int, kind: EventKind, **data: JsonValue) -> None:
        """Let one player know what they found out, and those too who had them do it."""
        for reader in (seat, *self._listeners[seat]):
            self.tell(reader, kind, **data)

    def find(self, seat: int, about: int, finding: str) -> None:
        """Report what was found about a player."""
        self.report(seat, EventKind.RESULT, about=self.name_of(about), finding=finding)

    def listen(self, listener: int, seat: int) -> None:
        """Have `listener` learn tonight what `seat` finds."""
        self._listeners[seat].append(listener)

    def later(self, step: Step, plan: Callable[[], None]) -> None:
        """Do something at a later step, after the deeds of that step."""
        self._plans[step].append(plan)

    def plans(self, step: Step) -> list[Callable[[], None]]:
        """What was put off until `step`."""
        return self._plans[step]

    def visit(self, visitor: int, house: int) -> None:
        """Have somebody seen at a house."""
        if visitor != house:
            self.visits.append(Visit(visitor, house))

    def swap(self, one: int, other: int) -> None:
        """Move two players into each other's houses."""
        self._places[one], self._places[other] = self.place(other), self.place(one)

    def block(self, blocker: int, target: int) -> None:
        """Role-block `target` (step 5); the immune are told, and so is their visitor."""
        role = self.role_of(target)
        if role.is_block_immune:
            self.note("block resisted", target, by=blocker)
            self.tell(blocker, EventKind.BLOCK_FAILED, target=self.chosen_for(blocker, target))
            self.tell(target, EventKind.BLOCK_RESISTED)
            return
        if not role.when_blocked(self, target, blocker):
            self.note("block resisted", target, by=blocker)
            self.tell(target, EventKind.BLOCK_RESISTED)
            return
        self.note("blocked", target, by=blocker, was=self.deed_of(target))
        self.blocked.add(target)
        self.tell(target, EventKind.BLOCKED)

    def defend(self, seat: int, level: Level) -> None:
        """Give a player a defence for this night."""
        self.defences[seat] = max(level, self.defences.get(seat, Level.NONE))

    def attack(
        self,
        attacker: int,
        victim: int,
        level: Level,
        cause: DeathCause,
        *,
        is_direct: bool = True,
        reaches_jail: bool = False,
        is_bloody: bool = False,
        instead: Callable[[], None] | None = None,
    ) -> None:
        """Put one attack on the list that is judged in the end; its cause is one of those of the attacker's role."""
        role = self.role_of(attacker)
        if cause not in role.causes:
            raise LookupError(f"{role.name} has no cause of death {cause.name!r}")
        self.attacks.append(
            Attack(
                attacker=attacker,
                victim=victim,
                level=level,
                cause=cause,
                is_direct=is_direct,
                reaches_jail=reaches_jail,
                is_bloody=is_bloody,
                instead=instead,
            )
        )

    def mark_for_good(self, seat: int, mark: str) -> None:
        """Give a player a mark that outlasts the night."""
        player = self.state.players[seat]
        self.put(replace(player, marks=player.marks | {mark}))

    def set_uses(self, seat: int, verb: str, left: int) -> None:
        """Set what is left of a limited ability."""
        player = self.state.players[seat]
        self.put(replace(player, uses={**player.uses, verb: left}))

    def spend(self, deed: Deed) -> None:
        """Count one use of the ability of a deed."""
        self.set_uses(deed.seat, deed.verb, self.state.players[deed.seat].uses[deed.verb] - 1)

    def put(self, player: Player) -> None:
        """Replace a player."""
        self.state = self.state.with_player(player)
