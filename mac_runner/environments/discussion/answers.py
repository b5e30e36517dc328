"""The fields of a reply: a JSON object, alone, in a fence or in prose, mended where it is broken; or plain words.

What is ambiguous is not guessed: two objects that answer differently are a Problem, and so is the value at which a
reply was cut off. The reply itself stays as it is in the transcript.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self, SupportsIndex

from json_repair import repair_json

from mac_runner.environments.markup import after_thoughts, opens_thought
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, JsonObject, JsonValue, Reply


class Cause(StrEnum):
    """What was wrong with a reply. A thought may have been left open by its writer, or by the limit on tokens."""

    EMPTY = "empty"
    OPEN_THOUGHT = "open_thought"
    CUT_OFF_THOUGHT = "cut_off_thought"
    CUT_OFF = "cut_off"
    NO_OBJECT = "no_object"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    NEGATED = "negated"
    UNMATCHED = "unmatched"
    NO_CHALLENGE = "no_challenge"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply, or a part of it, says nothing that can be used."""

    cause: Cause
    reason: str


ANSWER_CHARS_MAX: Final = 2_000
SHORT_ANSWER_CHARS_MAX: Final = 200
"""Up to this a reply without an object is an answer by itself, and the index keeps an open answer."""
_OBJECTS_MAX: Final = 200
_REPAIR_CHARS_MAX: Final = 8_192
_REPAIR_BRACKETS_MAX: Final = 64
_REPAIR_LOOKS_MAX: Final = 18_432
"""How often the library may look into the text that it mends."""

_FENCE: Final = re.compile(r"```[ \t]*(?:[A-Za-z0-9_-]*)[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_KEY_MARKS: Final = re.compile(r"[\s_*.\-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fields of a reply by their names in small letters; other values are written as text."""

    fields: dict[str, str]
    prose: str = ""

    def get(self, name: str) -> str:
        """The text of a field; empty when it is not there."""
        return self.fields.get(name, "")


def read_fields(reply: Reply, wanted: Sequence[str]) -> Found | Problem:
    """What a reply says under the names `wanted`, the decisive one first; without any of them, its prose."""
    said = reply.text[:REPLY_CHARS_MAX].strip()
    # In a reply that is an object from end to end, what looks like a thought is a part of a text.
    if not said.startswith("{") or not said.endswith("}"):
        said = after_thoughts(said)
    is_cut = reply.finish_reason is FinishReason.LENGTH
    if opens_thought(said):
        reason = "it was cut off inside its thoughts; think less" if is_cut else "its thoughts were never closed"
        return Problem(Cause.CUT_OFF_THOUGHT if is_cut else Cause.OPEN_THOUGHT, reason)
    if not said:
        return Problem(Cause.EMPTY, "it was empty")
    if "{" not in said:
        return _lines(said, wanted)
    objects = [fields for fields in map(_lowered, _whole_objects(said)) if fields.keys() & set(wanted)]
    if not objects:
        mended = _lowered(_mended(said))
        if mended.keys() & set(wanted):
            if is_cut and list(mended)[-1] == wanted[0]:
                return Problem(Cause.CUT_OFF, f"it was cut off in its {wanted[0]}; be shorter")
            objects = [mended]
    if not objects:
        return _lines(said, wanted)
    if len({_text(fields.get(wanted[0])) for fields in objects}) > 1:
        return Problem(Cause.AMBIGUOUS, f"it holds several objects with different values of {wanted[0]}")
    return Found(fields={name: _text(value) for name, value in objects[-1].items() if name in wanted})


def _lowered(found: JsonObject) -> JsonObject:
    return {_KEY_MARKS.sub("_", key.strip().casefold()): value for key, value in found.items()}


def _whole_objects(text: str) -> Iterator[JsonObject]:
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
            yield value
        start = text.find("{", end)


def _merged(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """An object; a key that comes twice with different values has all of them."""
    found: JsonObject = {}
    for key, value in pairs:
        found[key] = value if found.get(key, value) == value else [found[key], value]
    return found


def _mended(text: str) -> JsonObject:
    """The object that was meant, by a library's best guess; an empty one when there is none."""
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


def _lines(text: str, wanted: Sequence[str]) -> Found:
    """The fields as lines of `name: value`, the last of each name; all other lines are prose."""
    line = _line_of(tuple(wanted))
    fields: dict[str, str] = {}
    prose: list[str] = []
    for row in text.splitlines():
        if match := line.match(row):
            name, value = match.group(1).casefold(), match.group(2).strip(" *_")
            fields[name] = value if fields.get(name, value) == value else f"{fields[name]} / {value}"
        else:
            prose.append(row)
    return Found(fields=fields, prose="\n".join(prose).strip() if fields else text)


@lru_cache(maxsize=256)
def _line_of(wanted: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, wanted))
    return re.compile(rf"^[\s>*_#\-]*(?:(?:my|the)\s+)?(?:final\s+)?({names})[\s*_]*[:=][\s*_]*(.+)$", re.IGNORECASE)


def _text(value: JsonValue) -> str:
    """A value as text: numbers and booleans as one would write them, a list of one as that one."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value.strip()
        case [only]:
            return _text(only)
        case list():
            return " / ".join(map(_text, value))
        case dict():
            return json.dumps(value, ensure_ascii=False)[:ANSWER_CHARS_MAX]
        case _:
            return str(value)
