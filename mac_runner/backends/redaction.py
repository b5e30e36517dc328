"""What servers and engines say, made fit to keep or to quote, and keys: read, and withheld from all of that. Pure.

A server or a proxy may repeat the key anywhere: in an error, a header, a page, a reply. Each text of a server that
enters an error or a message for the user passes `Redactor.quoted`, which withholds the whole quotation where it repeats
a piece of a key. Verdicts go by the original text, which is never shown.

But for words in it, a quotation contains at most four characters of the key in a row, in upper or lower case, so a key
that the server itself has cut or masked is found as well. The key is also found in escapes of JSON, URLs, HTML and byte
strings (up to three levels), in UTF-16, between invisible characters, in base64 and in hex.

Pieces of words are in many texts. Of a word in a key (`token` in `token-abc123`), and of a key that looks like words
as a whole, a quotation contains at most seven characters in a row. A key that is shorter than the piece that is looked
for is a placeholder (`x`, `EMPTY`, `ollama`) and no secret: nothing is withheld for it.

A reply is withheld only if it contains a long run of the key. A model that writes a word of the key is not leaking it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html.entities import html5
from types import TracebackType
from typing import Final

from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.printable import printable
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, TokenCount

KEY_CHARS_MAX: Final = 8_000
"""Servers take 8 KiB for a line of a header, including "Authorization: Bearer "."""
WITHHELD: Final = "(withheld: it repeats a key)"
"""What stands in the place of a quotation or a reply."""

_VARIABLE_CHARS_MAX: Final = 19
"""A longer name in lower case is not shown: it may be a key."""
_RUN_CHARS: Final = 5
"""A quotation with so many characters of a key in a row is withheld."""
_WORDS_RUN_CHARS: Final = 8
"""The same for what looks like words."""
_WORD: Final = re.compile(r"(?<![^\W_])(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)(?![^\W_])")
"""A word in a key: letters alone, between signs, as words are written."""
_HEX_CHARS: Final = 2 * _RUN_CHARS - 1
_BASE64_CHARS: Final = 6
"""Five of base64, and its parts of two more, are 38 bits: fewer than five characters of a key."""
_LEVELS_MAX: Final = 3
"""How many times escapes are undone."""

_REPLY_KEY_CHARS_MIN: Final = 8
_REPLY_RUN_CHARS: Final = 16
_REPLY_SHARE: Final = 8
"""A reply is withheld if it has a run of the key of 16 characters and of an eighth of the key."""

_TO_BASE64_OF_URLS: Final = str.maketrans("+/", "-_")

_UNSEEN: Final = "\x00\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
_ESCAPE: Final = re.compile(
    rf"[\\%&{_UNSEEN}](?:"
    r"(?<=\\)\\{0,7}(?:(?:u00|U000000|x|u\{)(?P<hex>[0-9A-Fa-f]{2})\}?|(?P<char>[\"'/\\]))"
    r"|(?<=%)(?:25){0,4}(?P<percent>[2-7][0-9A-Fa-f])"
    r"|(?<=&)(?:amp;){0,4}(?:\#(?:0{0,8}(?P<decimal>[0-9]{2,3})|[xX]0{0,8}(?P<entity>[0-9A-Fa-f]{2}));?"
    r"|(?P<name>[A-Za-z]{2,12};))"
    rf"|(?P<unseen>(?<=[{_UNSEEN}])))"
)
"""An escape of what a key can consist of, which is printable ASCII, or a character that shows nothing.

Every repetition has a bound, so a search takes time in proportion to the text. The pattern begins with the set of
first characters, which makes a search fast.
"""
ENGINE_ERROR_CHARS_MAX: Final = 300
"""How much of an engine's own words an error quotes."""
ENGINE_TOKENS_MAX: Final = 1 << 40
"""A token count beyond this counts nothing."""
_REASON_CHARS_MAX: Final = 40


