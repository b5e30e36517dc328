"""The state of a game: frozen data, and the questions that all rules ask of it.

A game moves in rounds. `order` lists the seats asked in the open round, `acted` those that have answered. In a
sequential round they answer one after another, in a simultaneous one (`GameState.is_simultaneous`) on the same view.
Under information lag each turn of a discussion is a round. `round` numbers all rounds of the game from 0.

Transcripts hold a digest of these objects, so the names of their fields are part of the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from mac_runner.environments.town_of_salem.settings import TOOLS_DEFAULT, GameCalendar, GameFlags, ToolName
from mac_runner.section import Listed
from mac_runner.types import stable_hash


class Phase(StrEnum):
    """Where in its calendar a game is."""

    GREETING = "greeting"
    BIDDING = "bidding"
    DISCUSSION = "discussion"
    VOTING = "voting"
    DEFENCE = "defence"
    JUDGEMENT = "judgement"
    LAST_WORDS = "last words"
    NIGHT_CHAT = "night chat"
    NIGHT = "night"
    OVER = "over"

    @property
    def is_simultaneous(self) -> bool:
        """Whether all seats answer on the same view."""
        return self in (Phase.BIDDING, Phase.JUDGEMENT, Phase.NIGHT_CHAT, Phase.NIGHT)

    @property
    def is_night(self) -> bool:
        """Whether the town sleeps."""
        return self in (Phase.NIGHT_CHAT, Phase.NIGHT)


class Faction(StrEnum):
    """The side a role plays for."""

    TOWN = "town"
    MAFIA = "mafia"
    NEUTRAL = "neutral"
    VAMPIRE = "vampire"


TEAMS = (Faction.MAFIA, Faction.VAMPIRE)
"""Factions whose members know each other and talk at night."""


class Ballot(StrEnum):
    """A judge's opinion of the accused."""

    GUILTY = "guilty"
    INNOCENT = "innocent"
    ABSTAIN = "abstain"


class Options(GameFlags, GameCalendar):
    """The rules of this game: flags and calendar of the experiment, and what else players meet of its settings."""

    edition: int = 3
    notes: bool = True
    tools: Listed[ToolName] = TOOLS_DEFAULT
    shuffle_options: bool = False


@dataclass(frozen=True, slots=True)
class DeathCause:
    """What a player can die of."""

    name: str
    """In states, events and transcripts."""
    line: str
    """How the announcement of the death puts it: `Abel died, <line>.`"""
    guard_order: int = 10
    """Bodyguards meet attackers with a lower number first."""
    is_visible: bool = False
    """Whether the killer visits, so that the only visitor of a house with such a death is the killer."""


