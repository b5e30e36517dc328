"""Keys: read from the environment, and redacted in everything that servers and engines say. Pure.

A server or a proxy may repeat the key anywhere: in an error, a header, a page, a reply. Each text of a server that
enters an error or a message for the user passes `Redactor.quoted`, which redacts first and cuts second. Verdicts go by
the original text, which is never shown.

A quotation contains at most four characters of the key in a row, in upper or lower case. Any run of five is redacted,
so a key that the server itself has cut or masked is found as well. The redactor also finds the key in escapes of JSON,
URLs, HTML and byte strings (up to three levels), in UTF-16, between invisible characters, in base64 and in hex.

A short key is usually a placeholder (`EMPTY`, `ollama`) and no secret. It is redacted as a separate word only, so that
the name of a model keeps its `llama`.

A reply changes only if it contains a long piece of the key. A model that writes a word of the key is not leaking it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, NamedTuple

from mac_runner.backends.server_text import (
    ENGINE_ERROR_CHARS_MAX,
    Layer,
    clipped,
    escapes_at_most,
    inside,
    without_escapes,
)
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.types import REPLY_CHARS_MAX

KEY_CHARS_MAX: Final = 8_000
"""Servers take 8 KiB for a line of a header, including "Authorization: Bearer "."""

_VARIABLE_CHARS_MAX: Final = 19
"""A longer name in lower case is not shown: it may be a key."""
_REDACTED: Final = "***"
_RUN_CHARS: Final = 5
"""A run of this many characters of the key is redacted."""
_HEX_CHARS: Final = 2 * _RUN_CHARS - 1
_BASE64_CHARS: Final = 6
"""Five of base64, and its parts of two more, are 38 bits: fewer than five characters of a key."""
_PLACEHOLDER_CHARS_MAX: Final = 7
"""A key of letters alone up to this length is redacted as a word."""
_LEVELS_MAX: Final = 3
"""How many times escapes are undone."""
_AHEAD_CHARS: Final = 128
"""A quotation is searched this far behind its end: a short key may continue there."""

_REPLY_KEY_CHARS_MIN: Final = 8
_REPLY_RUN_CHARS: Final = 16
_REPLY_SHARE: Final = 8
"""A reply is redacted if it has a run of the key of 16 characters and of an eighth of the key."""

_BASE64_WORD: Final = re.compile(r"[A-Za-z0-9+/_-]{6,}")
_HEX_WORD: Final = re.compile(r"[0-9a-f]{9,}")
_TO_BASE64: Final = str.maketrans("-_", "+/")
_TO_BASE64_OF_URLS: Final = str.maketrans("+/", "-_")
_TO_LOWER: Final = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


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
        raise ConfigError(f"{'.'.join(path)}: {error}", key=path) from None
    if key is None:
        # The user may have pasted the key itself, and some keys are valid names.
        name_shown = f" {variable}" if variable.isupper() or len(variable) <= _VARIABLE_CHARS_MAX else ""
        text = f"the environment variable{name_shown} is not set; set it to the key of the server"
        raise ConfigError(f"{'.'.join(path)}: {text}", key=path)
    return key


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


class _Span(NamedTuple):
    """A part of a text that shows a part of the key."""

    start: int
    end: int


class Redactor:
    """Redacts keys; None is none."""

    def __init__(self, *keys: str | None) -> None:
        known = dict.fromkeys(key for key in keys if key is not None)
        self._finders = tuple(map(_finder, known))
        self._repetitions = tuple(_Repetition(key) for key in known if not _is_common(key))

    def quoted(self, text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX) -> str:
        """A text of a server, redacted and then `clipped`."""
        searched_max = 4 * chars_max
        line = clipped(self._redacted(text, searched_max), chars_max, goes_on=len(text) > searched_max)
        # `clipped` writes escapes, and the digits of one may extend a rest of the key to five characters.
        return self._redacted(line, len(line))

    def reply(self, text: str) -> str:
        """A model's reply; unchanged unless it contains a long piece of a key."""
        if not any(repetition.is_in(text) for repetition in self._repetitions):
            return text
        return self._redacted(text, REPLY_CHARS_MAX)

    def _redacted(self, text: str, chars_max: int) -> str:
        """The first `chars_max` characters, redacted."""
        if not self._finders:
            return text[:chars_max]
        searched = text[: chars_max + _AHEAD_CHARS]
        spans: list[_Span] = []
        layer: Layer | None = Layer(searched, range(len(searched) + 1))
        for _ in range(_LEVELS_MAX + 1):
            if layer is None:
                break
            places = layer.places
            found = (span for find in self._finders for span in find(layer.text))
            spans += [_Span(places[start], places[end]) for start, end in found]
            layer = inside(layer)
        return _without(searched, spans, chars_max)


