"""What a seat may know: as data, and events in words of one line each.

`GameLog` keeps the events in order, and the public ones apart from those of each seat. `view_of` is the only place
that turns a game's state into what a player may know. The prompt is that view in words, a scripted player gets the
view itself, and tools answer from it; what is not in the view cannot reach a player. What players wrote is defused in
the words of events, so that it can pass for nothing but their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from mac_runner.environments.markup import defuse
from mac_runner.environments.town_of_salem.model.events import (
    UNKNOWN_ROLE,
    Event,
    EventKind,
    Events,
    Notice,
    visitors_in,
    with_article,
)
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, GameState, Options, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import ACTS, Act, Offer, Slot, offers
from mac_runner.environments.town_of_salem.seat.texts import EVENT_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An act a seat may choose now, as an `Offer` with names instead of seats."""

    verb: str
    targets: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    takes_speech: bool = False
    """Whether words to all may be said together with it."""

    def options(self, slot: Slot) -> tuple[str, ...]:
        """What may stand in a slot; nothing for words of the player's own."""
        options: tuple[str, ...] = getattr(self, slot.offered, ())
        return options

    def combinations(self) -> list[dict[str, str]]:
        """Every way to choose it, as the values of its slots, without words."""
        listed = {slot.key: options for slot in ACTS[self.verb].slots if (options := self.options(slot))}
        return [dict(zip(listed, values, strict=True)) for values in product(*listed.values())]


class GameLog:
    """All that happened, in order, and the lines of each audience; it grows at the end only."""

    def __init__(self, seats: int) -> None:
        self.events: list[Event] = []
        self.turns: list[str | None] = []
        """Of each event, the key of the turn whose act made it; None for what the rules do by themselves."""
        self.public: list[Event] = []
        self.public_lines: list[str] = []
        self.private: list[list[Event]] = [[] for _ in range(seats)]
        self.private_lines: list[list[str]] = [[] for _ in range(seats)]
        self.graveyard: dict[str, str] = {}

    def append(self, events: Events, turn: str | None = None) -> None:
        """Add what happened, by the act of a turn or by the rules alone."""
        for event in events:
            self.events.append(event)
            self.turns.append(turn)
            if event.audience is None:
                _hear(event, self.public, self.public_lines)
                if event.kind is EventKind.DEATH:
                    self.graveyard[event.text("player")] = event.text("role")
                elif event.kind is EventKind.REVIVED:
                    self.graveyard.pop(event.text("player"), None)
            for seat in event.audience or ():
                _hear(event, self.private[seat], self.private_lines[seat])


def _hear(event: Event, events: list[Event], lines: list[str]) -> None:
    """Add to what an audience heard; a line has a heading where the one before is of another phase."""
    now = moment(event.day, event.phase)
    is_headed = bool(events) and moment(events[-1].day, events[-1].phase) == now
    lines.append(sentence(event) if is_headed else f"[{now}]\n{sentence(event)}")
    events.append(event)


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
    options: Options
    """The rules of the game."""
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
        options=state.options,
        accused=None if state.accused is None else names[state.accused],
        votes={names[voter]: names[target] for voter, target in state.votes.items()},
        votes_needed=state.votes_needed,
        public=log.public,
        private=log.private[seat],
        public_lines=log.public_lines,
        private_lines=log.private_lines[seat],
        choices=choices_of(state, seat),
        observations=observations,
    )


def choices_of(state: GameState, seat: int) -> tuple[Choice, ...]:
    """What `seat` may choose now, in the order in which it is listed."""
    names = [player.name for player in state.players]
    listed = offers(state, seat)
    if state.options.shuffle_options:
        listed = tuple(_shuffled(offer, state, seat) for offer in listed)
    return tuple(
        [
            Choice(
                verb=offer.verb,
                targets=tuple([names[target] for target in offer.targets]),
                seconds=tuple([names[target] for target in offer.seconds]),
                choices=offer.choices,
                takes_speech=offer.takes_speech,
            )
            for offer in listed
        ]
    )


