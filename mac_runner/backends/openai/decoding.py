"""Bytes of an answer → a JSON object, or one typed error, whatever the bytes are.

The standard decoder takes NaN for a number, keeps the last of two values with one key, and raises RecursionError for
enough brackets or a ValueError for enough digits. Here each of these is the same malformed reply.
"""

from __future__ import annotations

import json
import zlib
from typing import Final, NamedTuple, NoReturn

from mac_runner.backends.openai.faults import malformed
from mac_runner.backends.redaction import Redactor
from mac_runner.limits import HTTP_BODY_BYTES_MAX, HTTP_GZIP_MEMBERS_MAX
from mac_runner.types import JsonObject, JsonValue

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"
_QUOTED_CHARS: Final = 200
_LOOKED_AT_BYTES: Final = 4096
"""Enough for a quotation of _QUOTED_CHARS in any characters."""
_PLAIN: Final = frozenset({"", "identity"})


class _Member(NamedTuple):
    """A member of a gzip body unpacked, and what follows it."""

    plain: bytes
    rest: bytes


def decode(body: bytes, redactor: Redactor) -> JsonObject:
    """The JSON object in `body`, with or without a byte order mark. Raises SendingError, and nothing else."""
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
    except RecursionError:
        raise malformed("JSON nested too deep") from None
    except ValueError as error:  # Of the bytes, of the JSON, of a number with too many digits, or of ours below.
        # A page of some proxy, or a stream that was not asked for: its beginning tells what the error cannot.
        start = redactor.quoted(body[:_LOOKED_AT_BYTES].decode("utf-8-sig", "replace"), _QUOTED_CHARS)
        raise malformed(f"no JSON: {error}; it begins: {start}" if start else f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise malformed(f"JSON, but {type(value).__name__} in the place of an object")
    return value


def unpacked(body: bytes, content_encoding: str, redactor: Redactor) -> bytes:
    """The body before a server compressed it, unasked. Raises SendingError, also when it unpacks beyond the limit."""
    encoding = content_encoding.strip().lower()
    if encoding in _PLAIN:
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise malformed(f"compressed as {redactor.quoted(content_encoding, 40)!r}, which was not asked for")
    plain, rest = _member(body, HTTP_BODY_BYTES_MAX)
    members = [plain]
    size = len(plain)
    while rest.startswith(_GZIP_MAGIC):  # What else may follow is padding.
        if len(members) == HTTP_GZIP_MEMBERS_MAX:
            raise malformed(f"gzip of more than {HTTP_GZIP_MEMBERS_MAX} members")
        plain, rest = _member(rest, HTTP_BODY_BYTES_MAX - size)
        members.append(plain)
        size += len(plain)
    return b"".join(members)


def _member(body: bytes, size_max: int) -> _Member:
    """The first of the members that `body` is made of (RFC 1952)."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise malformed(f"no gzip: {error}") from None
    if len(plain) > size_max:
        raise malformed(f"more than {HTTP_BODY_BYTES_MAX} bytes unpacked")
    if not inflater.eof:
        raise malformed("gzip that ends too early")
    return _Member(plain, inflater.unused_data)


def _without_twins(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_without_twins, parse_constant=_no_number)
