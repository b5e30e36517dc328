"""The bodies of answers: JSON of a struct, compressed, with a digest by which the browser knows it again."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import NamedTuple

import msgspec

GZIP_BYTES_MIN = 1024
_LEVEL = 5


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
    """A body of these bytes."""
    packed = gzip.compress(plain, _LEVEL, mtime=0) if len(plain) >= GZIP_BYTES_MIN else b""
    return Body(plain, packed, f'"{hashlib.blake2b(plain, digest_size=12).hexdigest()}"')
