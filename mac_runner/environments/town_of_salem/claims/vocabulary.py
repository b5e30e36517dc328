"""Names of players and roles in a text, each replaced by one character.

Patterns over such a marked text need not know which names are in play, and reading a name costs one character. The
characters are private ones (U+E000 on), and a text cannot bring them along.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles

_FIRST_ROLE = 0xE000
_FIRST_NAME = 0xE100
_LAST = 0xE8FF
NAME = f"[{chr(_FIRST_NAME)}-{chr(_LAST)}]"
ROLE = f"[{chr(_FIRST_ROLE)}-{chr(_FIRST_NAME - 1)}](?!'s)"
"""One role, but not its belongings: `the Sheriff's friend`."""
HAS_ROLE = re.compile(ROLE)
HAS_NAME = re.compile(NAME)
BLANK = "\x00"
"""Replaces what is left out; no pattern matches it."""

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', BLANK: " "})
_PRIVATE = re.compile(f"[{chr(_FIRST_ROLE)}-{chr(_LAST)}]")


@follows_roles
@cache
def _role_names() -> tuple[str, ...]:
    return tuple(role.name for role in ROLES.values())


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with its names and roles marked.

    `ends` are the places after each mark, `shifts` how much further on the same place is in the text that was marked.
    """

    text: str
    ends: tuple[int, ...]
    shifts: tuple[int, ...]

    def place(self, index: int) -> int:
        """The place in the original text of the character at `index`."""
        before = bisect_right(self.ends, index)
        return index + (self.shifts[before - 1] if before else 0)


def names_in(part: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_NAME for mark in part)
    return tuple(dict.fromkeys(players[mark] for mark in marks if 0 <= mark < len(players)))


def roles_in(part: str) -> tuple[str, ...]:
    """The roles named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_ROLE for mark in part)
    roles = _role_names()
    return tuple(dict.fromkeys(roles[mark] for mark in marks if 0 <= mark < len(roles)))


def mark(text: str, players: tuple[str, ...]) -> Marked:
    """Mark the players, written as they are or in capitals, and the roles, by any of their names."""
    plain = _PRIVATE.sub(BLANK, text.translate(_STRAIGHT))
    words, marks = _words(players)
    parts: list[str] = []
    ends: list[int] = []
    shifts: list[int] = []
    done = made = 0
    for found in words.finditer(plain):
        made += found.start() - done + 1
        parts += (plain[done : found.start()], marks.get(found.group()) or marks[found.group().lower()])
        done = found.end()
        ends.append(made)
        shifts.append(done - made)
    return Marked("".join((*parts, plain[done:])), tuple(ends), tuple(shifts))


@follows_roles
@lru_cache(maxsize=64)
def _words(players: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Every word that names a role or a player, as a pattern, and the character for each."""
    any_case: dict[str, str] = {}
    exact: dict[str, str] = {}
    for index, role in enumerate(ROLES.values()):
        name = role.name.lower()
        for word in (name, name.replace(" ", "-"), *role.short_names):
            # Short words in capitals count as such only.
            (exact if word.isupper() else any_case)[word] = chr(_FIRST_ROLE + index)
    exact |= {form: chr(_FIRST_NAME + i) for i, name in enumerate(players) for form in (name.upper(), name)}
    pattern = re.compile(rf"(?<![\w-])(?:(?-i:{_any(exact)})|{_any(any_case)})(?!\w|-\w)", re.I | re.A)
    return pattern, any_case | exact


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))
