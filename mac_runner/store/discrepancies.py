"""Where two JSON values differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mac_runner.store.records import encode_json
from mac_runner.types import JsonObject, JsonValue

_PLAIN_KEY = re.compile(r"[\w#-]+")


class Discrepancy(NamedTuple):
    """Where a value differs from the one expected: key path, and both values as JSON, None if missing."""

    path: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        return f"{self.path} is {_shown(self.found)}, expected {_shown(self.expected)}"


def discrepancies(found: JsonValue, expected: JsonValue) -> Iterator[Discrepancy]:
    """Every place where `found` is not `expected`; 1, 1.0 and true are different."""
    return _between(found, expected, "")


def _between(found: JsonValue, expected: JsonValue, path: str) -> Iterator[Discrepancy]:
    if isinstance(found, dict) and isinstance(expected, dict):
        yield from _between_objects(found, expected, path)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _between(one, other, f"{path}[{place}]")
    elif _encoded(found) != _encoded(expected):
        yield Discrepancy(path, _encoded(found), _encoded(expected))


def _between_objects(found: JsonObject, expected: JsonObject, path: str) -> Iterator[Discrepancy]:
    for key in {**expected, **found}:
        inner = _joined(path, key)
        if key in found and key in expected:
            yield from _between(found[key], expected[key], inner)
        else:
            yield Discrepancy(
                inner,
                _encoded(found[key]) if key in found else None,
                _encoded(expected[key]) if key in expected else None,
            )


def _joined(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{encode_json(key).decode('ascii')}]"
    return f"{path}.{key}" if path else key


def _encoded(value: JsonValue) -> str:
    try:
        return encode_json(value).decode("ascii")
    except ValueError:  # NaN and infinities, which a hand-written file may hold.
        return repr(value)


def _shown(value: str | None) -> str:
    return "missing" if value is None else f"{value:.80}"
