"""The framing of the journal: one record, one line, one checksum (pure).

::

    8d2c1f09 {"id":"t000017","kind":"reply",...}\n
    crc32    JSON, ASCII, sorted keys, no spaces

A record is accepted only when its checksum agrees, so an altered byte never becomes a fact. The JSON is ASCII, so a
line ends at byte 0x0A and nowhere else, whatever a model wrote. A bad line costs itself only: reading goes on behind
the next newline, and even where the newline itself was lost, the frames on both sides of it are found again, because
the text ` {"` (after the checksum) cannot occur inside compact JSON.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from mac_runner import limits
from mac_runner.types import JsonObject, JsonValue

_CHECKSUM_CHARS = 8
_START = re.compile(rb'[0-9a-f]{8} \{"')
_encode = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode


class Line(NamedTuple):
    """One line of a file of frames, its newline left out; `is_ended` tells whether it had one.

    A line longer than a frame can be comes without its data: it is not kept in memory, only measured.
    """

    offset: int
    size_bytes: int
    data: bytes
    is_ended: bool


class Damage(NamedTuple):
    """A stretch of a file that holds no valid frame."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a file of frames holds. Bytes behind `good_length` are a torn tail: a write that a kill cut short."""

    records: tuple[JsonObject, ...]
    good_length: int
    damage: tuple[Damage, ...]


def encode_json(value: JsonValue) -> bytes:
    """The one JSON form of a value: equal values have equal bytes. Raises ValueError on NaN and infinities."""
    return _encode(value).encode("ascii")


def encode_frame(record: JsonObject) -> bytes:
    """The frame of a record. Raises ValueError when it is longer than a frame may be."""
    payload = encode_json(record)
    if len(payload) + _CHECKSUM_CHARS + 2 > limits.FRAME_BYTES_MAX:
        raise ValueError(f"a record of {len(payload)} bytes is longer than a frame may be ({limits.FRAME_BYTES_MAX})")
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def is_intact(data: bytes) -> bool:
    """Whether the checksum of one line without its newline agrees."""
    return data[: _CHECKSUM_CHARS + 1] == b"%08x " % zlib.crc32(data[_CHECKSUM_CHARS + 1 :])


def decode_frame(data: bytes) -> JsonObject | None:
    """The record of one line without its newline, or None when it is no intact frame."""
    if not is_intact(data):
        return None
    try:
        record = json.loads(data[_CHECKSUM_CHARS + 1 :])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a file given in pieces; holds one line in memory, and no line longer than a frame may be."""
    for block in _blocks(chunks):
        offset = block.offset
        for data in block.data.split(b"\n"):
            yield Line(offset, len(data) + block.dropped, data, block.is_ended)
            offset += len(data) + 1


def lines_with(
    pattern: re.Pattern[bytes], chunks: Iterable[bytes], wants: Callable[[re.Match[bytes]], bool] = lambda match: True
) -> Iterator[Line]:
    """The ended lines with a match of `pattern` that is wanted; all others are passed over at next to no cost."""
    for block in _blocks(chunks):
        passed = 0
        for match in pattern.finditer(block.data) if block.is_ended else ():
            if match.start() >= passed and wants(match):
                start = block.data.rfind(b"\n", 0, match.start()) + 1
                end = block.data.find(b"\n", match.end())
                passed = len(block.data) if end < 0 else end
                yield Line(block.offset + start, passed - start, block.data[start:passed], True)


class _Block(NamedTuple):
    """A stretch of whole lines without the newline at its end, or what a file that ends in none has at its end.

    Where a line is too long to be kept, only the number of its bytes is told, in `dropped`.
    """

    offset: int
    data: bytes
    is_ended: bool
    dropped: int = 0


def _blocks(chunks: Iterable[bytes]) -> Iterator[_Block]:
    offset, dropped, tail = 0, 0, b""
    for chunk in chunks:
        data = tail + chunk
        if dropped and (end := data.find(b"\n")) >= 0:
            yield _Block(offset, b"", True, dropped + end)
            offset, dropped, data = offset + dropped + end + 1, 0, data[end + 1 :]
        end = data.rfind(b"\n")
        if end >= 0:
            yield _Block(offset, data[:end], True)
            offset += end + 1
        tail = data[end + 1 :]
        if dropped or len(tail) > limits.FRAME_BYTES_MAX:
            dropped, tail = dropped + len(tail), b""
    if dropped or tail:
        yield _Block(offset, tail, False, dropped)


def records_of(line: Line) -> tuple[tuple[JsonObject, ...], bool]:
    """The records of an ended line, and whether the line is damaged.

    An intact line has one record. A damaged one may still have some: the neighbours of a lost newline.
    """
    record = decode_frame(line.data)
    if record is not None:
        return (record,), False
    starts = [match.start() for match in _START.finditer(line.data)]
    # The byte that was the newline stands before each start; a last start has the end of the line behind it.
    stretches = pairwise([*starts, len(line.data) + 1])
    found = (decode_frame(line.data[start : following - 1]) for start, following in stretches)
    return tuple(record for record in found if record is not None), True


def scan(data: bytes) -> Scan:
    """Everything a file of frames holds."""
    records: list[JsonObject] = []
    damage: list[Damage] = []
    good_length = 0
    for line in lines([data]):
        if not line.is_ended:
            break
        found, is_damaged = records_of(line)
        records.extend(found)
        if is_damaged:
            damage.append(Damage(line.offset, line.size_bytes))
        good_length = line.offset + line.size_bytes + 1
    return Scan(records=tuple(records), good_length=good_length, damage=tuple(damage))
