"""What a role is made of: its card, its attributes, its abilities and its hooks.

A role is one value of type `Role`. The prompt, the parser, the night, the record and the scripted players read all
they know of it from that value, so a new role changes no other file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.game.events import EventKind, Events, private, team_event
from mac_runner.environments.town_of_salem.game.state import (
    TEAMS,
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Options,
    Phase,
    Player,
)
from mac_runner.environments.town_of_salem.night.state import Level, NightState, Step
from mac_runner.environments.town_of_salem.roles.tactics import Tactic, anybody, never

TOWN_GOAL = "You win with the Town when the Mafia and all who kill for themselves are dead."

DOUSED = "doused"
LASTING_MARKS = frozenset({DOUSED})
"""Marks that others put on a player; they stay through a change of role."""

# What investigations report. Players read these words, and the record is judged by them.
SUSPICIOUS = "suspicious"
NOT_SUSPICIOUS = "not suspicious"
MAFIA_MEMBER = "a member of the mafia"
A_VAMPIRE = "a Vampire"
NOT_A_VAMPIRE = "not a Vampire"
_VISITED_BY = "visited by "


def visited_by(names: Iterable[str]) -> str:
    """The finding that these players came to a house."""
    return f"{_VISITED_BY}{' and '.join(names) or 'nobody'}"


def visitors_in(finding: str) -> list[str] | None:
    """The players that a finding of `visited_by` names; None for another finding."""
    if not finding.startswith(_VISITED_BY):
        return None
    return [name for name in finding.removeprefix(_VISITED_BY).split(" and ") if name != "nobody"]


def with_article(name: str) -> str:
    """A role's name in a sentence: `an Escort`, `a Doctor`."""
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


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


def _seats_in_reach(aims: Aims | None, state: GameState, player: Player) -> tuple[int, ...] | None:
    """The seats an available ability may be aimed at: () without a target, None when no seat is in reach."""
    return () if aims is None else aims(state, player) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightAbility:
    """Something a role may choose to do at night."""

    verb: str
    help: str
    """What it does, as the list of acts puts it."""
    step: Step
    effect: Callable[[NightState, NightAction], None]
    """What happens at `step`."""
    aims: Aims | None = None
    """None: it has no target."""
    second_aims: Aims | None = None
    """Makes it an ability with two targets."""
    takes_text: bool = False
    uses: Uses = None
    is_spent_by_use: bool = True
    """False: its effect counts the uses itself."""
    first_night: int = 1
    is_visit: bool = True
    """Whether its player is seen at the target's house."""
    visited: int = 0
    """Which of its targets is visited."""
    is_moved: bool = True
    """False: a swap of houses does not lead it elsewhere."""
    reaches_jail: bool = False
    under_control: Callable[[int, int], NightAction | None] | None = None
    """The action of a controlled seat aimed at another; None: as the shape of the ability suggests."""
    is_offered: Callable[[GameState, Player], bool] = _is_alive
    """When it may be chosen; in any case it takes a player at large with uses left."""
    orders: Callable[[NightState], None] | None = None
    """Runs before visits are settled; may give a team's action to another member."""
    tactic: Tactic = anybody
    """How scripted players use it."""
    is_kill: bool = False
    """Whether scripted players leave alone the players who survived it."""
    account: str = ""
    """What scripted players tell of its use, after `last night`: `I watched over {target}`; "": they keep it secret."""
    becomes: str = ""
    """Why its player changes roles by it, for the record."""

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """The seats it may be aimed at now (() for an ability without a target); None when not available."""
        is_available = (
            state.phase is Phase.NIGHT
            and state.prisoner != player.seat
            and self.is_ready(state, player)
            and self.is_offered(state, player)
            and (self.second_aims is None or self.second_aims(state, player))
        )
        return _seats_in_reach(self.aims, state, player) if is_available else None

    def is_ready(self, state: GameState, player: Player) -> bool:
        """Whether its first night has come and a use is left."""
        return state.day >= self.first_night and player.uses.get(self.verb, 1) > 0

    def controlled(self, state: GameState, player: Player, victim: int) -> NightAction | None:
        """The action of a player who is made to aim it at `victim`; None when it cannot be aimed."""
        if not (self.is_ready(state, player) and self.is_offered(state, player)):
            return None
        if self.under_control is not None:
            return self.under_control(player.seat, victim)
        if self.aims is None or self.second_aims is not None or not self.is_visit:
            return None
        return NightAction(seat=player.seat, verb=self.verb, targets=(victim,))


