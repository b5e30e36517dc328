"""What an act is: its form, who may choose it when, and what it does, as one entry of the table of acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from mac_runner.environments.town_of_salem.roles import Changed
from mac_runner.environments.town_of_salem.state import GameState, Options, Player
from mac_runner.limits import SPEECH_CHARS_MAX


class Form(StrEnum):
    """How an act is written."""

    BARE = "bare"
    TEXT = "text"
    NAME = "name"
    NAME_AND_TEXT = "name and text"
    TWO_NAMES = "two names"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something a seat does. `text` is what it says or writes; `choice` a ballot, or the channel it speaks in."""

    seat: int
    verb: str
    targets: tuple[int, ...] = ()
    text: str = ""
    choice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An act a seat may choose now: the seats it may be aimed at and the choices it may name.

    An act with two names takes any of `targets` first and any of `seconds` second.
    """

    verb: str
    targets: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActSpec:
    """One line of the table. A side act may be added to any reply and does not use up the turn.

    `example_choice` stands in the example of an act that is a choice; `is_played` says in which games there is the act.
    """

    verb: str
    form: Form
    help: str
    offer: Callable[[GameState, Player], Offer | None]
    perform: Callable[[GameState, Act], Changed]
    is_side_act: bool = False
    text_chars_max: int = SPEECH_CHARS_MAX
    example_choice: str = ""
    is_played: Callable[[Options], bool] = lambda options: True

    def example(self, name: str = "NAME", second: str = "NAME") -> str:
        """The act as a player writes it, aimed at `name`, and at `second` where it takes two."""
        match self.form:
            case Form.BARE:
                return f"<{self.verb}/>"
            case Form.TEXT:
                return f"<{self.verb}>your words</{self.verb}>"
            case Form.NAME:
                return f"<{self.verb}>{name}</{self.verb}>"
            case Form.NAME_AND_TEXT:
                return f'<{self.verb} to="{name}">your words</{self.verb}>'
            case Form.TWO_NAMES:
                return f"<{self.verb}>{name}, {second}</{self.verb}>"
            case Form.CHOICE:
                return f"<{self.verb}>{self.example_choice}</{self.verb}>"


OfferRule: TypeAlias = "Callable[[GameState, Player], Offer | None]"
"""What of an act a player may choose now; None for nothing of it."""
