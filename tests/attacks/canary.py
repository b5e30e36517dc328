"""A secret that is looked for wherever it must not be."""

from __future__ import annotations

from functools import cache
from typing import Final

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