@dataclass(frozen=True, slots=True, kw_only=True)
class DayAbility:
    """Something a role may do by day in place of speaking."""

    verb: str
    help: str
    effect: Callable[[GameState, Player, tuple[int, ...]], Changed]
    aims: Aims | None = None
    second_aims: None = None
    takes_text: bool = False
    is_offered: Callable[[GameState, Player], bool] = _is_alive
    uses: Uses = None
    tactic: Tactic = never

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """As `NightAbility.offer`, for the phases in which the town talks freely."""
        is_available = (
            state.phase in (Phase.GREETING, Phase.BIDDING, Phase.DISCUSSION, Phase.VOTING)
            and player.uses.get(self.verb, 1) > 0
            and self.is_offered(state, player)
        )
        return _seats_in_reach(self.aims, state, player) if is_available else None


Ability: TypeAlias = NightAbility | DayAbility


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
    is_raisable: bool = False
    """Whether its dead can use their ability once more."""
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
    is_healable: Callable[[Player], bool] = lambda player: True
    may_whisper: Callable[[Player], bool] = lambda player: True
    abilities: tuple[Ability, ...] = ()
    causes: tuple[DeathCause, ...] = ()
    """What its victims die of."""

    # Changes of role and the end of the game.
    may_become: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
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
    by_night: Callable[[NightState, int], None] = lambda night, seat: None
    """At the start of every night, for the dead too."""
    when_blocked: Callable[[NightState, int, int], bool] = lambda night, seat, blocker: True
    """When `blocker` blocks `seat`; False: the block does not hold."""
    when_attacked: Callable[[NightState, int], None] = lambda night, seat: None
    has_won: Callable[[GameState, Player], bool] = lambda state, player: player.has_met_goal
    """At the end, apart from the group."""

    id: str = field(init=False)
    """The role's name in YAML, state and transcripts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.name.lower())

    def card_text(self, roles: Collection[Role], options: Options) -> str:
        """What players read about it in a game with these roles and rules."""
        return self.card(roles, options) if callable(self.card) else self.card

    def night_ability(self, verb: str) -> NightAbility:
        """The night ability of that verb. Raises LookupError when the role has none."""
        for ability in self.abilities:
            if isinstance(ability, NightAbility) and ability.verb == verb:
                return ability
        raise LookupError(f"{self.name} has no night ability {verb!r}")

    def starting_uses(self, options: Options) -> dict[str, int]:
        """Full charges of the limited abilities, by verb."""
        return {
            ability.verb: ability.uses(options) if callable(ability.uses) else ability.uses
            for ability in self.abilities
            if ability.uses is not None
        }


def everybody(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player, oneself included."""
    return state.living_seats


def others(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player but oneself."""
    return tuple(seat for seat in state.living_seats if seat != player.seat)


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


def join_team(night: NightState, player: Player) -> None:
    """Make a new member of a team and its other members known to each other."""
    if player.faction not in TEAMS:
        return
    team = [other for other in night.state.players if other.faction is player.faction and other.alive]
    members = [other.seat for other in team if other.seat != player.seat]
    if members:
        role = night.role_of(player.seat).name
        night.announce(private(night.state, EventKind.TEAM_JOINED, members, player=player.name, role=role))
        night.announce(team_event(night.state, team, (player.seat,)))
