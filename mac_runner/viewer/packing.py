"""The bytes that pages are made of: answers of the server, data as files, and the front end itself.

A page that is opened by double click may neither fetch a file nor load a module, but it may load a script. So each
piece of data in a file is a script that calls `__mac_data` with its name and one word of Base64, which no text of a
model can break out of: a view as JSON, its repeated texts once, compressed. `viewer/src/published.ts` reads it. The
same data always make the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from mac_runner.files import read_regular

BLOCK: Final = 1_000
"""How many conversations share a folder."""
CONVERSATION: Final = "c"
TURNS: Final = "t"
COMPARED: Final = "x"
STYLE_LINK: Final = b'<link rel="stylesheet" href="static/app.css">'
SCRIPT_LINK: Final = b'<script src="static/app.js"></script>'

_FILE_BYTES_MAX: Final = 1 << 20
_HEAD: Final = re.compile(rb'<meta charset="utf-8">\n')
_GZIP_BYTES_MIN: Final = 1024
_ANSWER_LEVEL: Final = 5
_FILE_LEVEL: Final = 6
_REPEATED_CHARS_MIN: Final = 24
_MARK: Final = "\x01"
"""A text that begins so is the number of a text in the table."""
Plain: TypeAlias = dict[str, "Plain"] | list["Plain"] | tuple["Plain", ...] | str | int | float | bool | None


def data_name(folder: int, kind: str, number: int) -> str:
    """The name of the data of a conversation; `folder` is that of its run."""
    return f"{folder}/{kind}{number // BLOCK}/{number}"


def packed(value: object, clean: Callable[[str], str] = lambda text: text) -> bytes:
    """A struct, or a list or object of them, in Base64. Each text in it is passed through `clean`."""
    plain: Plain = msgspec.to_builtins(value)
    counts = Counter(text for text in strings_in(plain) if len(text) >= _REPEATED_CHARS_MIN or text.startswith(_MARK))
    repeated = [text for text, count in counts.items() if count > 1 or text.startswith(_MARK)]
    places = {text: f"{_MARK}{place}" for place, text in enumerate(repeated)}
    shared = _with_texts(plain, lambda text: places[text] if text in places else clean(text))
    # A half of a surrogate pair is written as its escape, as all that is not ASCII.
    body = json.dumps([[clean(text) for text in repeated], shared], separators=(",", ":"), check_circular=False)
    return b64encode(gzip.compress(body.encode("ascii"), _FILE_LEVEL, mtime=0))


def script(name: str, data: bytes) -> bytes:
    """A script that gives a page the data of a name, which needs no quoting."""
    return b'__mac_data("' + name.encode("ascii") + b'","' + data + b'");\n'


def strings_in(value: object) -> Iterator[str]:
    """The strings in plain data, without keys."""
    match value:
        case str():
            yield value
        case dict():
            for part in value.values():
                yield from strings_in(part)
        case list() | tuple():
            for part in value:
                yield from strings_in(part)


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


class Body(NamedTuple):
    """A body as it is and compressed; `packed` is empty where that would save nothing."""

    plain: bytes
    packed: bytes
    tag: str
    """The value of `ETag`."""


def body_of(value: object) -> Body:
    """The JSON of a struct, of a list of them or of plain values."""
    return packed_body(encoded(value))


def encoded(value: object) -> bytes:
    """The JSON of a struct. A lone surrogate, which UTF-8 lacks, is written as its escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def packed_body(plain: bytes) -> Body:
    packed = gzip.compress(plain, _ANSWER_LEVEL, mtime=0) if len(plain) >= _GZIP_BYTES_MIN else b""
    return Body(plain, packed, f'"{hashlib.blake2b(plain, digest_size=12).hexdigest()}"')


def static_file(name: str) -> bytes:
    return read_regular(Path(__file__).parent / "static" / name, _FILE_BYTES_MAX)


def page_with(policy: str, metas: Mapping[str, str]) -> bytes:
    """The page with a content security policy, which comes before all that it governs, and with metas."""
    lines = [f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">']
    lines += [f'<meta name="{name}" content="{escape(value)}">' for name, value in metas.items()]
    added = "".join(f"{line}\n" for line in lines).encode()
    page, count = _HEAD.subn(lambda found: found[0] + added, static_file("index.html"), count=1)
    assert count == page.count(STYLE_LINK) == page.count(SCRIPT_LINK) == 1, "index.html is not as it was built"
    return page
