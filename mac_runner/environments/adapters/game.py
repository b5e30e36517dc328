"""What an adapter makes of a game of another library: one player at a time is asked, and answers in text."""

from __future__ import annotations

import re
from random import Random
from typing import Final, NamedTuple, Protocol

from mac_runner.types import JsonObject


class Asked(NamedTuple):
    """What the player to move is asked."""

    player: int
    rules: str
    """The system message."""
    text: str
    """What the player has read, or what it sees; the user message."""
    options: tuple[str, ...]
    """The legal moves that the game lists, in the words of a reply."""
    choices: tuple[str, ...] | None = None
    """The same, where a reply can be nothing else; an engine is then held to them."""


class Heard(NamedTuple):
    """Something that players were shown."""

    text: str
    players: frozenset[int]
    sender: int | None
    """The player who said it; None: the game."""
    kind: str


class Move(NamedTuple):
    """What a game made of a reply."""

    detail: str
    refusal: str | None = None
    """Why the reply was no legal move."""
    is_asked_again: bool = False
    """Whether the same player now has another try at the same move."""


class Game(Protocol):
    """One game in progress. It draws from chance of its own, so the same replies always lead to the same state."""

    @property
    def asked(self) -> Asked | None:
        """Who is to move; None when the game has ended."""
        ...

    def play(self, said: str, *, may_correct: bool) -> Move:
        """Apply the words of the player to move. `may_correct` says whether `retry_config` allows another try."""
        ...

    def play_default(self) -> Move:
        """Move for a player who gave no usable reply."""
        ...

    def heard(self) -> list[Heard]:
        """What players were shown since the last call."""
        ...

    def result(self) -> Result:
        """How it ended, or how it stands."""
        ...


class Result(NamedTuple):
    """How a game ended."""

    rewards: dict[int, float]
    """By player; a player without a reward is left out."""
    reason: str
    more: JsonObject
    """What else the library says, by name."""
    by_player: dict[str, dict[int, bool | int | float | str]]
    """What else it says about each player."""


class GameView(NamedTuple):
    """What a scripted player knows: the same as the prompt."""

    game: str
    player: int
    rules: str
    text: str
    options: tuple[str, ...]
    attempt: int


_EXAMPLE: Final = re.compile(r"\[[^\[\]\n]{1,40}\]")


def random_player(view: GameView, random: Random) -> str:
    """Of a player that knows no game: any option; else any move that the rules show in brackets; else a few words."""
    options = view.options or tuple(dict.fromkeys(_EXAMPLE.findall(view.rules)))
    return random.choice(options) if options else some_words(random)


def some_words(random: Random) -> str:
    """What a player says who has nothing to say."""
    return f"I have nothing to add, {random.randint(1, 999)}."
