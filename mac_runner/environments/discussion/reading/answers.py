"""The fields of a reply: a JSON object, alone, in a fence or in prose, mended where it is broken; or plain words.

What is ambiguous is not guessed: two objects that answer differently are a Problem, and so is the value at which a
reply was cut off. The reply itself stays as it is in the transcript. Answers are read in tags, in boxes and in nested
objects as well (`marks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from mac_runner.environments.discussion.reading.marks import (
    answer_name,
    emphasis,
    ends_within,
    gathered,
    leaves,
    marks_of,
    unboxed,
)
from mac_runner.environments.json_objects import may_have_key, mended_object, whole_objects
from mac_runner.environments.markup import after_thoughts, opens_thought
from mac_runner.results import COPIED
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, JsonValue, Reply


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
    PLACEHOLDER = COPIED


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply, or a part of it, says nothing that can be used."""

    cause: Cause
    reason: str


ANSWER_CHARS_MAX: Final = 2_000
SHORT_ANSWER_CHARS_MAX: Final = 200
"""Up to this a reply without an object is an answer by itself, and the index keeps an open answer."""
WORDINGS_MAX: Final = 4
"""So many wordings of the answer in one reply are compared. More cost too much; they count as different answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fields of a reply by their names in small letters; other values are written as text."""

    fields: dict[str, str]
    prose: str = ""
    also: tuple[str, ...] = ()
    """The answer as other places of the reply word it; all of them have to mean the same."""

    def get(self, name: str) -> str:
        """The text of a field; empty when it is not there."""
        return self.fields.get(name, "")


def read_fields(reply: Reply, wanted: Sequence[str], *, signs: Container[str] = frozenset()) -> Found | Problem:
    """What a reply says under the names `wanted`, the decisive one first; without any of them, its prose.

    `signs` belong to answers, and are not taken for emphasis.
    """
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
        return _prose(said, wanted, is_cut=is_cut, signs=signs)
    objects = [one for placed in whole_objects(said) for one in gathered(placed.value, wanted)]
    if not objects:
        mended = mended_object(said) if may_have_key(said, wanted) else {}
        objects = gathered(mended, wanted)
        deciding = answer_name(wanted) or wanted[0]
        if objects and is_cut and any(ends_within(mended, name) for name in {wanted[0], deciding}):
            return _cut_off(deciding)
    if not objects:
        return _prose(said, wanted, is_cut=is_cut, signs=signs)
    if len({_text(fields.get(wanted[0])) for fields in objects}) > 1:
        return Problem(Cause.AMBIGUOUS, f"it holds several objects with different values of {wanted[0]}")
    found = Found(fields={name: _text(value) for name, value in objects[-1].items() if name in wanted})
    name = answer_name(wanted)
    if name is None or name not in found.fields:
        return found
    answers = [part for leaf in leaves(objects[-1][name]) for part in unboxed(_text(leaf), signs)]
    return Found(fields=found.fields | {name: answers[-1]}, also=_others(answers))


def _cut_off(name: str) -> Problem:
    return Problem(Cause.CUT_OFF, f"it was cut off in its {name}; be shorter")


def _others(answers: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer for answer in answers[:-1] if answer != answers[-1]))


def _prose(text: str, wanted: Sequence[str], *, is_cut: bool, signs: Container[str]) -> Found | Problem:
    """The fields of a reply without an object: those that are marked, and lines of `name: value`."""
    lines = _lines(text, wanted, signs)
    marks, name = marks_of(text, wanted, signs), answer_name(wanted)
    if marks.is_open and is_cut and name is not None:
        return _cut_off(name)
    if not marks.answers and not marks.fields:
        return lines
    found = _lines(marks.rest, wanted, signs)
    # A heading `Answer:` has nothing behind it.
    line = found.get(name) if name is not None else ""
    answers = [*(unboxed(line, signs) if line else ()), *marks.answers]
    decided = {name: answers[-1]} if answers and name is not None else {}
    fields = found.fields | dict(marks.fields) | decided
    return Found(fields=fields, prose=found.prose, also=_others(answers) if answers else ())


def _lines(text: str, wanted: Sequence[str], signs: Container[str]) -> Found:
    """The fields as lines of `name: value`, the last of each name; all other lines are prose."""
    around = emphasis(signs)
    line = _line_of(tuple(wanted), around)
    fields: dict[str, str] = {}
    prose: list[str] = []
    for row in text.splitlines():
        if match := line.match(row):
            name, value = match.group(1).casefold(), match.group(2).strip(f" {around}")
            fields[name] = value if fields.get(name, value) == value else f"{fields[name]} / {value}"
        else:
            prose.append(row)
    return Found(fields=fields, prose="\n".join(prose).strip() if fields else text)


@lru_cache(maxsize=256)
def _line_of(wanted: tuple[str, ...], around: str) -> re.Pattern[str]:
    names = "|".join(map(re.escape, wanted))
    return re.compile(
        rf"^[\s>*_#\-]*(?:(?:my|the)\s+)?(?:final\s+)?({names})[\s*_]*[:=][\s{around}]*(.+)$", re.IGNORECASE
    )


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
