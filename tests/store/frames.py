"""Everything that a file of frames holds, for the tests of its readers."""

from __future__ import annotations

from typing import NamedTuple

from mac_runner.store.testing import lines, records_of
from mac_runner.types import JsonObject


class Scan(NamedTuple):
    """Bytes after `good_length` are a torn tail: a write that a kill cut short. Damage is (offset, size)."""

    records: tuple[JsonObject, ...]
    good_length: int
    damage: tuple[tuple[int, int], ...]


def scan(data: bytes) -> Scan:
    records: list[JsonObject] = []
    damage: list[tuple[int, int]] = []
    good_length = 0
    for line in lines([data]):
        if not line.is_ended:
            break
        found, is_damaged = records_of(line)
        records.extend(found)
        if is_damaged:
            damage.append((line.offset, line.size_bytes))
        good_length = line.offset + line.size_bytes + 1
    return Scan(records=tuple(records), good_length=good_length, damage=tuple(damage))
