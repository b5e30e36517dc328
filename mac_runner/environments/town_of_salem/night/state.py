"""The night in which abilities act: what is being done, and the verbs that effects are written in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from mac_runner.environments.town_of_salem.game.events import Event, EventKind, private
from mac_runner.environments.town_of_salem.game.state import DeathCause, GameState, NightAction, Player
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


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack of the night."""

    attacker: int
    victim: int
    level: Level
    cause: DeathCause
    is_direct: bool = True
    """Whether a guard can meet it."""
    reaches_jail: bool = False
    """Whether it harms a prisoner."""
    is_bloody: bool = False
    """Whether it makes the victim's will unreadable."""
    instead: Callable[[], None] | None = None
    """What happens to a victim who is overcome, where that is not death."""


class Guard(NamedTuple):
    """A player who meets one attacker of a house in person."""

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
    """What came between a choice and what happened, for readers of a finished game."""

    how: str
    """In a word or two."""
    seats: tuple[int, ...]
    """The seats it befell."""
    by: int | None = None
    """Whose doing it was."""
    was: NightAction | None = None
    """The action before."""
    now: NightAction | None = None
    """The action after."""


class Judged(NamedTuple):
    """An attack that was judged: the defence it met (None: none was asked) and what came of it."""

    attack: Attack
    defence: Level | None
    outcome: str


class NightState:
    """What is being done this night. `notes` and `judged` are for the record alone: they decide nothing."""

    def __init__(self, state: GameState, roles: Mapping[str, Role]) -> None:
        self.state = state
        self.roles = roles
        self.living = frozenset(state.living_seats)
        self.actions = list(state.deeds)
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

    # Questions.

    def player(self, seat: int) -> Player:
        """The player at `seat`, as far as the night has come."""
        return self.state.players[seat]

    def role_of(self, seat: int) -> Role:
        """The role `seat` holds tonight."""
        return self.roles[self.state.players[seat].role]

    def name_of(self, seat: int) -> str:
        """The player's public name."""
        return self.state.players[seat].name

    def ability(self, action: NightAction) -> NightAbility:
        """The ability an action uses. An action always names one its role has."""
        return self.role_of(action.seat).night_ability(action.verb)

    def place(self, seat: int) -> int:
        """The house that visitors of `seat` reach tonight: players may have been moved."""
        return self._places.get(seat, seat)

    def action_of(self, seat: int) -> NightAction | None:
        """What `seat` is about to do."""
        return next((action for action in self.actions if action.seat == seat), None)

    def house(self, action: NightAction) -> int:
        """The house an action ends up at."""
        ability = self.ability(action)
        target = action.targets[ability.visited]
        return self.place(target) if ability.is_moved else target

    def chosen_for(self, seat: int, house: int) -> str:
        """The name that `seat` chose and that led to `house`; "" when they only met who is there.

        What players learn of their own action names their choice: not the player that a swap put there, nor a visitor
        or keeper they may not know.
        """
        chosen = (
            action for action in self.actions if action.seat == seat and action.targets and self.house(action) == house
        )
        return next((self.name_of(action.targets[self.ability(action).visited]) for action in chosen), "")

    def visitors(self, house: int) -> tuple[int, ...]:
        """The seats that came to a house, in order, each once."""
        return tuple(sorted({visit.visitor for visit in self.visits if visit.house == house}))

    def is_able(self, seat: int) -> bool:
        """Whether `seat` can still act tonight: neither jailed nor blocked."""
        return seat != self.state.prisoner and seat not in self.blocked

    def is_executed(self, seat: int) -> bool:
        """Whether `seat` is in jail and will not leave it alive."""
        return seat == self.state.prisoner and any(
            self.ability(action).reaches_jail for action in self.actions if action.seat == self.state.keeper
        )

    def looks_like(self, seat: int) -> int:
        """The seat that others take `seat` for when they see it tonight."""
        return self.disguises.get(seat, seat)

    def chance(self, *purpose: str | int) -> Random:
        """The generator of one random decision of this night."""
        return self.state.chance("night", self.state.day, *purpose)

    # Effects.

    def notify(self, seat: int, kind: EventKind, **data: JsonValue) -> None:
        """Let one player know."""
        self.events.append(private(self.state, kind, (seat,), **data))

    def announce(self, event: Event) -> None:
        """Let the audience of an event know; a public event waits for dawn, after the deaths."""
        self.events.append(event)

    def note(
        self,
        how: str,
        *seats: int,
        by: int | None = None,
        was: NightAction | None = None,
        now: NightAction | None = None,
    ) -> None:
        """Keep for the record what came between a choice and what happened."""
        self.notes.append(Note(how, seats, by, was, now))

    def report(self, seat: int, kind: EventKind, **data: JsonValue) -> None:
        """Let a player know what they found out, and also those who had them do it."""
        for reader in (seat, *self._listeners[seat]):
            self.notify(reader, kind, **data)

    def find(self, seat: int, about: int, finding: str) -> None:
        """Report what was found about a player."""
        self.report(seat, EventKind.RESULT, about=self.name_of(about), finding=finding)

    def listen(self, listener: int, seat: int) -> None:
        """Have `listener` learn tonight what `seat` finds."""
        self._listeners[seat].append(listener)

    def later(self, step: Step, plan: Callable[[], None]) -> None:
        """Do something at a later step, after the actions of that step."""
        self._plans[step].append(plan)

    def plans(self, step: Step) -> list[Callable[[], None]]:
        """What was put off until `step`."""
        return self._plans[step]

    def visit(self, visitor: int, house: int) -> None:
        """Have a player seen at a house."""
        if visitor != house:
            self.visits.append(Visit(visitor, house))

    def swap(self, one: int, other: int) -> None:
        """Move two players into each other's houses."""
        self._places[one], self._places[other] = self.place(other), self.place(one)

    def block(self, blocker: int, target: int) -> None:
        """Role-block `target` (step 5); the immune learn of it, and so does their visitor."""
        role = self.role_of(target)
        if role.is_block_immune or not role.when_blocked(self, target, blocker):
            self.note("block resisted", target, by=blocker)
            if role.is_block_immune:
                self.notify(blocker, EventKind.BLOCK_FAILED, target=self.chosen_for(blocker, target))
            self.notify(target, EventKind.BLOCK_RESISTED)
            return
        self.note("blocked", target, by=blocker, was=self.action_of(target))
        self.blocked.add(target)
        self.notify(target, EventKind.BLOCKED)

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
        """Add an attack to those that are judged in the end, as `Attack` describes it.

        Raises LookupError when its cause is none of those of the attacker's role.
        """
        role = self.role_of(attacker)
        if cause not in role.causes:
            raise LookupError(f"{role.name} has no cause of death {cause.name!r}")
        self.attacks.append(Attack(attacker, victim, level, cause, is_direct, reaches_jail, is_bloody, instead))

    def mark_for_good(self, seat: int, mark: str) -> None:
        """Give a player a mark that outlasts the night."""
        player = self.state.players[seat]
        self.put(replace(player, marks=player.marks | {mark}))

    def set_uses(self, seat: int, verb: str, left: int) -> None:
        """Set what is left of a limited ability."""
        player = self.state.players[seat]
        self.put(replace(player, uses={**player.uses, verb: left}))

    def spend(self, action: NightAction) -> None:
        """Count one use of the ability of an action."""
        self.set_uses(action.seat, action.verb, self.state.players[action.seat].uses[action.verb] - 1)

    def put(self, player: Player) -> None:
        """Replace a player."""
        self.state = self.state.with_player(player)
