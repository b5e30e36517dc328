"""FIXME What a role is made of, and the night its abilities act in.

A role is one value, `ROLE`, in one file of this package: its card, its attributes, its abilities with what they do,
and hooks for what others do to it. The catalogue finds it there. The table of acts, the prompt, the parser, the night
and the scripted players read it from the catalogue: adding a role is adding a file.

Teams whose members know each other: what happens when somebody joins one in mid-game.

What the members of the Town share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.game.events import EventKind, Events, private, team_event
from mac_runner.environments.town_of_salem.game.state import (
    TEAMS,
    DeathCause,
    Deed,
    Faction,
    GameState,
    Options,
    Phase,
    Player,
)
from mac_runner.environments.town_of_salem.night.state import Level, NightState, Step
from mac_runner.environments.town_of_salem.roles.tactics import Aim, Bot, Choice, anybody


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


def join_team(night: NightState, player: Player) -> None:
    """Make a new member and the others of the team known to each other."""
    if player.faction not in TEAMS:
        return
    team = [other for other in night.state.players if other.faction is player.faction and other.alive]
    others = [other.seat for other in team if other.seat != player.seat]
    if others:
        role = night.role_of(player.seat).name
        night.announce(private(night.state, EventKind.TEAM_JOINED, others, player=player.name, role=role))
        night.announce(team_event(night.state, team, (player.seat,)))


TOWN_GOAL = "Win with the Town: see dead every member of the Mafia and whoever else kills for themselves."