class redacting:  # noqa: N801 - it reads as the verb that it is
    """Around a call of a backend: no error leaves it with an unredacted text of the server.

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
            raise RuntimeError(self._redactor.quoted(f"{type(error).__name__}: {error}")) from None


def _finder(key: str) -> Callable[[str], Iterable[_Span]]:
    """The search for `key` in one layer of a text."""
    if len(key) < _RUN_CHARS or (len(key) <= _PLACEHOLDER_CHARS_MAX and key.isalpha()):
        word = re.compile(rf"(?<![0-9A-Za-z]){re.escape(key)}(?![0-9A-Za-z])", re.IGNORECASE | re.ASCII)
        return lambda text: (_Span(*match.span()) for match in word.finditer(text))
    runs = _runs(key.lower(), _RUN_CHARS)
    cases = {key, key.lower(), key.upper()}
    in_hex = frozenset().union(*(_runs(_bytes(case).hex(), _HEX_CHARS) for case in cases))
    in_base64 = frozenset().union(*(_runs(encoded, _BASE64_CHARS) for encoded in _in_base64(key)))

    def spans(text: str) -> Iterable[_Span]:
        lower = _lower(text)
        yield from _found(lower, runs, _RUN_CHARS)
        for word in _HEX_WORD.finditer(lower):
            yield from _found(word.group(), in_hex, _HEX_CHARS, word.start())
        for word in _BASE64_WORD.finditer(text):
            yield from _found(word.group().translate(_TO_BASE64), in_base64, _BASE64_CHARS, word.start())

    return spans


def _runs(text: str, size: int) -> frozenset[str]:
    return frozenset(text[start : start + size] for start in range(len(text) - size + 1))


def _found(text: str, runs: frozenset[str], size: int, offset: int = 0) -> list[_Span]:
    """The spans of `text` that are one of `runs`, moved by `offset`."""
    return [
        _Span(offset + start, offset + start + size)
        for start in range(len(text) - size + 1)
        if text[start : start + size] in runs
    ]


def _in_base64(key: str) -> list[str]:
    """The base64 of `key` at each of its three alignments, without the characters that depend on its neighbours."""
    encodings = []
    for before, first in ((0, 0), (1, 2), (2, 3)):
        data = b"\0" * before + _bytes(key)
        encodings.append(b64encode(data).decode("ascii")[first : len(data) * 8 // 6])
    return encodings


def _bytes(key: str) -> bytes:
    """A header carries ASCII alone, a variable anything."""
    return key.encode("utf-8", "surrogateescape")


def _is_common(key: str) -> bool:
    """Whether a reply may contain `key` by chance: a short key, or one that looks like words."""
    is_words = not any(char.isdigit() for char in key) and (key.islower() or key.isupper() or key.istitle())
    return len(key) < _REPLY_KEY_CHARS_MIN or (is_words and len(key) < _REPLY_RUN_CHARS)


class _Repetition:
    """A fast search for long pieces of a key in a reply.

    Every run of the key that is long enough contains one of some two dozen pieces. Each of them is a plain search, so
    the time does not depend on the length of the key. In base64 and hex a run must be three quarters of the key.
    """

    def __init__(self, key: str) -> None:
        plain = _pieces(key.lower(), max(_REPLY_RUN_CHARS, len(key) // _REPLY_SHARE))
        encodings = [encoded.translate(table) for encoded in _in_base64(key) for table in ({}, _TO_BASE64_OF_URLS)]
        self._in_lower = plain + _large_pieces(_bytes(key).hex())
        self._in_base64 = tuple({piece: None for encoded in encodings for piece in _large_pieces(encoded)})
        self._escapes_min = len(plain)
        """An escape breaks at most one piece: with fewer escapes a whole key is found without undoing them."""

    def is_in(self, text: str) -> bool:
        """Whether a reply contains a long piece, or its escapes do."""
        layer = text
        for _ in range(_LEVELS_MAX + 1):
            lower = layer.lower()
            if any(piece in lower for piece in self._in_lower) or any(piece in layer for piece in self._in_base64):
                return True
            if escapes_at_most(layer) < self._escapes_min:
                return False
            layer = without_escapes(layer[:REPLY_CHARS_MAX])
        return False


def _pieces(text: str, run: int) -> tuple[str, ...]:
    """Pieces of a text such that each run of `run` characters contains one; the whole text if it is not longer."""
    if len(text) <= run:
        return (text,)
    size = (run + 1) // 2  # A run of 2 * size - 1 characters contains a whole piece, wherever it begins.
    return tuple(text[start : start + size] for start in range(0, len(text) - size + 1, size))


def _large_pieces(text: str) -> tuple[str, ...]:
    return _pieces(text, len(text) * 3 // 4)


def _lower(text: str) -> str:
    """The text in lower case, each character at its old place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_TO_LOWER)


def _without(text: str, spans: list[_Span], end: int) -> str:
    """The text up to `end`, with one mark for all spans that touch."""
    if not spans:
        return text[:end]
    parts: list[str] = []
    done = 0
    for span in sorted(spans):
        if span.start >= end:
            break
        if span.start > done or not parts:
            parts += (text[done : span.start], _REDACTED)
        done = max(done, span.end)
    parts.append(text[done:end])
    return "".join(parts)