LYNCH = DeathCause("lynch", "lynched by the Town")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """When and of what a player died, and what is shown of them."""

    day: int
    at_night: bool
    causes: tuple[str, ...]
    """By name."""
    notes: tuple[str, ...] = ()
    is_cleaned: bool = False
    """Whether role, will and notes stay hidden."""
    is_bloody: bool = False
    """Whether the will cannot be read."""
    posed_as: str | None = None
    """The role id shown in place of the true one."""
    forged_will: str | None = None
    """The will shown in place of the true one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One seat."""

    seat: int
    name: str
    role: str
    """The id of the role held now."""
    dealt: str
    """The id of the role dealt."""
    faction: Faction
    uses: Mapping[str, int] = field(default_factory=dict)
    """What is left of limited abilities, by verb."""
    marks: frozenset[str] = frozenset()
    """Lasting effects, named in the files of roles."""
    quarry: int | None = None
    """The seat that this player wants lynched, for roles with a target."""
    became_on: int = 0
    """The day of the night of the last change of role; 0 for none."""
    is_blackmailed: bool = False
    has_met_goal: bool = False
    will: str = ""
    death_note: str = ""
    notes: str = ""
    death: Death | None = None

    @property
    def alive(self) -> bool:
        """Whether the player lives."""
        return self.death is None

    def with_uses(self, verb: str, left: int) -> Player:
        """The same player with so many uses left of a limited ability."""
        return replace(self, uses={**self.uses, verb: left})

    @property
    def shown_role(self) -> str | None:
        """The role id shown when the player died; None while alive and for a cleaned body."""
        if self.death is None or self.death.is_cleaned:
            return None
        return self.death.posed_as or self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class NightAction:
    """What a seat chose to do this night: an ability's verb, its targets, and words if it takes any."""

    seat: int
    verb: str
    targets: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Haunting:
    """What a lynched player may take tonight: one of `candidates`, or without a choice one of `drawn_from`."""

    seat: int
    candidates: tuple[int, ...]
    drawn_from: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seance:
    """The one talk of a dead player with a living one, in the coming night."""

    medium: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a game ended. `winners` are winning groups; `ending` is win, draw or capped."""

    ending: str
    reason: str
    winners: tuple[str, ...] = ()


# Without slots, for the sake of `_with`.
@dataclass(frozen=True, kw_only=True)
class GameState:
    """A whole game at one moment."""

    seed: int
    options: Options
    lobby: tuple[str, ...]
    players: tuple[Player, ...]
    speak_after: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """The seats that each seat speaks after within a round."""
    day: int = 1
    phase: Phase = Phase.GREETING
    round: int = 0
    round_in_phase: int = 1
    order: tuple[int, ...] = ()
    acted: frozenset[int] = frozenset()
    is_silent: bool = True
    """Whether all have waited so far in this round."""
    turns_left: Mapping[int, int] = field(default_factory=dict)
    """By seat, under information lag."""
    bids: Mapping[int, int] = field(default_factory=dict)
    floors_left: int = 0
    named: frozenset[int] = frozenset()
    """The seats that the last words named, where the floor is bid for."""
    votes: Mapping[int, int] = field(default_factory=dict)
    vote_rounds_left: int = 0
    trials: int = 0
    accused: int | None = None
    ballots: Mapping[int, Ballot] = field(default_factory=dict)
    jail_choice: int | None = None
    """The seat that `keeper` will hold in the coming night."""
    keeper: int | None = None
    prisoner: int | None = None
    """The seat that `keeper` holds in this night."""
    seance: Seance | None = None
    deeds: tuple[NightAction, ...] = ()
    hauntings: tuple[Haunting, ...] = ()
    had_change: bool = False
    """Whether a player died since the last dawn."""
    quiet_cycles: int = 0
    """The days and nights in a row without a change."""
    result: Result | None = None

    @property
    def living(self) -> tuple[Player, ...]:
        """Living players in seat order."""
        return tuple([player for player in self.players if player.death is None])

    @property
    def living_seats(self) -> tuple[int, ...]:
        """Seats of the living, in order."""
        return tuple([player.seat for player in self.players if player.death is None])

    @property
    def is_full_moon(self) -> bool:
        """Whether the moon is full in this night: in every second one, from the second on."""
        return self.day % 2 == 0

    @property
    def is_lagged(self) -> bool:
        """Whether the seats queue for speaking slots: each turn is a round that any of them may take."""
        return self.phase is Phase.DISCUSSION and self.options.discussion_mode == "information_lag"

    @property
    def is_simultaneous(self) -> bool:
        """Whether all seats of this round answer on the same view."""
        is_talk = self.phase is Phase.DISCUSSION and self.options.discussion_mode == "simultaneous"
        return is_talk or self.phase.is_simultaneous

    @property
    def due(self) -> tuple[int, ...]:
        """Seats of this round that have not answered, in order."""
        if self.is_lagged and self.acted:
            return ()
        return tuple(seat for seat in self.order if seat not in self.acted)

    def has_answered(self, seat: int) -> bool:
        """Whether a seat of this round is not due any more."""
        return bool(self.acted) if self.is_lagged else seat in self.acted

    def answered(self, seat: int, *, is_silent: bool) -> GameState:
        """The same state with one seat having answered, and with whether all have waited so far."""
        return self._with(acted=self.acted | {seat}, is_silent=is_silent)

    @property
    def votes_needed(self) -> int:
        """Votes on one player that start a trial: more than half of the living heads (rules, section 5.1)."""
        return len(self.living) // 2 + 1

    def round_of(self, seat: int) -> int:
        """The number of this round in its phase; under information lag, that of the seat's own turn."""
        if self.is_lagged and seat in self.turns_left:
            return self.options.discussion_rounds - self.turns_left[seat] + 1
        return self.round_in_phase

    def with_player(self, player: Player) -> GameState:
        """The same state with one seat replaced."""
        players = (*self.players[: player.seat], player, *self.players[player.seat + 1 :])
        return self._with(players=players)

    def _with(self, **fields: object) -> GameState:
        # As `replace`, in a tenth of the time: most acts of all games come through here.
        state = object.__new__(GameState)
        state.__dict__.update(self.__dict__, **fields)
        return state

    def chance(self, *purpose: str | int) -> Random:
        """The generator for one random decision of this game, named by its purpose.

        Keyed by purpose rather than drawn from one stream, so that adding a random decision moves no other one.
        """
        return Random(stable_hash(self.seed, *purpose))  # noqa: S311 - a game, not a secret


def holder(state: GameState, role: str) -> Player | None:
    """The living player of a unique role, if there is one."""
    return next((player for player in state.players if player.alive and player.role == role), None)
