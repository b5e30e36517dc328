"""Nobody learns what they may not know.

Every private word of a game carries a marker, and the test knows by rules of its own, not by the audiences of the code
under test, who may see it. Then every prompt of every turn is searched, in its words and in its view.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest

from mac_runner.environments.town_of_salem.acts import ACTS
from mac_runner.environments.town_of_salem.conversation import Game
from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.knowledge import SeatView, view_of
from mac_runner.environments.town_of_salem.lobbies import LOBBIES, deal
from mac_runner.environments.town_of_salem.players.writing import write
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import Faction, GameState, Options, Phase
from mac_runner.types import Prompt, Turn
from tests.environments.town_of_salem.table import ELEVEN, open_game, play, random_roles

GAMES = 120
GAMES_OF_ALL_ROLES = 80
_MARKER = re.compile(r"Q\d+Q")
_ROLE = re.compile(rf"\b({'|'.join(role.name for role in ROLES.values())})\b")
EVERYBODY = frozenset(range(100))


def hears(state: GameState, channel: str) -> frozenset[int]:
    """Who may hear a night channel, by the rules."""
    living = [player.seat for player in state.living]
    mediums = [seat for seat in living if state.players[seat].role == "medium"]
    match channel:
        case "jail":
            jailors = [seat for seat in living if state.players[seat].role == "jailor"]
            return frozenset(jailors) | {state.prisoner if state.prisoner is not None else -1}
        case "mafia" | "vampire":
            team = [seat for seat in living if state.players[seat].faction == channel]
            hunters = [seat for seat in living if state.players[seat].role == "vampire hunter"]
            heard = [*team, *(hunters if channel == "vampire" else ())]
            return frozenset(heard) - {state.prisoner if state.prisoner is not None else -1}
        case "dead":
            return frozenset(mediums) | {player.seat for player in state.players if not player.alive}
        case _:
            assert state.seance is not None
            return frozenset({state.seance.medium, state.seance.target})


class Watch:
    """Plays every seat at random with marked words, and searches every prompt for marks of others."""

    def __init__(self, game: Game, *, knows_findings: bool = True) -> None:
        self.game = game
        self.knows_findings = knows_findings
        self.seats = {player.name: player.seat for player in game.state.players}
        self.entitled: dict[str, frozenset[int]] = {}
        self.kinds: dict[str, str] = {}
        self.met: set[tuple[str, int]] = set()
        self.read: dict[int, set[str]] = {seat: set() for seat in self.seats.values()}
        self.looked: dict[int, tuple[int, int]] = {}

    def mark(self, kind: str, seats: frozenset[int]) -> str:
        marker = f"Q{len(self.entitled)}Q"
        self.entitled[marker] = seats
        self.kinds[marker] = kind
        return marker

    def play(self, view: object, chance: Random) -> str:
        assert isinstance(view, SeatView)
        me = frozenset({self.seats[view.name]})
        thought = self.mark("thought", frozenset())
        if chance.random() < 0.04:
            return f'<thinking>{thought}</thinking><tool_request name="get_role">{thought}</tool_request>'
        if chance.random() < 0.04:
            return f"{thought} and no act"
        choices = [choice for choice in view.choices if not ACTS[choice.verb].is_side_act]
        choice = chance.choice(choices)
        target, second = chance.choice(choice.targets or ("",)), chance.choice(choice.seconds or ("",))
        channel = chance.choice(choice.choices or ("",))
        heard = EVERYBODY
        if choice.verb == "whisper":
            state = self.game.state
            blackmailers = {player.seat for player in state.living if player.role == "blackmailer"}
            heard = me | {self.seats[target]} | blackmailers
        elif choice.verb == "speak" and view.phase is Phase.NIGHT_CHAT:
            heard = hears(self.game.state, channel)
        if choice.verb == "forge":
            heard = me
        text = self.mark(choice.verb if heard is EVERYBODY else f"private {choice.verb}", heard)
        sides = [side.verb for side in view.choices if ACTS[side.verb].is_side_act and chance.random() < 0.3]
        beside = "".join(f"<{verb}>{self.mark(verb, me)}</{verb}>" for verb in sides)
        return write(choice.verb, target=target, second=second, choice=channel, text=text, thought=thought) + beside

    def look(self, game: Game, turn: Turn, prompt: Prompt) -> None:
        """Search one prompt, and the view it was made of."""
        seat = self.seats[turn.agent]
        self.publish_wills()
        first, *thread = prompt.messages[1:]
        for marker in _MARKER.findall(prompt.messages[0].content + first.content):
            self.check(marker, seat)
        # In the turn's own thread the player finds their own reply again, thoughts included, and nobody else's.
        own = [message.content for message in thread if message.role == "assistant"]
        said = [message.content for message in thread if message.role == "user"]
        assert all(any(marker in text for text in own) for text in said for marker in _MARKER.findall(text))
        assert isinstance(prompt.view, SeatView)
        self.search_view(prompt.view, seat)
        if self.knows_findings:
            self.search_roles(first.content, prompt.view, seat)

    def publish_wills(self) -> None:
        """What a grave shows is known to all from then on."""
        for player in self.game.state.players:
            if player.death is None:
                continue
            # A bloody will cannot be read; the killer's note can.
            will = () if player.death.is_bloody else (player.will, player.death.forged_will or "")
            janitors = frozenset(other.seat for other in self.game.state.players if other.role == "janitor")
            shown = janitors if player.death.is_cleaned else EVERYBODY
            for text in (*will, *player.death.notes):
                for marker in _MARKER.findall(text):
                    self.entitled[marker] |= shown

    def check(self, marker: str, seat: int) -> None:
        assert seat in self.entitled[marker], f"seat {seat} was shown a {self.kinds[marker]} of others: {marker}"
        self.met.add((self.kinds[marker], seat))

    def search_view(self, view: SeatView, seat: int) -> None:
        """Search the data of the view; of its growing lists, what is new since this seat's last turn."""
        public, private = self.looked.get(seat, (0, 0))
        self.looked[seat] = (len(view.public), len(view.private))
        rest = replace(view, public=(), private=(), public_lines=(), private_lines=(), observations=())
        new = [*view.public[public:], *view.private[private:]]
        new_lines = [*view.public_lines[public:], *view.private_lines[private:]]
        for marker in _MARKER.findall(f"{rest}{new}{new_lines}"):
            self.check(marker, seat)
        for event in new:
            if event.kind is EventKind.CHAT and event.data["channel"] in ("jail", "dead"):
                hidden = "jailor" if event.data["channel"] == "jail" else "medium"
                speaker = self.seats.get(str(event.data["player"]))
                assert speaker is None or self.game.state.players[speaker].dealt != hidden or not self.alive(speaker)

    def alive(self, seat: int) -> bool:
        return self.game.state.players[seat].alive

    def search_roles(self, text: str, view: SeatView, seat: int) -> None:
        """No line names a living player beside a role, but for one's own findings and one's own team."""
        living = [name for name in view.living if name != view.name and name not in view.team]
        is_mafia = self.game.state.players[seat].faction is Faction.MAFIA
        assert is_mafia or not view.team
        for line in text.splitlines():
            if line in self.read[seat]:
                continue
            self.read[seat].add(line)
            if not _ROLE.search(line) or not any(name in line for name in living):
                continue
            is_finding = "You found that" in line and view.role.name == "Investigator"
            assert is_finding, f"{view.name} ({view.role.name}) reads: {line}"


