"""What a night is made of: when abilities act, attacks and what stops them, visits, and notes for the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mac_runner.environments.town_of_salem.model.events import Notice
from mac_runner.environments.town_of_salem.model.state import DeathCause, NightAction


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


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack of the night."""

    attacker: int
    victim: int
    level: Level
    cause: DeathCause
    is_direct: bool = True
    """Whether a guard can meet it."""
    reaches_jail: bool = False
    """Whether it harms a prisoner."""
    is_bloody: bool = False
    """Whether it makes the victim's will unreadable."""
    instead: Callable[[], None] | None = None
    """What happens to a victim who is overcome, where that is not death."""


class Guard(NamedTuple):
    """How a player meets one attacker of a house in person."""

    falls_by: DeathCause
    """What the guard dies of."""
    strikes_by: DeathCause
    """What the attacker dies of."""


class Protection(NamedTuple):
    """What a player does to keep those in a house from harm."""

    by: int
    how: str
    """In a word, for the record: `healed`."""
    level: Level
    """The defence it gives."""
    notice: Notice | None
    """What `by` learns when they were attacked."""
    guard: Guard | None
    """Where `by` meets an attacker in person."""


class Visit(NamedTuple):
    """Who went to whose house."""

    visitor: int
    house: int


class Note(NamedTuple):
    """What came between a choice and what happened, for readers of a finished game."""

    how: str
    """In a word or two."""
    seats: tuple[int, ...]
    """The seats it befell."""
    by: int | None = None
    """Whose doing it was."""
    was: NightAction | None = None
    """The action before."""
    now: NightAction | None = None
    """The action after."""


class Judged(NamedTuple):
    """An attack that was judged: the defence it met (None: none was asked) and what came of it."""

    attack: Attack
    defence: Level | None
    outcome: str
