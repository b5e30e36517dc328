"""JSON objects in the text of a reply: well-formed ones, and the one that a broken text means."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self, SupportsIndex

from mac_runner.types import JsonObject, JsonValue

_OBJECTS_MAX: Final = 200
_REPAIR_CHARS_MAX: Final = 8_192
_REPAIR_BRACKETS_MAX: Final = 64
_REPAIR_LOOKS_MAX: Final = 18_432
"""How often the library may look into the text that it mends."""

_FENCE: Final = re.compile(r"```[ \t]*(?:[A-Za-z0-9_-]*)[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_KEY_MARKS: Final = re.compile(r"[\s_*.\-]+")


class Placed(NamedTuple):
    """An object and where it begins and ends in the text."""

    value: JsonObject
    start: int
    end: int


def lowered(found: JsonObject) -> JsonObject:
    """The object with its keys in small letters and one way of joining words."""
    return {_KEY_MARKS.sub("_", key.strip().casefold()): value for key, value in found.items()}


def whole_objects(text: str) -> Iterator[Placed]:
    """The well-formed JSON objects of the text, not those inside one of them."""
    decoder = json.JSONDecoder(object_pairs_hook=_merged, strict=False)
    start, found = text.find("{"), 0
    while start >= 0 and found < _OBJECTS_MAX:
        found += 1
        try:
            value, end = decoder.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError:
            end = start + 1
        else:
            yield Placed(value, start, end)
        start = text.find("{", end)


def _merged(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """An object; a key that comes twice with different values has all of them."""
    found: JsonObject = {}
    for key, value in pairs:
        found[key] = value if found.get(key, value) == value else [found[key], value]
    return found


def may_have_key(text: str, names: Iterable[str]) -> bool:
    """Whether a mended object of the text can have a key of these lowered names: mending invents no letters.

    It costs next to nothing, and mending costs some ten milliseconds at worst.
    """
    known = _KEY_MARKS.sub("_", text.casefold())
    return "\\" in text or any(name in known for name in names)


def mended_object(text: str) -> JsonObject:
    """The object that was meant, by a library's best guess; an empty one when there is none."""
    from json_repair import repair_json

    fence = _FENCE.search(text)
    body = fence.group(1) if fence and "{" in fence.group(1) else text
    start = body.find("{")
    if start < 0:
        return {}
    end = body.rfind("}")
    broken = body[start : end + 1 if end > start else len(body)][:_REPAIR_CHARS_MAX]
    # A fault inside a fault costs the library its time over again, and no reply is nested for a purpose.
    if broken.count("{") + broken.count("[") > _REPAIR_BRACKETS_MAX:
        return {}
    try:
        value = repair_json(_Metered(broken), return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError, _TooLongError):
        return {}
    return value if isinstance(value, dict) else {}


class _TooLongError(Exception):
    """Looking for the object takes longer than an object is worth."""


class _Metered(str):
    """A text that counts how often it is looked into: a fault inside a fault has it read over and over again."""

    __slots__ = ("_looks",)
    _looks: list[int]

    def __new__(cls, text: str, looks: list[int] | None = None) -> Self:
        """The text, with its count, which what is cut from it shares."""
        self = super().__new__(cls, text)
        self._looks = looks or [0]
        return self

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        self._looks[0] += 1
        if self._looks[0] > _REPAIR_LOOKS_MAX:
            raise _TooLongError
        found = super().__getitem__(place)
        return type(self)(found, self._looks) if isinstance(place, slice) else found

    def __add__(self, other: str) -> str:
        return type(self)(super().__add__(other), self._looks)
