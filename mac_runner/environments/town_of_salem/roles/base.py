"""What a role is made of.

A role is one value, `ROLE`, in one file of this package: its card, its attributes, its abilities with what they
do, and the hooks through which it reacts to what others do. The catalogue finds it there, and the table of acts, the
prompt, the parser and the night read it from the catalogue: adding a role is adding a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.events import Events
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Options, Phase, Player

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night


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
    effect: Callable[[Night, Deed], None]
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
    orders: Callable[[Night], None] | None = None

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
    card: str
    goal: str
    group: str | None
    investigator_group: int
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
    deal: Callable[[GameState, Player], Player] = _keeps_player
    after_deaths: Callable[[GameState, Player], Changed] = _changes_nothing
    when_lynched: Callable[[GameState, Player], Changed] = _changes_nothing
    by_night: Callable[[Night, int], None] = lambda night, seat: None
    when_blocked: Callable[[Night, int, int], bool] = lambda night, seat, blocker: True
    when_attacked: Callable[[Night, int], None] = lambda night, seat: None
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