@pytest.mark.parametrize("part", range(4))
def test_no_prompt_shows_what_its_seat_may_not_know(part: int) -> None:
    met: set[str] = set()
    for number in range(part, GAMES, 4):
        chance = Random(number)
        roles = random_roles(chance) if number % 3 == 0 else [*LOBBIES[f"classic-{7 + number % 4}"], "jester"]
        chance.shuffle(roles)
        options = Options(max_days=4, discussion_rounds=1, vote_rounds=2, sheriff=chance.choice(["binary", "typed"]))
        game = open_game(roles, seed=number, options=options)
        watch = Watch(game)
        play(game, watch.play, seed=number, watch=watch.look)
        watch.publish_wills()
        for seat in watch.seats.values():
            watch.search_view(view_of(game.state, game.log, seat), seat)
        met.update(kind for kind, _ in watch.met)

    # Nothing was found where it must not be, and not because nothing was there to be found.
    assert met == {"speak", "private speak", "private whisper", "will", "death_note", "notes"}


@pytest.mark.parametrize("part", range(4))
def test_no_prompt_of_any_role_shows_words_its_seat_may_not_know(part: int) -> None:
    met: set[str] = set()
    for number in range(part, GAMES_OF_ALL_ROLES, 4):
        chance = Random(number)
        roles = list(deal(("any",) * chance.randint(8, 15), number))
        chance.shuffle(roles)
        game = open_game(roles, seed=number, options=Options(max_days=4, discussion_rounds=1, vote_rounds=2))
        watch = Watch(game, knows_findings=False)
        play(game, watch.play, seed=number, watch=watch.look)
        watch.publish_wills()
        for seat in watch.seats.values():
            watch.search_view(view_of(game.state, game.log, seat), seat)
        met.update(kind for kind, _ in watch.met)

    assert met >= {"speak", "private speak", "private whisper", "will", "notes"}


def test_view_tells_the_mafia_its_living_team_and_nobody_else_anything() -> None:
    game = open_game(ELEVEN)
    for player in game.state.players:
        view = view_of(game.state, game.log, player.seat)
        team = {"Godfather", "Framer", "Mafioso"} if player.faction is Faction.MAFIA else set()
        assert set(view.team.values()) == team
        assert view.role.id == player.role
        assert (view.quarry is not None) == (player.role == "executioner")


def test_views_of_two_games_differ_only_in_what_the_seat_may_know() -> None:
    """Two games that differ in the roles of others look the same to a townsman."""
    one = open_game(("sheriff", "doctor", "escort", "godfather", "jester"))
    other = open_game(("sheriff", "jester", "godfather", "escort", "doctor"))

    turn = next(turn for turn in one.turns() if turn.agent == one.state.players[0].name)
    assert one.prompt(turn).messages == other.prompt(turn).messages
    assert one.prompt(turn).view == other.prompt(turn).view
