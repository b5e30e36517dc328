"""Text that a server sent: made fit to keep or to quote, and freed of its escapes. Pure.

`scalars_only` is for replies, `clipped` for errors; `tokens_of` and `own_reason` read what stands beside a reply, in
whatever form. The other functions undo the escapes of JSON, URLs, HTML and byte
strings, so that `redaction` finds a key in them. Only escapes that a key can consist of are undone: those of printable
ASCII, and characters that show nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html.entities import html5
from typing import Final, NamedTuple

from mac_runner.printable import printable
from mac_runner.types import FinishReason, TokenCount

ENGINE_ERROR_CHARS_MAX: Final = 300
"""How much of an engine's own words an error quotes."""
ENGINE_TOKENS_MAX: Final = 1 << 40
"""A token count beyond this counts nothing."""
_REASON_CHARS_MAX: Final = 40
CUT: Final = "…"
"""Marks the end of a quotation that leaves something out."""

_UNSEEN: Final = "\x00\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
_ESCAPE: Final = re.compile(
    rf"[\\%&{_UNSEEN}](?:"
    r"(?<=\\)\\{0,7}(?:(?:u00|U000000|x|u\{)(?P<hex>[0-9A-Fa-f]{2})\}?|(?P<char>[\"'/\\]))"
    r"|(?<=%)(?:25){0,4}(?P<percent>[2-7][0-9A-Fa-f])"
    r"|(?<=&)(?:amp;){0,4}(?:\#(?:0{0,8}(?P<decimal>[0-9]{2,3})|[xX]0{0,8}(?P<entity>[0-9A-Fa-f]{2}));?"
    r"|(?P<name>[A-Za-z]{2,12};))"
    rf"|(?P<unseen>(?<=[{_UNSEEN}])))"
)
"""Every repetition has a bound, so a search takes time in proportion to the text. The pattern begins with the set of
first characters, which makes a search fast.
"""
_SIGNS: Final = ("\\", "%", "&", "\x00")


def scalars_only(text: str) -> str:
    """`text` with each half of a surrogate pair replaced: JSON can spell one, UTF-8 cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clipped(text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX, *, goes_on: bool = False) -> str:
    """`text` on one line, printable, at most `chars_max` long; `CUT` shows that something is left out.

    `goes_on` says that `text` itself was cut. The text of a server that has a key goes to `Redactor.quoted` instead.
    """
    searched = text[: 4 * chars_max]
    words = " ".join(searched.split())
    if not goes_on and len(searched) == len(text) and len(words) <= chars_max:
        return printable(words)
    return printable(words[: chars_max - 1]) + CUT


def tokens_of(*, prompt: object, completion: object, cached: object = None) -> TokenCount:
    """Tokens as a server counts them. What can be no number of tokens is unknown, as where a server does not count."""
    known, of_cache = token_count(prompt), token_count(cached)
    return TokenCount(prompt=known, cached=of_cache if of_cache <= known else 0, completion=token_count(completion))


def token_count(value: object) -> int:
    """A whole number from 0, else 0; a gateway whose language has one kind of number may write 10 as 10.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= ENGINE_TOKENS_MAX:
        return 0
    return int(value) if value == int(value) else 0


def own_reason(said: object, quoted: Callable[[str, int], str] = clipped) -> FinishReason:
    """Why a reply ended, in a server's own word; UNKNOWN where it gives none."""
    word = quoted(said, _REASON_CHARS_MAX) if isinstance(said, str) else ""
    # OVERFLOW is ours, for what is no reply.
    return FinishReason.UNKNOWN if word in ("", FinishReason.OVERFLOW) else FinishReason(word)


class Layer(NamedTuple):
    """A text without its escapes, and the place of each character in the original."""

    text: str
    places: Sequence[int]
    """One more than there are characters: the last is the end."""


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
    """`text` without its outermost escapes."""
    return _ESCAPE.sub(lambda match: match.group() if (plain := _plain(match)) is None else plain, text)


def escapes_at_most(text: str) -> int:
    """An upper bound on the escapes in `text`, at the cost of a search for four characters."""
    return sum(map(text.count, _SIGNS))


def _plain(match: re.Match[str]) -> str | None:
    """The character an escape encodes, "" if it shows nothing, None if no key can contain it."""
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
