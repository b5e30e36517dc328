"""What a seat may know, as data.

`GameLog` keeps the events in order, and the public ones apart from those of each seat. `view_of` is the only place
that turns a game's state into what a player may know. The prompt is that view in words, a scripted player gets the
view itself, and tools answer from it; what is not in the view cannot reach a player.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mac_runner.environments.town_of_salem.game.acts import offers
from mac_runner.environments.town_of_salem.game.events import Event, EventKind, Events
from mac_runner.environments.town_of_salem.game.state import TEAMS, GameState, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.view.narration import line


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An act a seat may choose now, as an `Offer` with names instead of seats."""

    verb: str
    targets: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    takes_speech: bool = False
    """Whether words to all may be said together with it."""

    def combinations(self) -> list[tuple[str, str, str]]:
        """Every way to choose it: first target, second target and choice, "" for what it does not take."""
        return list(product(self.targets or ("",), self.seconds or ("",), self.choices or ("",)))


class GameLog:
    """All that happened, in order, and the lines of each audience; it grows at the end only."""

    def __init__(self, seats: int) -> None:
        self.events: list[Event] = []
        self.public: list[Event] = []
        self.public_lines: list[str] = []
        self.private: list[list[Event]] = [[] for _ in range(seats)]
        self.private_lines: list[list[str]] = [[] for _ in range(seats)]
        self.graveyard: dict[str, str] = {}

    def append(self, events: Events) -> None:
        """Add what happened."""
        for event in events:
            self.events.append(event)
            text = line(event)
            if event.audience is None:
                self.public.append(event)
                self.public_lines.append(text)
                if event.kind is EventKind.DEATH:
                    self.graveyard[event.text("player")] = event.text("role")
                elif event.kind is EventKind.REVIVED:
                    self.graveyard.pop(event.text("player"), None)
                continue
            for seat in sorted(event.audience):
                self.private[seat].append(event)
                self.private_lines[seat].append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatView:
    """Everything one seat may know at one moment, and what it is asked."""

    name: str
    role: Role
    is_alive: bool
    uses: Mapping[str, int]
    quarry: str | None
    team: Mapping[str, str]
    """The living members of its own team, with their roles; empty for a seat without a team."""
    will: str
    death_note: str
    notes: str
    day: int
    phase: Phase
    round_in_phase: int
    players: tuple[str, ...]
    living: tuple[str, ...]
    graveyard: Mapping[str, str]
    """The dead, with the roles shown for them."""
    lobby: tuple[str, ...]
    accused: str | None
    votes: Mapping[str, str]
    votes_needed: int
    public: Sequence[Event]
    private: Sequence[Event]
    public_lines: Sequence[str]
    private_lines: Sequence[str]
    choices: tuple[Choice, ...]
    observations: tuple[str, ...] = ()
    """This turn's answers to tool requests."""


def view_of(state: GameState, log: GameLog, seat: int, observations: tuple[str, ...] = ()) -> SeatView:
    """What `seat` may know now. The view shares the log's lists: read it before the game goes on."""
    player = state.players[seat]
    names = [other.name for other in state.players]
    team = {}
    if player.faction in TEAMS:
        team = {other.name: ROLES[other.role].name for other in state.living if other.faction is player.faction}
    return SeatView(
        name=player.name,
        role=ROLES[player.role],
        is_alive=player.alive,
        uses=player.uses,
        quarry=None if player.quarry is None else names[player.quarry],
        team=team,
        will=player.will,
        death_note=player.death_note,
        notes=player.notes,
        day=state.day,
        phase=state.phase,
        round_in_phase=state.round_of(seat),
        players=tuple(names),
        living=tuple(other.name for other in state.living),
        graveyard=log.graveyard,
        lobby=state.lobby,
        accused=None if state.accused is None else names[state.accused],
        votes={names[voter]: names[target] for voter, target in state.votes.items()},
        votes_needed=state.votes_needed,
        public=log.public,
        private=log.private[seat],
        public_lines=log.public_lines,
        private_lines=log.private_lines[seat],
        choices=tuple(
            Choice(
                verb=offer.verb,
                targets=tuple(names[target] for target in offer.targets),
                seconds=tuple(names[target] for target in offer.seconds),
                choices=offer.choices,
                takes_speech=offer.takes_speech,
            )
            for offer in offers(state, seat)
        ),
        observations=observations,
    )
