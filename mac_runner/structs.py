"""Values as `msgspec` structs and structs as JSON, from any thread.

msgspec learns a class at its first use, in steps between which other threads run. A thread that uses the class at that
moment crashes the process. So each class is learned here under a lock before it is used.
"""

from __future__ import annotations

import json
from threading import RLock
from typing import Final, TypeVar, cast

import msgspec

from mac_runner.types import JsonObject

_LOCK: Final = RLock()
_LEARNED: Final[set[object]] = set()
_DECODERS: Final[dict[object, msgspec.json.Decoder[object]]] = {}

T = TypeVar("T")


def convert(value: object, kind: type[T]) -> T:
    """`value` as `kind`, as `msgspec.convert` does it. Raises msgspec.ValidationError for what does not fit."""
    if kind not in _LEARNED:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _LEARNED.add(kind)
    try:
        return msgspec.convert(value, kind)
    except UnicodeEncodeError as fault:
        # Where another type is due, it looks into the text.
        raise msgspec.ValidationError(f"a text that is half a surrogate pair ({fault.object!r:.40})") from None


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as `kind`; what `kind` does not name is skipped and costs little.

    Raises msgspec.DecodeError, or UnicodeDecodeError, for what does not fit, and for half of a surrogate pair in a text
    that is read: `json.loads` and `convert` take that.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        with _LOCK:
            decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
            _LEARNED.add(kind)
    return cast("T", decoder.decode(data))


def as_json(value: msgspec.Struct) -> JsonObject:
    """A struct as JSON values."""
    data = encode(value)
    try:
        return cast("JsonObject", msgspec.json.decode(data))
    except msgspec.DecodeError:  # Half of a surrogate pair.
        return cast("JsonObject", json.loads(data))


def encode(value: object) -> bytes:
    """A struct as JSON. Texts of models may hold halves of surrogate pairs: these are written as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")