def clipped(text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX) -> str:
    """`text` on one line, printable. The text of a server that has a key goes to `Redactor.quoted` instead."""
    return printable(on_one_line(text, chars_max))


def on_one_line(text: str, chars_max: int) -> str:
    """`text` in at most `chars_max` characters; `…` shows that something is left out."""
    searched = text[: 4 * chars_max]
    words = " ".join(searched.split())
    if len(searched) == len(text) and len(words) <= chars_max:
        return words
    return words[: chars_max - 1] + "…"


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


def key_in(environ: Mapping[str, str], variable: str) -> str | None:
    """The key in `variable`, or None. Raises ConfigError, without quoting it, for a key that no header can carry."""
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"the environment variable {variable} holds characters that no key has")
    if len(key) > KEY_CHARS_MAX:
        raise ConfigError(
            f"the environment variable {variable} holds {len(key):,} characters, and a header carries a key of at most "
            f"{KEY_CHARS_MAX:,}; set it to the key alone"
        )
    return key or None


def required_key(variable: str, environ: Mapping[str, str], *, path: tuple[str, ...]) -> str:
    """The key in `variable`, which the setting at `path` names. Raises ConfigError when there is none to send."""
    try:
        key = key_in(environ, variable)
    except ConfigError as error:
        raise ConfigError.at(path, str(error)) from None
    if key is None:
        # The user may have pasted the key itself, and some keys are valid names.
        name_shown = f" {variable}" if variable.isupper() or len(variable) <= _VARIABLE_CHARS_MAX else ""
        text = f"the environment variable{name_shown} is not set; set it to the key of the server"
        raise ConfigError.at(path, text)
    return key


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


class Redactor:
    """Withholds what repeats a key; None is none."""

    def __init__(self, *keys: str | None) -> None:
        known = [key for key in dict.fromkeys(keys) if key is not None]
        self._in_quotations = tuple(_any_piece(key) for key in known if _plain_pieces(key))
        self._in_replies = tuple(_long_runs(key) for key in known if not _is_common(key))

    def quoted(self, text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX) -> str:
        """A text of a server as `clipped` gives it, or WITHHELD if that would show a piece of a key."""
        words = on_one_line(text, chars_max)
        # An escape that `printable` writes may part a key, and its digits may extend a rest of the key to a piece.
        shown = printable(words)
        if any(pieces.are_in(said) for said in {words, shown} for pieces in self._in_quotations):
            return WITHHELD
        return shown

    def reply(self, text: str) -> str:
        """A model's reply, or WITHHELD if it contains a long run of a key."""
        return WITHHELD if any(pieces.are_in(text) for pieces in self._in_replies) else text


