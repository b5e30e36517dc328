"""What a role is made of: its card, its attributes, its abilities and its hooks; and the night in which it acts.

A role is one value of type `Role`. The prompt, the parser, the night, the record and the scripted players read all
they know of it from that value, so a new role changes no other file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import partial
from random import Random
from typing import ClassVar, NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.model.events import (
    BLOCK_FAILED,
    BLOCK_RESISTED,
    BLOCKED,
    RESULT,
    AnyKind,
    Event,
    EventKind,
    Events,
    Notice,
    private,
)
from mac_runner.environments.town_of_salem.model.state import (
    TEAMS,
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Options,
    Phase,
    Player,
)
from mac_runner.types import JsonValue

TOWN_GOAL = "You win with the Town when the Mafia and all who kill for themselves are dead."

DOUSED = "doused"
LASTING_MARKS = frozenset({DOUSED})
"""Marks that others put on a player; they stay through a change of role."""


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

    DUSK = 0
    TRANSPORT = 1
    PREPARE = 2
    CONTROL = 3
    BLOCK = 5
    PROTECT = 6
    INVESTIGATE = 7
    ATTACK = 8
    BURY = 11
    REPORT = 12


class Changed(NamedTuple):
    """A new state and the events that led to it."""

    state: GameState
    events: Events = ()


def joined(*changes: Changed) -> Changed:
    """Consecutive changes as one: the last state, and the events of all in order."""
    return Changed(changes[-1].state, tuple(event for change in changes for event in change.events))


Aims: TypeAlias = "Callable[[GameState, Player], tuple[int, ...]]"
"""The seats that a player may aim an ability at."""
Uses: TypeAlias = "int | Callable[[Options], int] | None"
"""How often an ability may be used in a game, where need be by the game's options; None: without limit."""


