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
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Phase, Player

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


class Level(IntEnum):
    """Strength of an attack or a defence: a victim dies iff the attack is the stronger (rules, section 1)."""

    NONE = 0
    BASIC = 1
    POWERFUL = 2
    UNSTOPPABLE = 3


class Step(IntEnum):
    """When in a night an ability takes effect (rules, section 6)."""

    PREPARE = 2
    BLOCK = 5
    PROTECT = 6
    INVESTIGATE = 7
    ATTACK = 8


class Changed(NamedTuple):
    """A new state and what happened on the way there."""

    state: GameState
    events: Events = ()


Aims: TypeAlias = "Callable[[GameState, Player], tuple[int, ...]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NightAbility:
    """Something a role may choose to do at night.

    `aims` gives the seats it may be aimed at; None makes it an ability without a target. `orders` runs before visits
    are settled and may re-address deeds; `effect` runs at `step`. `is_offered` says when it may be chosen, beyond what
    holds for all: the player lives, is not jailed, and has uses left.
    """

    verb: str
    help: str
    step: Step
    effect: Callable[[Night, Deed], None]
    aims: Aims | None = None
    uses: int | None = None
    first_night: int = 1
    is_visit: bool = True
    is_offered: Callable[[GameState, Player], bool] = lambda state, player: player.alive
    orders: Callable[[Night], None] | None = None

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """The seats it may be aimed at now (none for an ability without a target); None when not available."""
        is_available = (
            state.phase is Phase.NIGHT
            and state.day >= self.first_night
            and state.prisoner != player.seat
            and player.uses.get(self.verb, 1) > 0
            and self.is_offered(state, player)
        )
        if not is_available:
            return None
        if self.aims is None:
            return ()
        return self.aims(state, player) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayAbility:
    """Something a role may do by day in place of speaking."""

    verb: str
    help: str
    effect: Callable[[GameState, Player, tuple[int, ...]], Changed]
    aims: Aims | None = None
    is_offered: Callable[[GameState, Player], bool] = lambda state, player: player.alive
    uses: int | None = None

    def offer(self, state: GameState, player: Player) -> tuple[int, ...] | None:
        """As NightAbility.offer, for the phases of the day in which people talk freely."""
        is_available = (
            state.phase in (Phase.GREETING, Phase.BIDDING, Phase.DISCUSSION, Phase.VOTING)
            and player.uses.get(self.verb, 1) > 0
            and self.is_offered(state, player)
        )
        if not is_available:
            return None
        if self.aims is None:
            return ()
        return self.aims(state, player) or None


Ability: TypeAlias = NightAbility | DayAbility


def _keeps_player(state: GameState, player: Player) -> Player:
    return player


def _changes_nothing(state: GameState, player: Player) -> Changed:
    return Changed(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role. `group` is what wins together (None: only a goal of its own); attributes as in rules, section 3."""

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
    is_detection_immune: bool = False
    abilities: tuple[Ability, ...] = ()
    deal: Callable[[GameState, Player], Player] = _keeps_player
    after_deaths: Callable[[GameState, Player], Changed] = _changes_nothing
    when_lynched: Callable[[GameState, Player], Changed] = _changes_nothing
    by_night: Callable[[Night, int], None] = field(default=lambda night, seat: None)

    @property
    def id(self) -> str:
        """The role's name in YAML, state and transcripts."""
        return self.name.lower()

    def starting_uses(self) -> dict[str, int]:
        """Full charges of the limited abilities, by verb."""
        return {ability.verb: ability.uses for ability in self.abilities if ability.uses is not None}


def others(state: GameState, player: Player) -> tuple[int, ...]:
    """Every living player but oneself."""
    return tuple(other.seat for other in state.living if other.seat != player.seat)


def become(player: Player, role: Role) -> Player:
    """The same player in another role, with its full charges and nothing left of the old one but lasting marks."""
    return replace(player, role=role.id, faction=role.faction, uses=role.starting_uses(), quarry=None)