def _shuffled(offer: Offer, state: GameState, seat: int) -> Offer:
    """Drawn for the turn, not for its attempts, so that a correction shows the same order again."""
    chance = state.chance("options", state.round, seat, offer.verb)
    targets, seconds, choices = list(offer.targets), list(offer.seconds), list(offer.choices)
    chance.shuffle(targets)
    chance.shuffle(seconds)
    if not ACTS[offer.verb].is_scale:
        chance.shuffle(choices)
    return replace(offer, targets=tuple(targets), seconds=tuple(seconds), choices=tuple(choices))


def place_of(act: Act, state: GameState) -> tuple[int, int] | None:
    """Where the chosen option was in the list its seat was shown, from 1 on, and of how many; None without a list.

    Of two players the first one counts.
    """
    shown = next((choice for choice in choices_of(state, act.seat) if choice.verb == act.verb), None)
    if shown is None:
        return None
    options = shown.targets or shown.choices
    picked = state.players[act.targets[0]].name if act.targets else act.choice
    return (options.index(picked) + 1, len(options)) if picked in options else None


@follows_roles
@cache
def _causes() -> Mapping[str, str]:
    """How the announcement of a death puts each cause."""
    return {cause.name: cause.line for cause in (LYNCH, *(cause for role in ROLES.values() for cause in role.causes))}


def moment(day: int, phase: Phase) -> str:
    """A day and its phase in words: `Day 2, voting`, `Night 3`."""
    if phase.is_night:
        return f"Night {day}"
    return f"Day {day}" if phase is Phase.OVER else f"Day {day}, {phase}"


def without_heading(line: str) -> str:
    """The sentence of a line of the record."""
    return line.rpartition("\n")[2]


def sentence(event: Event) -> str:
    """The event in words."""
    words = event.kind.words if isinstance(event.kind, Notice) else EVENT_WORDS[event.kind]
    return words.format_map(_Fields(event))


class _Fields(dict[str, str]):
    """The data of an event as its sentence wants it: lists joined, players' own words defused."""

    def __init__(self, event: Event) -> None:
        data = event.data
        super().__init__({key: _words(value) for key, value in data.items()})
        self["count_of"] = f"{data.get('count')} of {data.get('needed')}"
        if "verb" in data:
            verb = str(data["verb"]).replace("_", " ")
            self["action"] = f"{verb}: {self['targets']}" if data["targets"] else verb
        if data.get("role"):
            self["a_role"] = with_article(str(data["role"]))
        if "legacy" in data:
            self["legacy"] = f"The will read: “{self['legacy']}”" if data["legacy"] else "There was no will."
        if "target" in data:
            self["attacked"] = self["target"] or "Someone you met"
        if "finding" in data:
            # The visits of a night are over; a role is held on.
            self["found"] = f"{'is' if visitors_in(self['finding']) is None else 'was'} {self['finding']}"
        if "causes" in data:
            self["death"] = _death(event)
        if "is_guilty" in data:
            self["verdict"] = "guilty and will be lynched" if data["is_guilty"] else "acquitted"
        if "ending" in data:
            self["end"] = _ending(event)


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "no one"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({role})" for name, role in value.items())
    return defuse(str(value))


def _death(event: Event) -> str:
    data = event.data
    how = " and ".join(_causes()[cause] for cause in event.names("causes"))
    will = f"The will reads: “{defuse(event.text('will'))}”" if data["will"] else "There was no will."
    if data.get("is_bloody"):
        will = "The will is soaked in blood and cannot be read."
    left = "".join(f" A note was left: “{defuse(note)}”" for note in event.names("death_notes"))
    if data["role"] == UNKNOWN_ROLE:
        return f"{data['player']} died, {how}. The body was cleaned: neither role nor will is known."
    return f"{data['player']} died, {how}. They were {with_article(str(data['role']))}. {will}{left}"


def _ending(event: Event) -> str:
    winners = " and ".join(f"the {winner.title()}" for winner in event.names("winners"))
    reason = event.data["reason"]
    match event.data["ending"]:
        case "win":
            return f"The game is over: {winners} won, because {reason}."
        case "draw":
            return f"The game is over: a draw, because {reason}."
        case _:
            return f"The game was stopped: {reason}."
