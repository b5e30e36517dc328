"""Undoes the escapes of JSON, URLs, HTML and byte strings in a text. Pure.

Only escapes that a key can consist of are undone: those of printable ASCII, and characters that show nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.entities import html5
from typing import Final, NamedTuple

_UNSEEN: Final = "\x00\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
_ESCAPE: Final = re.compile(
    rf"[\\%&{_UNSEEN}](?:"
    r"(?<=\\)\\{0,7}(?:(?:u00|U000000|x|u\{)(?P<hex>[0-9A-Fa-f]{2})\}?|(?P<char>[\"'/\\]))"
    r"|(?<=%)(?:25){0,4}(?P<percent>[2-7][0-9A-Fa-f])"
    r"|(?<=&)(?:amp;){0,4}(?:\#(?:0{0,8}(?P<decimal>[0-9]{2,3})|[xX]0{0,8}(?P<entity>[0-9A-Fa-f]{2}));?"
    r"|(?P<name>[A-Za-z]{2,12};))"
    rf"|(?P<unseen>(?<=[{_UNSEEN}])))"
)
"""Each repetition has a bound, so that a search takes time in proportion to the text. The pattern begins with the set
of first characters, which makes a search fast.
"""
_SIGNS: Final = ("\\", "%", "&", "\x00")


class Layer(NamedTuple):
    """A text without its escapes, and the place of each character in the original."""

    text: str
    places: Sequence[int]
    """One more than there are characters: the last is the end."""


def layer_of(text: str) -> Layer:
    """The original text."""
    return Layer(text, range(len(text) + 1))


def inside(layer: Layer) -> Layer | None:
    """The layer without its outermost escapes; None if it has none."""
    text, places = layer
    parts: list[str] = []
    found: list[int] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        plain = _plain(match)
        if plain is None:
            continue
        start = match.start()
        parts += (text[end:start], plain)
        found += places[end:start]
        if plain:
            found.append(places[start])
        end = match.end()
    if not end:
        return None
    parts.append(text[end:])
    found += places[end:]
    return Layer("".join(parts), found)


def without_escapes(text: str) -> str:
    """The text without its outermost escapes."""
    return _ESCAPE.sub(_plain_or_same, text)


def escapes_at_most(text: str) -> int:
    """An upper bound on the escapes in a text, at the cost of a search for four characters."""
    return sum(map(text.count, _SIGNS))


def _plain(match: re.Match[str]) -> str | None:
    """The character an escape encodes, "" if it shows nothing, None if no key can hold it."""
    kind = match.lastgroup
    assert kind is not None
    found = match.group(kind)
    match kind:
        case "unseen":
            return ""
        case "char":
            return found
        case "name":
            char = html5.get(found, "")
            return char if len(char) == 1 and char.isascii() and char.isprintable() else None
    code = int(found) if kind == "decimal" else int(found, 16)
    return "" if code == 0 else chr(code) if 0x20 < code < 0x7F else None


def _plain_or_same(match: re.Match[str]) -> str:
    plain = _plain(match)
    return match.group() if plain is None else plain