def _is_alive(state: GameState, player: Player) -> bool:
    return player.alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Something a role may choose to do."""

    phases: ClassVar[tuple[Phase, ...]]

    verb: str
    help: str
    """What it does, as the list of acts puts it."""
    aims: Aims | None = None
    """None: it has no target."""
    second_aims: Aims | None = None
    """Makes it an ability with two targets."""
    takes_text: bool = False
    uses: Uses = None
    first_night: int = 1
    is_offered: Callable[[GameState, Player], bool] = _is_alive
    """When it may be chosen; in any case it takes a player at large with uses left."""
    tactic: str = "anybody"
    """How scripted players use it: the name of a function of `bots/tactics.py`, or of one of your own."""

    def is_ready(self, state: GameState, player: Player) -> bool:
        """Whether its first night has come and a use is left."""
        return state.day >= self.first_night and player.uses.get(self.verb, 1) > 0

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """The seats it may be aimed at now (() for an ability without a target); None when not available."""
        is_available = (
            state.phase in self.phases
            and state.prisoner != player.seat
            and self.is_ready(state, player)
            and self.is_offered(state, player)
            and (self.second_aims is None or self.second_aims(state, player))
        )
        if not is_available:
            return None
        return () if self.aims is None else self.aims(state, player) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayAbility(Ability):
    """Something a role may do in place of speaking, in the phases in which the town talks freely."""

    phases: ClassVar = (Phase.GREETING, Phase.BIDDING, Phase.DISCUSSION, Phase.VOTING)

    effect: Callable[[GameState, Player, tuple[int, ...]], Changed]
    tactic: str = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightAbility(Ability):
    """Something a role may choose to do at night."""

    phases: ClassVar = (Phase.NIGHT,)

    step: Step
    effect: Callable[[NightState, NightAction], None]
    """What happens at `step`."""
    is_spent_by_use: bool = True
    """False: its effect counts the uses itself."""
    is_visit: bool = True
    """Whether its player is seen at the target's house, if it has a target."""
    visited: int = 0
    """Which of its targets is visited."""
    is_moved: bool = True
    """False: a swap of houses does not lead it elsewhere."""
    reaches_jail: bool = False
    under_control: Callable[[int, int], NightAction | None] | None = None
    """The action of a controlled seat aimed at another; None: as the shape of the ability suggests."""
    is_forced_on_self: bool = True
    """False: whoever controls its player cannot have them use it on themselves."""
    orders: Callable[[NightState], None] | None = None
    """Runs before visits are settled; may give a team's action to another member."""
    protects: bool = False
    """Whether it keeps its target from harm."""
    examines: bool = False
    """Whether it finds out on which side its target is."""
    is_kill: bool = False
    """Whether scripted players leave alone the players who survived it."""
    account: str = ""
    """What scripted players tell of its use, after `last night`: `I watched over {target}`; "": they keep it secret."""
    becomes: str = ""
    """Why its player changes roles by it, for the record."""

    @property
    def visits_one(self) -> bool:
        """Whether it can be turned on any one player: by whoever controls its player, or once more after death."""
        return self.is_visit and self.aims is not None and self.second_aims is None

    def controlled(self, state: GameState, player: Player, victim: int) -> NightAction | None:
        """The action of a player who is made to aim it at `victim`; None when it cannot be aimed."""
        if not (self.is_ready(state, player) and self.is_offered(state, player)):
            return None
        if self.under_control is not None:
            return self.under_control(player.seat, victim)
        if not self.visits_one or (victim == player.seat and not self.is_forced_on_self):
            return None
        return NightAction(seat=player.seat, verb=self.verb, targets=(victim,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role: what players read of it, its attributes (rules, section 3), and hooks that do nothing by default."""

    name: str
    faction: Faction
    alignment: Alignment
    card: str | Callable[[Collection[Role], Options], str]
    """What players read about it, what it does in the first sentence; a function where the text depends on the roles
    in play or the rules of the game."""
    goal: str
    """When its players win, in one sentence to them."""
    group: str | None
    """What wins together; None: it has only a goal of its own."""
    investigator_group: int
    """The number of the Investigator's list that names it; a new number makes a new list."""
    investigator_place: int = 99
    """Its place in that list; roles with the same place follow by name."""
    in_common: str = ""
    """What players read once about all roles of its faction."""
    short_names: tuple[str, ...] = ()
    """Words of players for it besides its name: `doc`; those all in capitals, such as `GF`, count as such only."""
    is_classic: bool = True
    """Whether the random slots of the classic lobby may hold it."""

    # Attributes.
    defence: Level = Level.NONE
    defence_now: Callable[[Player], Level] | None = None
    """The defence of a role whose defence changes in a game."""
    attack: Level = Level.NONE
    is_unique: bool = False
    is_block_immune: bool = False
    is_control_immune: bool = False
    is_detection_immune: bool = False
    is_defence_secret: bool = False
    """Whether its attackers do not learn that its own defence saved it."""
    is_convertible: bool = False
    """Whether a Vampire can turn it though it is not of the Town."""
    is_hostile_to_town: bool = False
    """Whether it needs the Town to lose though it has no group."""
    leaves_notes: bool = False
    talks_with_dead: bool = False
    hunts_vampires: bool = False
    minds_the_moon: bool = False
    """Whether the full moon is announced in games that may hold it."""
    suspicious_when: Callable[[GameState], bool] | None = None
    """When a Sheriff suspects it; None: by faction and immunity."""
    reads_whispers: Callable[[Options], bool] = lambda options: False
    overhears: Callable[[Options], Faction | None] = lambda options: None
    """The team it overhears at night."""
    votes: Callable[[Player], int] = lambda player: 1
    """How much a vote of its player weighs."""
    is_revealed: Callable[[Player], bool] = lambda player: False
    """Whether its player has shown the role to all: from then on they have no whispers and cannot be healed."""
    abilities: tuple[Ability, ...] = ()
    causes: tuple[DeathCause, ...] = ()
    """What its victims die of."""

    # Changes of role and the end of the game.
    may_become: Mapping[str, str] = field(default_factory=dict)
    """Ids of the roles that its players can turn into, and why they do, for the record."""
    turns_others: str = ""
    """Why players of other roles turn into it, for the record."""
    holds_out: Callable[[Player], bool] = lambda player: False
    """Whether its player can still fight a role that is hostile to the Town."""
    outlasts: Callable[[Role], bool] = lambda other: False
    """Whether it wins when a player of such a role is the only other one alive."""
    yields_to: Callable[[Player, Role], bool] = lambda player, other: False
    """Whether its player loses when a player of such a role is the only other one alive."""

    # For the statistics.
    is_key: bool = False
    """Whether it is measured how often its players live to the end."""

    # What scripted players make of it.
    worth: float = 1.0
    """How much the Town would miss it, and killers want it dead, against 1 for most."""
    team_rank: int = 0
    """The highest rank of a team says who is killed."""
    finds_suspicion: bool = False
    """Whether `suspicious` and `not suspicious` are its results, also without saying so."""
    is_informed: bool = False
    """Whether its word about others has a source."""
    is_risky_claim: bool = False
    """Whether a liar who claims it is easily found out."""
    hides: bool = False
    """Whether it keeps its role secret, also when all others say theirs."""
    shares_roles: bool = False
    """Whether it lists the roles it found out in its team's chat."""
    bait: str = ""
    """A role to claim in order to be caught lying; for roles that want to be lynched."""
    kills_jailors: bool = False
    """Whether it kills a Jailor who holds it and does not execute it."""
    kills_blockers: bool = False
    """Whether it may turn on those who block it."""
    shoots_visitors: bool = False
    """Whether the Town keeps away from those who claim it."""

    # Hooks.
    deal: Callable[[GameState, Player], Player] = lambda state, player: player
    """When a player is given the role."""
    after_deaths: Callable[[GameState, Player], Changed] = lambda state, player: Changed(state)
    """When deaths were announced."""
    when_lynched: Callable[[GameState, Player], Changed] = lambda state, player: Changed(state)
    by_night: Mapping[Step, Callable[[NightState, int], None]] = field(default_factory=dict)
    """What its player does every night without choosing it, the dead too: by the step after whose acts it comes."""
    when_blocked: Callable[[NightState, int, int], bool] = lambda night, seat, blocker: True
    """When `blocker` blocks `seat`; False: the block does not hold."""
    when_attacked: Callable[[NightState, int], None] = lambda night, seat: None
    has_won: Callable[[GameState, Player], bool] = lambda state, player: player.has_met_goal
    """At the end, apart from the group."""

    id: str = field(init=False)
    """The role's name in YAML, state and transcripts."""
    by_verb: Mapping[str, Ability] = field(init=False, compare=False)
    """Its abilities."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.name.lower())
        object.__setattr__(self, "by_verb", {ability.verb: ability for ability in self.abilities})

    def card_text(self, roles: Collection[Role], options: Options) -> str:
        """What players read about it in a game with these roles and rules."""
        return self.card(roles, options) if callable(self.card) else self.card

    @property
    def night_abilities(self) -> Mapping[str, NightAbility]:
        """What its player may choose to do at night, by verb."""
        return {ability.verb: ability for ability in self.abilities if isinstance(ability, NightAbility)}

    @property
    def is_raisable(self) -> bool:
        """Whether its dead can use their ability once more."""
        return self.faction is Faction.TOWN and any(one.visits_one for one in self.night_abilities.values())

    def starting_uses(self, options: Options) -> dict[str, int]:
        """Full charges of the limited abilities, by verb."""
        return {
            ability.verb: ability.uses(options) if callable(ability.uses) else ability.uses
            for ability in self.abilities
            if ability.uses is not None
        }


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
    """How a player meets one attacker of a house in person."""

    falls_by: DeathCause
    """What the guard dies of."""
    strikes_by: DeathCause
    """What the attacker dies of."""


class Protection(NamedTuple):
    """What a player does to keep those in a house from harm."""

    by: int
    how: str
    """In a word, for the record: `healed`."""
    level: Level = Level.NONE
    """The defence it gives."""
    notice: Notice | None = None
    """What `by` learns when they were attacked."""
    guard: Guard | None = None
    """Where `by` meets an attacker in person."""


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
        self.protections: dict[int, list[Protection]] = defaultdict(list)
        """By house."""
        self.disguises: dict[int, int] = {}
        self.attacks: list[Attack] = []
        self.fatal: dict[int, list[Attack]] = {}
        self.events: list[Event] = []
        """Public ones wait for dawn, after the deaths."""
        self.notes: list[Note] = []
        self.judged: list[Judged] = []
        self.unnoticed: list[tuple[int, Notice]] = []
        self.fulfilled: set[int] = set()
        """The seats whose question was answered, or whose wish came true at the end of the night."""
        self._places: dict[int, int] = {}
        self._listeners: dict[int, list[int]] = defaultdict(list)
        self.plans: dict[Step, list[Callable[[], None]]] = defaultdict(list)
        """What was put off, by step."""
        for player in state.players:
            for step, act in roles[player.role].by_night.items():
                self.later(step, partial(act, self, player.seat))

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
        return self.role_of(action.seat).night_abilities[action.verb]

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

    def notify(self, seat: int, kind: AnyKind, **data: JsonValue) -> None:
        """Let one player know."""
        self.events.append(private(self.state, kind, (seat,), **data))

    def report(self, seat: int, kind: AnyKind, **data: JsonValue) -> None:
        """Let a player know what they found out, and also those who had them do it."""
        self.fulfilled.add(seat)
        for reader in (seat, *self._listeners[seat]):
            self.notify(reader, kind, **data)

    def find(self, action: NightAction, finding: str) -> None:
        """Report what was found about the player that an action is aimed at."""
        self.report(action.seat, RESULT, about=self.name_of(action.targets[0]), finding=finding)

    def listen(self, listener: int, seat: int) -> None:
        """Have `listener` learn tonight what `seat` finds."""
        self._listeners[seat].append(listener)

    def later(self, step: Step, plan: Callable[[], None]) -> None:
        """Do something at a later step, after the actions of that step."""
        self.plans[step].append(plan)

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
            self.notes.append(Note("block resisted", (target,), by=blocker))
            if role.is_block_immune:
                self.notify(blocker, BLOCK_FAILED, target=self.chosen_for(blocker, target))
            self.notify(target, BLOCK_RESISTED)
            return
        self.notes.append(Note("blocked", (target,), by=blocker, was=self.action_of(target)))
        self.blocked.add(target)
        self.notify(target, BLOCKED)

    def protect(self, house: int, protection: Protection) -> None:
        """Keep those in a house from harm tonight."""
        self.protections[house].append(protection)

    def defend(self, seat: int, level: Level) -> None:
        """Give a player a defence for this night."""
        self.defences[seat] = max(level, self.defences.get(seat, Level.NONE))

    def attack(
        self,
        attacker: int,
        victim: int,
        *,
        level: Level | None = None,
        cause: DeathCause | None = None,
        is_direct: bool = True,
        reaches_jail: bool = False,
        is_bloody: bool = False,
        instead: Callable[[], None] | None = None,
    ) -> None:
        """Add an attack to those that are judged in the end, as `Attack` describes it.

        Where they are not given, its level and its cause are those of the attacker's role, of several causes the first.
        Raises LookupError when its cause is none of them.
        """
        role = self.role_of(attacker)
        cause = cause or next(iter(role.causes), None)
        if cause is None or cause not in role.causes:
            raise LookupError(f"{role.name} has no cause of death {cause}")
        level = role.attack if level is None else level
        self.attacks.append(Attack(attacker, victim, level, cause, is_direct, reaches_jail, is_bloody, instead))

    def mark_for_good(self, seat: int, mark: str) -> None:
        """Give a player a mark that outlasts the night."""
        player = self.player(seat)
        self.put(replace(player, marks=player.marks | {mark}))

    def spend(self, action: NightAction) -> None:
        """Count one use of the ability of an action."""
        player = self.player(action.seat)
        self.put(player.with_uses(action.verb, player.uses[action.verb] - 1))

    def put(self, player: Player) -> None:
        """Replace a player."""
        self.state = self.state.with_player(player)


def strike(night: NightState, action: NightAction) -> None:
    """The effect of an ability that attacks whoever is at the house it leads to."""
    night.attack(action.seat, night.house(action))


def everybody(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player, oneself included."""
    return state.living_seats


def others(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player but oneself."""
    return tuple(seat for seat in state.living_seats if seat != player.seat)


def fellows(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living member of one's own faction, oneself included."""
    return tuple(other.seat for other in state.living if other.faction is player.faction)


def outsiders(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player of another faction."""
    return tuple(other.seat for other in state.living if other.faction is not player.faction)


def become(state: GameState, player: Player, role: Role) -> Player:
    """The same player in another role, with its full charges; only marks of others stay."""
    return replace(
        player,
        role=role.id,
        faction=role.faction,
        uses=role.starting_uses(state.options),
        marks=player.marks & LASTING_MARKS,
        quarry=None,
        became_on=state.day,
    )


def converted(state: GameState, player: Player, role: Role) -> Changed:
    """A player in another role, and told so."""
    event = private(state, EventKind.CONVERTED, (player.seat,), role=role.name)
    return Changed(state.with_player(become(state, player, role)), (event,))


def team_event(
    state: GameState, roles: Mapping[str, Role], team: Sequence[Player], seats: Iterable[int] | None = None
) -> Event:
    """An event that lists a team to its members, or to those of them at `seats`."""
    names: dict[str, JsonValue] = {player.name: roles[player.role].name for player in team}
    label = "The Vampires" if team[0].faction is Faction.VAMPIRE else "The Mafia"
    audience = (player.seat for player in team) if seats is None else seats
    return private(state, EventKind.TEAM, audience, team=label, members=names)


def join_team(night: NightState, player: Player) -> None:
    """Make a new member of a team and its other members known to each other."""
    team = [night.player(seat) for seat in fellows(night.state, player)]
    if player.faction in TEAMS and len(team) > 1:
        members = [other.seat for other in team if other.seat != player.seat]
        role = night.role_of(player.seat).name
        night.events.append(private(night.state, EventKind.TEAM_JOINED, members, player=player.name, role=role))
        night.events.append(team_event(night.state, night.roles, team, (player.seat,)))
