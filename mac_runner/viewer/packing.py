"""Data of pages as files: a view as JSON, its repeated texts once, compressed, in Base64, inside a classic script.

A page that is opened by double click may neither fetch a file nor load a module, but it may load a script. So each
piece of data is a script that calls `__mac_data` with its name and one word of Base64, which no text of a model can
break out of. `viewer/src/published.ts` reads it. The same data always make the same bytes.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

BLOCK: Final = 1_000
"""How many conversations share a folder."""
CONVERSATION: Final = "c"
TURNS: Final = "t"
COMPARED: Final = "x"

_REPEATED_CHARS_MIN: Final = 24
_MARK: Final = "\x01"
"""A text that begins so is the number of a text in the table."""
_LEVEL: Final = 6

Plain: TypeAlias = dict[str, "Plain"] | list["Plain"] | tuple["Plain", ...] | str | int | float | bool | None


def data_name(folder: int, kind: str, number: int) -> str:
    """The name of the data of a conversation; `folder` is that of its run."""
    return f"{folder}/{kind}{number // BLOCK}/{number}"


def packed(value: object, clean: Callable[[str], str] = lambda text: text) -> bytes:
    """A struct, or a list or object of them, in Base64. Each text in it is passed through `clean`."""
    plain: Plain = msgspec.to_builtins(value)
    counts = Counter(text for text in _texts(plain) if len(text) >= _REPEATED_CHARS_MIN or text.startswith(_MARK))
    repeated = [text for text, count in counts.items() if count > 1 or text.startswith(_MARK)]
    places = {text: f"{_MARK}{place}" for place, text in enumerate(repeated)}
    shared = _with_texts(plain, lambda text: places[text] if text in places else clean(text))
    # A half of a surrogate pair is written as its escape, as all that is not ASCII.
    body = json.dumps([[clean(text) for text in repeated], shared], separators=(",", ":"), check_circular=False)
    return b64encode(gzip.compress(body.encode("ascii"), _LEVEL, mtime=0))


def script(name: str, data: bytes) -> bytes:
    """A script that gives a page the data of a name, which needs no quoting."""
    return b'__mac_data("' + name.encode("ascii") + b'","' + data + b'");\n'


def _texts(plain: Plain) -> Iterator[str]:
    match plain:
        case str():
            yield plain
        case dict():
            for part in plain.values():
                yield from _texts(part)
        case list() | tuple():
            for part in plain:
                yield from _texts(part)


def _with_texts(plain: Plain, change: Callable[[str], str]) -> Plain:
    match plain:
        case str():
            return change(plain)
        case dict():
            return {key: _with_texts(part, change) for key, part in plain.items()}
        case list() | tuple():
            return [_with_texts(part, change) for part in plain]
        case _:
            return plain
