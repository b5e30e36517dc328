"""A secret that is looked for wherever it must not be; games and discussions of marked words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.environments.discussion.test_visibility import watch_discussion
from tests.environments.town_of_salem.watch import watch_game

DISCUSSIONS_PER_GAME: Final = 3
RUN_CHARS_MAX: Final = 4
"""So many characters of a secret in a row may stand anywhere: they tell nobody anything."""


def leaked_in(data: bytes, secret: str) -> str:
    """The longest part of `secret` that stands in `data`, in either case; empty where none is too long."""
    text = data.lower()
    longest = b""
    for part in _parts(secret):
        if len(part) > len(longest) and part in text:
            longest = part
    return longest.decode()


@cache
def _parts(secret: str) -> tuple[bytes, ...]:
    """Its parts that are too long, the shortest first: where none of these stands, none does."""
    plain = secret.lower().encode()
    sizes = range(RUN_CHARS_MAX + 1, len(plain) + 1)
    return tuple(plain[at : at + size] for size in sizes for at in range(len(plain) - size + 1))


def leaks(directory: Path, more: Mapping[str, bytes], secret: str) -> list[str]:
    """Every place, among the files of a directory and others, where too much of a secret stands."""
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return [f"{name}: {found!r}" for name, data in {**files, **more}.items() if (found := leaked_in(data, secret))]


def play(seed: int) -> int:
    """Search every prompt of a game, or of a few discussions, for marks that its reader may not see; how many."""
    if seed % 2:
        return sum(watch_discussion(DISCUSSIONS_PER_GAME * seed + number) for number in range(DISCUSSIONS_PER_GAME))
    return watch_game(seed).prompts