class redacting:  # noqa: N801 - it reads as the verb that it is
    """Around a call of a backend: no error leaves it with a text of the server that repeats a key.

    Our own errors lose their causes, which a traceback would print. An unexpected error of a library is replaced by
    one that quotes it. This is a class because a generator would cost each request three times as much.
    """

    __slots__ = ("_redactor",)

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, MacRunnerError):
            # Not raised again: its traceback would hold this frame, which holds it, and all that was read would stay
            # in memory until a collection.
            error.__cause__, error.__suppress_context__ = None, True
        elif isinstance(error, Exception) and not isinstance(error, MemoryError | OSError):
            raise RuntimeError(f"{type(error).__name__}: {self._redactor.quoted(str(error))}") from None


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces of a key, each of which is a plain search: the time does not depend on what a text consists of."""

    in_lower: tuple[str, ...]
    """Those that are looked for in a text in lower case."""
    in_base64: tuple[str, ...]
    runs: tuple[tuple[str, int], ...] = ()
    """The key in each form, and how much of it in a row counts; empty where a piece is enough."""

    def are_in(self, text: str) -> bool:
        """Whether a text contains what is looked for, or spells it in escapes."""
        for _ in range(_LEVELS_MAX + 1):
            if self._are_as_they_are_in(text):
                return True
            plain = _without_escapes(text[:REPLY_CHARS_MAX])
            if plain == text:
                return False
            text = plain
        return False

    def _are_as_they_are_in(self, text: str) -> bool:
        lower = text.lower()
        if not any(piece in lower for piece in self.in_lower) and not any(piece in text for piece in self.in_base64):
            return False
        return not self.runs or any(_has_run(said, *run) for said in (lower, text) for run in self.runs)


def _any_piece(key: str) -> _Pieces:
    """All that a quotation must not contain."""
    in_hex = (_pieces(_bytes(case).hex(), _HEX_CHARS) for case in {key, key.lower(), key.upper()})
    in_base64 = (_pieces(encoded, _BASE64_CHARS) for encoded in _in_base64(key))
    return _Pieces(
        in_lower=tuple(_plain_pieces(key).union(*in_hex)),
        in_base64=tuple(set().union(*in_base64)),
    )


def _plain_pieces(key: str) -> set[str]:
    """The pieces of the key itself; none of a key that is a placeholder."""
    words = [key] if _is_words(key) else _WORD.findall(key)
    of_words = {piece for word in words for piece in _pieces(word.lower(), _RUN_CHARS)}
    return {*_pieces(key.lower(), _RUN_CHARS)} - of_words | {*_pieces(key.lower(), _WORDS_RUN_CHARS)}


def _long_runs(key: str) -> _Pieces:
    """The long runs of the key; in base64 and hex they must be three quarters of it.

    Each contains one of some two dozen pieces, so that the search is fast where there is none.
    """
    plain = (key.lower(), min(len(key), max(_REPLY_RUN_CHARS, len(key) // _REPLY_SHARE)))
    in_hex, *in_base64 = ((form, len(form) * 3 // 4) for form in (_bytes(key).hex(), *_in_base64(key)))
    return _Pieces(
        in_lower=(*_pieces_of_runs(*plain), *_pieces_of_runs(*in_hex)),
        in_base64=tuple(piece for run in in_base64 for piece in _pieces_of_runs(*run)),
        runs=(plain, in_hex, *in_base64),
    )


def _has_run(text: str, key: str, run: int) -> bool:
    """Whether `text` has `run` characters of `key` in a row."""
    runs = {*_pieces(key, run)}
    return any(text[start : start + run] in runs for start in range(len(text) - run + 1))


def _pieces(text: str, size: int, step: int = 1) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text) - size + 1, step)]


def _pieces_of_runs(text: str, run: int) -> list[str]:
    """Pieces of a text such that each run of `run` characters contains one; the whole text if it is not longer."""
    # A run of 2 * size - 1 characters contains a whole piece, wherever it begins.
    size = len(text) if len(text) <= run else (run + 1) // 2
    return _pieces(text, size, size)


def _in_base64(key: str) -> set[str]:
    """The base64 of `key` in both alphabets, without the characters that depend on its neighbours.

    There is one for each of its three alignments.
    """
    encodings: set[str] = set()
    for before, first in ((0, 0), (1, 2), (2, 3)):
        data = b"\0" * before + _bytes(key)
        encoded = b64encode(data).decode("ascii")[first : len(data) * 8 // 6]
        encodings |= {encoded, encoded.translate(_TO_BASE64_OF_URLS)}
    return encodings


def _bytes(key: str) -> bytes:
    """A header carries ASCII alone, a variable anything."""
    return key.encode("utf-8", "surrogateescape")


def _is_words(key: str) -> bool:
    return not any(char.isdigit() for char in key) and (key.islower() or key.isupper() or key.istitle())


def _is_common(key: str) -> bool:
    return len(key) < _REPLY_KEY_CHARS_MIN or (_is_words(key) and len(key) < _REPLY_RUN_CHARS)


def _without_escapes(text: str) -> str:
    return _ESCAPE.sub(lambda match: match.group() if (plain := _plain(match)) is None else plain, text)


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
