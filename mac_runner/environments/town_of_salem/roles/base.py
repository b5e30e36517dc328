"""What a role is made of, and the night its abilities act in.

A role is one value, `ROLE`, in one file of this package: its card, its attributes, its abilities with what they do,
and hooks for what others do to it. The catalogue finds it there. The table of acts, the prompt, the parser, the night
and the scripted players read it from the catalogue: adding a role is adding a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from random import Random
from typing import NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.events import Event, EventKind, Events, private
from mac_runner.environments.town_of_salem.roles.tactics import Aim, Bot, Choice, anybody
from mac_runner.environments.town_of_salem.state import DeathCause, Deed, Faction, GameState, Options, Phase, Player
from mac_runner.types import JsonValue


class Alignment(StrEnum):
    """What kind of work a role does for its faction."""

    TOWN_INVESTIGATIVE = "town investigative"
    TOWN_PROTECTIVE = "town protective"
    TOWN_KILLING = "town killing"
    TOWN_SUPPORT = "town support"
    MAFIA_KILLING = "mafia killing"
    MAFIA_DECEPTION = "mafia deception"
    MAFIA_SUPPORT = "mafia support"
    NEUTRAL_BENIGN = "neutral benign"
    NEUTRAL_EVIL = "neutral evil"
    NEUTRAL_KILLING = "neutral killing"
    NEUTRAL_CHAOS = "neutral chaos"


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


DOUSED = "doused"
LASTING = frozenset({DOUSED})
"""Marks put on a player by others, which stay through a change of role."""


def with_article(name: str) -> str:
    """A role's name in a sentence: `an Escort`, `a Doctor`."""
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


class Changed(NamedTuple):
    """A new state and what happened on the way there."""

    state: GameState
    events: Events = ()


def joined(*changes: Changed) -> Changed:
    """Changes made one after another as one: the last state, and the events of all in order."""
    return Changed(changes[-1].state, tuple(event for change in changes for event in change.events))


Aims: TypeAlias = "Callable[[GameState, Player], tuple[int, ...]]"
Uses: TypeAlias = "int | Callable[[Options], int] | None"
"""How often an ability may be used in a game, by the rules of the game where they say; None for always."""


def _seats_in_reach(aims: Aims | None, state: GameState, player: Player) -> tuple[int, ...] | None:
    """The seats an available ability may be aimed at; none for one without a target, None when nobody is in reach."""
    return () if aims is None else aims(state, player) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightAbility:
    """Something a role may choose to do at night.

    `aims` gives the seats it may be aimed at; None makes it an ability without a target. `second_aims` makes it one
    with two, of which number `visited` is whose house is gone to; an ability that is not moved
    goes there whatever a Transporter did. `orders` runs before visits are settled and may
    re-address deeds; `effect` runs at `step`. `is_offered` says when it may be chosen, beyond what holds for all: the
    player lives, is not jailed, and has uses left. An ability that is not spent by use counts its uses itself.
    `under_control` makes the deed of one whom a Witch aims at somebody; None: by the shape of the ability.
    """

    verb: str
    help: str
    step: Step
    effect: Callable[[NightState, Deed], None]
    aims: Aims | None = None
    second_aims: Aims | None = None
    takes_text: bool = False
    uses: Uses = None
    is_spent_by_use: bool = True
    first_night: int = 1
    is_visit: bool = True
    visited: int = 0
    is_moved: bool = True
    reaches_jail: bool = False
    under_control: Callable[[int, int], Deed | None] | None = None
    is_offered: Callable[[GameState, Player], bool] = lambda state, player: player.alive
    orders: Callable[[NightState], None] | None = None
    tactic: Callable[[Bot, Choice], Aim | None] = anybody
    """How scripted players use it."""

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """The seats it may be aimed at now (none for an ability without a target); None when not available."""
        is_available = (
            state.phase is Phase.NIGHT
            and state.prisoner != player.seat
            and self.is_ready(state, player)
            and self.is_offered(state, player)
            and (self.second_aims is None or self.second_aims(state, player))
        )
        return _seats_in_reach(self.aims, state, player) if is_available else None

    def is_ready(self, state: GameState, player: Player) -> bool:
        """Whether the night has come for it and there is a use left."""
        return state.day >= self.first_night and player.uses.get(self.verb, 1) > 0

    def controlled(self, state: GameState, player: Player, victim: int) -> Deed | None:
        """The deed of a player who is made to aim it at `victim`; None when it cannot be aimed."""
        if not (self.is_ready(state, player) and self.is_offered(state, player)):
            return None
        if self.under_control is not None:
            return self.under_control(player.seat, victim)
        if self.aims is None or self.second_aims is not None or not self.is_visit:
            return None
        return Deed(seat=player.seat, verb=self.verb, targets=(victim,))


@dataclass(frozen=True, slots=True, kw_only=True)
class DayAbility:
    """Something a role may do by day in place of speaking."""

    verb: str
    help: str
    effect: Callable[[GameState, Player, tuple[int, ...]], Changed]
    aims: Aims | None = None
    second_aims: None = None
    takes_text: bool = False
    is_offered: Callable[[GameState, Player], bool] = lambda state, player: player.alive
    uses: Uses = None

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """As NightAbility.offer, for the phases of the day in which people talk freely."""
        is_available = (
            state.phase in (Phase.GREETING, Phase.BIDDING, Phase.DISCUSSION, Phase.VOTING)
            and player.uses.get(self.verb, 1) > 0
            and self.is_offered(state, player)
        )
        return _seats_in_reach(self.aims, state, player) if is_available else None


