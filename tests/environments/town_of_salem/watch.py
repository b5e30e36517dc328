"""Plays every seat of a game at random with marked words, and searches whatever a seat is shown.

Every text a player writes holds a marker of its own, and `Watch` notes who may see it, by `entitlement` and not by the
code under test. What a seat is told that nobody wrote is judged notice by notice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import get_args

from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    LOBBIES,
    TOOLS,
    UNKNOWN_ROLE,
    Asking,
    Choice,
    Death,
    DiscussionMode,
    Event,
    EventKind,
    Game,
    Options,
    Phase,
    Player,
    SeatView,
    deal,
    slot_name,
    view_of,
    write,
)
from mac_runner.types import Prompt, Turn
from tests.environments.town_of_salem import entitlement
from tests.environments.town_of_salem.entitlement import KILLERS_BY_CAUSE, roles_named
from tests.environments.town_of_salem.facts import MAFIA, VAMPIRES, Day, Deed, Notice
from tests.environments.town_of_salem.table import open_game, play

EVERYBODY = frozenset(range(100))
_MARKER = re.compile(r"Q\d+Q")
# Whom these may be aimed at depends on what is known of the dead or of a trial.
_SPECIAL_AIMS = frozenset({"haunt", "raise", "revive", "remember", "disguise"})

# Tables at which much of what is private comes together.
TABLES = (
    ("jailor", "medium", "spy", "godfather", "mafioso", "blackmailer", "executioner", *["any"] * 4),
    ("vampire", "vampire", "vampire hunter", "medium", "medium", "jailor", "retributionist", *["random town"] * 4),
    ("transporter", "witch", "escort", "doctor", "bodyguard", "veteran", "jailor", "serial killer", *["any"] * 3),
    ("godfather", "janitor", "forger", "disguiser", "consigliere", "amnesiac", "amnesiac", *["random town"] * 5),
    ("jester", "jester", "jester", "executioner", "executioner", "sheriff", "mayor", "godfather", "mafioso", "doctor"),
    ("arsonist", "arsonist", "werewolf", "lookout", "sheriff", "investigator", "jester", *["random town"] * 4),
)


def _slots(number: int, chance: Random) -> tuple[str, ...]:
    """The slots of a game: a table of those above, any roles at all, or a named lobby."""
    match number % 3:
        case 0:
            return TABLES[chance.randrange(len(TABLES))]
        case 1:
            return ("any",) * chance.randint(8, 13)
        case _:
            return LOBBIES[chance.choice(["ranked-15", "social-10", "classic-15"])]


def _options(chance: Random) -> Options:
    return Options(
        max_days=4,
        discussion_rounds=1,
        vote_rounds=2,
        night_chat_rounds=1,
        sheriff=chance.choice(["binary", "typed"]),
        spy=chance.choice(["bug", "ears"]),
        retri=chance.choice(["raise", "revive"]),
        mafioso_control=chance.choice(["order", "control"]),
        discussion_mode=chance.choice(get_args(DiscussionMode)),
        discussion_floors=4,
        shuffle_options=chance.random() < 0.5,
    )


def _asking(chance: Random) -> Asking:
    return Asking(
        form=chance.choice(["markup", "json"]),
        reasoning=chance.choice(["required", "optional", "off"]),
        persona=chance.choice(["", "a careful judge"]),
        system=chance.choice(["", "Play to win."]),
    )


def watch_game(number: int, table: tuple[str, ...] | None = None) -> Watch:
    """Play game `number` to its end, of `table` if it is given, and fail at the first thing a seat should not see."""
    chance = Random(number)
    slots = _slots(number, chance) if table is None else table
    roles = list(deal(slots, number))
    chance.shuffle(roles)
    options, asking = _options(chance), _asking(chance)
    game = open_game(roles, seed=number, options=options, lobby=slots, asking=asking)
    watch = Watch(game)
    play(game, watch.play, seed=number, watch=watch.look)
    watch.look_around()
    return watch


class Watch:
    """One game under watch. `met` is every kind of marked text with the role that read it, `told` every notice.

    `prompts` counts those that were searched.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.prompts = 0
        self.names = tuple(player.name for player in game.state.players)
        self.slots = [slot_name(slot).lower() for slot in game.state.lobby]
        self.days: dict[int, Day] = defaultdict(Day)
        self.entitled: dict[str, frozenset[int]] = {}
        self.kinds: dict[str, str] = {}
        self.writers: dict[str, tuple[int, str]] = {}
        self.met: set[tuple[str, str]] = set()
        self.told: set[str] = set()
        self.looked: dict[int, tuple[int, int]] = {}
        self.read: dict[int, set[str]] = defaultdict(set)
        self.passed: set[int] = set()
        self.buried: set[Death] = set()
        self.note()

    # Playing.

    def mark(self, kind: str, seats: frozenset[int], writer: int) -> str:
        """A text of its own for words of this kind, which `seats` may see."""
        marker = f"Q{len(self.entitled)}Q"
        self.entitled[marker] = seats
        self.kinds[marker] = kind
        self.writers[marker] = writer, self.game.state.players[writer].role
        return marker

    def play(self, view: object, chance: Random) -> str:
        """A random legal reply, now and then a tool request or nothing of use, all its words marked."""
        assert isinstance(view, SeatView)
        seat = self.names.index(view.name)
        thought = self.mark("thought", frozenset(), seat)
        fate = chance.random()
        if fate < 0.06:
            tool = chance.choice([*TOOLS.values()])
            argument = chance.choice([*tool.argument.allowed(view), thought]) if tool.argument else ""
            return f'<thinking>{thought}</thinking><tool_request name="{tool.name}">{argument}</tool_request>'
        if fate < 0.09:
            return f"{thought} and no act"
        choice = chance.choice([choice for choice in view.choices if not ACTS[choice.verb].is_side_act])
        is_herding = choice.verb == "vote" and chance.random() < 0.8
        target = choice.targets[0] if is_herding else chance.choice(choice.targets or ("",))
        second = chance.choice(choice.seconds or ("",))
        # Where most name the same player there are trials, and now and then one that ends with a lynch.
        option = (
            "guilty" if choice.verb == "ballot" and chance.random() < 0.5 else chance.choice(choice.choices or ("",))
        )
        self.note_choice(seat, view, choice.verb, [name for name in (target, second) if name])
        text = self.words(seat, view, choice.verb, target, option)
        me = frozenset({seat})
        sides = [side.verb for side in view.choices if ACTS[side.verb].is_side_act and chance.random() < 0.3]
        beside = "".join(f"<{verb}>{self.mark(verb, me, seat)}</{verb}>" for verb in sides)
        if choice.takes_speech and chance.random() < 0.3:
            beside += f"<speak>{self.mark('words with an act', EVERYBODY, seat)}</speak>"
        return write(choice.verb, target=target, second=second, choice=option, text=text, thought=thought) + beside

    def words(self, seat: int, view: SeatView, verb: str, target: str, channel: str) -> str:
        """Marked words for an act, with those noted who may see them."""
        state, me = self.game.state, frozenset({seat})
        if verb == "whisper":
            readers = entitlement.seats_that_read_whispers(state.players, state.options)
            return self.mark("whisper", me | {self.names.index(target)} | readers, seat)
        if verb == "speak" and view.phase is Phase.NIGHT_CHAT:
            hearers = entitlement.seats_that_hear(channel, state.players, self.days[state.day], state.options)
            return self.mark(f"{channel} chat", hearers, seat)
        return self.mark(verb, me if verb == "forge" else EVERYBODY, seat)

    def note_choice(self, seat: int, view: SeatView, verb: str, targets: Iterable[str]) -> None:
        day, seats = self.days[view.day], tuple(self.names.index(name) for name in targets)
        if view.phase is Phase.NIGHT:
            day.chosen[seat] = Deed(verb, seats)
        elif verb == "jail":
            day.jail_choices.setdefault(seat, set()).update(seats)
        elif verb == "seance":
            (day.seances[seat],) = seats

    def note(self) -> None:
        """Put down what is so now: who is what, who is dead, who is in jail."""
        state = self.game.state
        day = self.days[state.day]
        for player in state.players:
            day.held.setdefault(player.seat, set()).add(player.role)
        if state.phase.is_night:
            day.keeper, day.prisoner = state.keeper, state.prisoner
            day.ghosts |= {player.seat for player in state.players if not player.alive}
        for player in state.players:
            if player.death is not None and player.death not in self.buried:
                self.open_grave(player, player.death)

    def open_grave(self, player: Player, death: Death) -> None:
        """What a body shows is known to all from now on: a will unless it is hidden, the notes of those who killed."""
        if death.is_cleaned:
            cleaners = self.days[death.day].may_clean(player.seat)
            self.show(player.will, cleaners)
            return
        if not death.is_bloody:
            self.show(player.will if death.forged_will is None else death.forged_will, EVERYBODY)
        causes = death.causes
        killers = frozenset[str]().union(*(KILLERS_BY_CAUSE.get(cause, frozenset[str]()) for cause in causes))
        for note in death.notes:
            assert all(self.writers[marker][1] in killers for marker in _MARKER.findall(note)), f"a note with {causes}"
            self.show(note, EVERYBODY)

    def show(self, text: str, seats: frozenset[int]) -> None:
        for marker in _MARKER.findall(text):
            self.entitled[marker] |= seats

    # Looking.

    def look(self, game: Game, turn: Turn, prompt: Prompt) -> None:
        """Search one prompt, and the view it was made of."""
        seat = self.names.index(turn.agent)
        self.prompts += 1
        self.note()
        assert isinstance(prompt.view, SeatView)
        self.search_view(prompt.view, seat)
        first, *thread = prompt.messages[1:]
        self.search_lines(first.content, prompt.view, seat)
        for message in thread:
            for marker in _MARKER.findall(message.content):
                # Its own reply a player finds again, thoughts included.
                if self.writers[marker][0] != seat:
                    assert message.role == "user"
                    self.check(marker, seat)

    def look_around(self) -> None:
        """Search what every seat knows, those too who are not asked any more."""
        self.note()
        for seat in range(len(self.names)):
            self.search_view(view_of(self.game.state, self.game.log, seat), seat)

    def check(self, marker: str, seat: int) -> None:
        reader = self.game.state.players[seat]
        kind = self.kinds[marker]
        assert seat in self.entitled[marker], f"{reader.name} ({reader.role}) was shown a {kind} of others: {marker}"
        self.met.add((kind, reader.role))

    def search_view(self, view: SeatView, seat: int) -> None:
        """Search the data of the view; of its growing lists, what is new since this seat's last turn."""
        public, private = self.looked.get(seat, (0, 0))
        self.looked[seat] = (len(view.public), len(view.private))
        rest = replace(view, public=(), private=(), public_lines=(), private_lines=(), observations=())
        for marker in _MARKER.findall(str(rest)):
            self.check(marker, seat)
        for event, line in zip(view.public[public:], view.public_lines[public:], strict=True):
            self.search_text(f"{event.data}{line}", seat)
            if id(event) not in self.passed:
                self.passed.add(id(event))
                self.judge_public(event, line)
        for event, line in zip(view.private[private:], view.private_lines[private:], strict=True):
            self.search_text(f"{event.data}{line}", seat)
            self.judge_private(event, line, seat)
        self.judge_fields(view, seat)

    def search_text(self, text: str, seat: int) -> None:
        for marker in _MARKER.findall(text):
            self.check(marker, seat)

    def judge_public(self, event: Event, line: str) -> None:
        self.told.add(str(event.kind))
        what = f"everybody learns: {line}"
        assert entitlement.may_be_public(str(event.kind), event.data, self.names, self.slots), what
        assert all(name in str(event.data) for name in self.names if name in line), what

    def judge_private(self, event: Event, line: str, seat: int) -> None:
        self.told.add(str(event.kind))
        notice = Notice(
            kind=str(event.kind),
            seat=seat,
            data=event.data,
            day=self.days[event.day],
            morrow=self.days.get(event.day + 1, Day()),
            names=self.names,
            options=self.game.state.options,
        )
        what = f"{self.names[seat]} ({self.days[event.day].held.get(seat)}) is told: {line}"
        assert entitlement.may_be_told(notice), what
        assert all(name in str(event.data) for name in self.names if name in line), what

    def judge_fields(self, view: SeatView, seat: int) -> None:
        """What the view holds beside the record is the seat's own, its team's, or on show."""
        players = self.game.state.players
        me = players[seat]
        team = next((team for team in (MAFIA, VAMPIRES) if me.role in team), frozenset[str]())
        mates = {player.name: player.role.title() for player in players if player.alive and player.role in team}
        quarry = None if me.quarry is None else self.names[me.quarry]
        assert (view.role.id, view.uses, view.quarry) == (me.role, me.uses, quarry)
        assert (view.will, view.death_note, view.notes) == (me.will, me.death_note, me.notes)
        assert view.team == mates
        assert [slot_name(slot).lower() for slot in view.lobby] == self.slots
        for player in players:
            if player.death is None:
                assert player.name not in view.graveyard
            elif player.death.is_cleaned:
                assert view.graveyard[player.name] == UNKNOWN_ROLE
        for choice in view.choices:
            if choice.verb not in _SPECIAL_AIMS:
                self.judge_aims(choice, view, mates)

    def judge_aims(self, choice: Choice, view: SeatView, mates: Iterable[str]) -> None:
        """Nobody can read off a list of targets what the others are."""
        revealed = {event.data["player"] for event in view.public if event.kind is EventKind.REVEALED}
        for aims in filter(None, (choice.targets, choice.seconds)):
            left_out = set(view.living) - set(aims) - {view.name, *mates, *revealed, view.votes.get(view.name)}
            assert not left_out, f"{view.name} ({view.role.name}) may not {choice.verb} {left_out}"

    def search_lines(self, text: str, view: SeatView, seat: int) -> None:
        """Beside the lines of the record, none names a living player and a role but one's own and one's team's."""
        read, told = self.read[seat], set("\n".join((*view.public_lines, *view.private_lines)).splitlines())
        living = [name for name in view.living if name != view.name and name not in view.team]
        for line in text.splitlines():
            if line in read:
                continue
            read.add(line)
            self.search_text(line, seat)
            is_telling = line not in told and roles_named(line) and any(name in line for name in living)
            assert not is_telling, f"{view.name} ({view.role.name}) reads: {line}"
