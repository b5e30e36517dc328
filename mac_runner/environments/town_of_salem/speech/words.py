"""The words of the game: names of players and roles, each replaced by one character that stands for it.

Patterns over marked text know nothing of which names are in play, and reading a name costs one character. The
characters are private ones (U+E000 on) that no text may bring along itself.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import Faction

# What players of this game write for short; those in capitals only as such.
_SHORT = {
    "doc": "Doctor",
    "invest": "Investigator",
    "vig": "Vigilante",
    "vigi": "Vigilante",
    "retri": "Retributionist",
    "consig": "Consigliere",
    "arso": "Arsonist",
    "amne": "Amnesiac",
    "exe": "Executioner",
}
_SHORT_CAPITALS = {
    "GF": "Godfather",
    "SK": "Serial Killer",
    "LO": "Lookout",
    "BG": "Bodyguard",
    "VH": "Vampire Hunter",
    "WW": "Werewolf",
    "BM": "Blackmailer",
    "TP": "Transporter",
}

_FIRST_ROLE = 0xE000
_FIRST_NAME = 0xE100
_LAST = 0xE8FF
NAME = f"[{chr(_FIRST_NAME)}-{chr(_LAST)}]"
ROLE = f"[{chr(_FIRST_ROLE)}-{chr(_FIRST_NAME - 1)}](?!'s)"
"""One role, but not what belongs to it: `the Sheriff's friend`."""
HAS_ROLE = re.compile(ROLE)
HAS_NAME = re.compile(NAME)
BLANK = "\x00"
"""Stands for what is left out; no pattern matches it."""

OF_TOWN = frozenset(role.name for role in ROLES.values() if role.faction is Faction.TOWN)

_ROLE_NAMES = tuple(role.name for role in ROLES.values())
_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', BLANK: " "})
_PRIVATE = re.compile(f"[{chr(_FIRST_ROLE)}-{chr(_LAST)}]")


def _role_words() -> dict[str, str]:
    words = {name.lower(): name for name in _ROLE_NAMES}
    hyphened = {word.replace(" ", "-"): name for word, name in words.items() if " " in word}
    return {**words, **hyphened, **_SHORT}


_ROLE_BY_WORD: Mapping[str, str] = MappingProxyType(_role_words())


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with its names and roles marked.

    `ends` are the places after each mark, `shifts` how much further on the same place is in the text that was marked.
    """

    text: str
    ends: tuple[int, ...]
    shifts: tuple[int, ...]

    def place(self, index: int) -> int:
        """Where in the text that was marked the character at `index` stands."""
        before = bisect_right(self.ends, index)
        return index + (self.shifts[before - 1] if before else 0)


def names_in(part: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_NAME for mark in part)
    return tuple(dict.fromkeys(players[mark] for mark in marks if 0 <= mark < len(players)))


def roles_in(part: str) -> tuple[str, ...]:
    """The roles named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_ROLE for mark in part)
    return tuple(dict.fromkeys(_ROLE_NAMES[mark] for mark in marks if 0 <= mark < len(_ROLE_NAMES)))


def mark(text: str, players: tuple[str, ...]) -> Marked:
    """Mark the players, written as they are or in capitals, and the roles, by any of their names."""
    plain = _PRIVATE.sub(BLANK, text.translate(_STRAIGHT))
    marks = _marks(players)
    parts: list[str] = []
    ends: list[int] = []
    shifts: list[int] = []
    done = made = 0
    for found in _words(players).finditer(plain):
        made += found.start() - done + 1
        parts += (plain[done : found.start()], marks.get(found.group()) or marks[found.group().lower()])
        done = found.end()
        ends.append(made)
        shifts.append(done - made)
    return Marked("".join((*parts, plain[done:])), tuple(ends), tuple(shifts))


@lru_cache(maxsize=64)
def _marks(players: tuple[str, ...]) -> Mapping[str, str]:
    """The character for every word that stands for a role or a player."""
    roles = {name: chr(_FIRST_ROLE + index) for index, name in enumerate(_ROLE_NAMES)}
    names = {form: chr(_FIRST_NAME + i) for i, name in enumerate(players) for form in (name.upper(), name)}
    words = {word: roles[name] for word, name in _ROLE_BY_WORD.items()}
    return {**words, **{word: roles[name] for word, name in _SHORT_CAPITALS.items()}, **names}


@lru_cache(maxsize=64)
def _words(players: tuple[str, ...]) -> re.Pattern[str]:
    exact = {form for name in players for form in (name, name.upper())} | _SHORT_CAPITALS.keys()
    return re.compile(rf"(?<![\w-])(?:(?-i:{_any(exact)})|{_any(_ROLE_BY_WORD)})(?!\w|-\w)", re.I | re.A)


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))