Ability: TypeAlias = NightAbility | DayAbility


def _keeps_player(state: GameState, player: Player) -> Player:
    return player


def _changes_nothing(state: GameState, player: Player) -> Changed:
    return Changed(state)


def _goal_is_met(state: GameState, player: Player) -> bool:
    return player.has_met_goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role. `group` is what wins together (None: only a goal of its own); attributes as in rules, section 3.

    Hooks, each a function that does nothing unless the role says otherwise:
    `deal` when the role is given, `after_deaths` when deaths were announced, `when_lynched`, `by_night` at the start of
    every night for the dead too, `when_blocked` (seat, blocker; False: the block does not hold), `when_attacked`,
    `has_won` at the end apart from the group. `suspicious_when`, `defence_now`, `votes`, `is_healable` and
    `may_whisper` are for roles of whom this changes; `may_become` names roles that players of this one can turn into.
    """

    name: str
    faction: Faction
    alignment: Alignment
    card: str | Callable[[], str]
    """What players read about it; a function where the text depends on the other roles."""
    goal: str
    group: str | None
    investigator_group: int
    """The number of the Investigator's list that names it; a number of one's own makes a list of one's own."""
    investigator_place: int = 99
    """Its place in that list; roles with the same place follow by name."""
    defence: Level = Level.NONE
    attack: Level = Level.NONE
    is_unique: bool = False
    is_block_immune: bool = False
    is_control_immune: bool = False
    is_detection_immune: bool = False
    is_convertible: bool = False
    is_raisable: bool = False
    is_defence_secret: bool = False
    leaves_notes: bool = False
    talks_with_dead: bool = False
    hunts_vampires: bool = False
    reads_whispers: Callable[[Options], bool] = lambda options: False
    overhears: Callable[[Options], Faction | None] = lambda options: None
    is_hostile_to_town: bool = False
    minds_the_moon: bool = False
    holds_out: Callable[[Player], bool] = lambda player: False
    may_become: tuple[str, ...] = ()
    abilities: tuple[Ability, ...] = ()
    causes: tuple[DeathCause, ...] = ()
    """What others die of by its hand."""
    short_names: tuple[str, ...] = ()
    """Words of players for it besides its name: `doc`; those all in capitals, such as `GF`, count as such only."""
    is_classic: bool = True
    """Whether the slots of the classic lobby that are filled by lot may hold it."""
    outlasts: Callable[[Role], bool] = lambda other: False
    """Whether it wins when a player of such a role is the only other one alive."""
    yields_to: Callable[[Player, Role], bool] = lambda player, other: False
    """Whether its player loses when a player of such a role is the only other one alive."""
    worth: float = 1.0
    """How much the Town would miss it, and killers want it dead, against 1 for most; for scripted players."""
    is_informed: bool = False
    """Whether its word about others has a source; for scripted players."""
    kills_jailors: bool = False
    """Whether it kills a Jailor who jails and does not execute it."""
    shoots_visitors: bool = False
    """Whether scripted players of the Town keep away from those who claim it."""
    kills_blockers: bool = False
    """Whether it may turn on those who block it."""
    deal: Callable[[GameState, Player], Player] = _keeps_player
    after_deaths: Callable[[GameState, Player], Changed] = _changes_nothing
    when_lynched: Callable[[GameState, Player], Changed] = _changes_nothing
    by_night: Callable[[NightState, int], None] = lambda night, seat: None
    when_blocked: Callable[[NightState, int, int], bool] = lambda night, seat, blocker: True
    when_attacked: Callable[[NightState, int], None] = lambda night, seat: None
    suspicious_when: Callable[[GameState], bool] | None = None
    defence_now: Callable[[Player], Level] | None = None
    votes: Callable[[Player], int] = lambda player: 1
    is_healable: Callable[[Player], bool] = lambda player: True
    may_whisper: Callable[[Player], bool] = lambda player: True
    has_won: Callable[[GameState, Player], bool] = _goal_is_met
    id: str = field(init=False)
    """The role's name in YAML, state and transcripts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.name.lower())

    @property
    def card_text(self) -> str:
        """What players read about it."""
        return self.card() if callable(self.card) else self.card

    def starting_uses(self, options: Options) -> dict[str, int]:
        """Full charges of the limited abilities, by verb."""
        return {
            ability.verb: ability.uses(options) if callable(ability.uses) else ability.uses
            for ability in self.abilities
            if ability.uses is not None
        }


def others(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player but oneself."""
    return tuple(other.seat for other in state.living if other.seat != player.seat)


def become(state: GameState, player: Player, role: Role) -> Player:
    """The same player in another role, with its full charges and nothing left of the old one but what others did."""
    return replace(
        player,
        role=role.id,
        faction=role.faction,
        uses=role.starting_uses(state.options),
        marks=player.marks & LASTING,
        quarry=None,
        became_on=state.day,
    )


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
        for ability in self.role_of(deed.seat).abilities:
            if isinstance(ability, NightAbility) and ability.verb == deed.verb:
                return ability
        raise LookupError(f"{self.role_of(deed.seat).name} has no night ability {deed.verb!r}")

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
