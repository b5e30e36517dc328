"""The fields of a reply: a JSON object, alone, in a fence or in prose, mended where it is broken; or plain words.

What is ambiguous is not guessed: two objects that answer differently are a Problem, and so is the value at which a
reply was cut off. The reply itself stays as it is in the transcript. Answers are read in nested objects as well, and
where a text marks them: `\\boxed{B}`, `<answer>B</answer>`, a line `Final answer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from mac_runner.environments.reading import (
    Cause,
    Problem,
    boxes,
    lowered,
    may_have_key,
    mended_object,
    spoken,
    whole_objects,
)
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply

ANSWER_CHARS_MAX: Final = 2_000
SHORT_ANSWER_CHARS_MAX: Final = 200
"""Up to this a reply without an object is an answer by itself, and the index keeps an open answer."""
WORDINGS_MAX: Final = 4
"""So many wordings of the answer in one reply are compared. More cost too much; they count as different answers."""

ANSWER_NAMES: Final = ("answer", "verdict", "alternative")
"""The fields that hold an answer to the question."""

_DEPTH_MAX: Final = 4
_FINAL: Final = "final_"
_LEAVES: Final = (
    *("answer", "verdict", "choice", "option", "selection", "selected", "id", "label", "letter", "text", "value"),
    *("choice_id", "choice_text", "selected_choice", "selected_option", "answer_id", "answer_text", "final_answer"),
)
"""The keys under which an object that stands for an answer names it."""


class Found(Struct, frozen=True, kw_only=True):
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
    said = spoken(reply, may_be_object=True)
    if isinstance(said, Problem):
        return said
    is_cut = reply.finish_reason is FinishReason.LENGTH
    if "{" not in said:
        return _prose(said, wanted, is_cut=is_cut, signs=signs)
    objects = [one for placed in whole_objects(said) for one in _gathered(placed.value, wanted)]
    if not objects:
        mended = mended_object(said) if may_have_key(said, wanted) else {}
        objects = _gathered(mended, wanted)
        deciding = answer_name(wanted) or wanted[0]
        if objects and is_cut and any(_ends_within(mended, name) for name in {wanted[0], deciding}):
            return _cut_off(deciding)
    if not objects:
        return _prose(said, wanted, is_cut=is_cut, signs=signs)
    if len({_text(fields.get(wanted[0])) for fields in objects}) > 1:
        return Problem(Cause.AMBIGUOUS, f"it holds several objects with different values of {wanted[0]}")
    found = Found(fields={name: _text(value) for name, value in objects[-1].items() if name in wanted})
    name = answer_name(wanted)
    if name is None or name not in found.fields:
        return found
    answers = [part for leaf in _leaves(objects[-1][name]) for part in _unboxed(_text(leaf), signs)]
    return Found(fields=found.fields | {name: answers[-1]}, also=_others(answers))


def _cut_off(name: str) -> Problem:
    return Problem(Cause.CUT_OFF, f"it was cut off in its {name}; be shorter")


def _others(answers: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer for answer in answers[:-1] if answer != answers[-1]))


def _prose(text: str, wanted: Sequence[str], *, is_cut: bool, signs: Container[str]) -> Found | Problem:
    """The fields of a reply without an object: in tags, boxes, below `Final answer`, and in lines of `name: value`."""
    name, around = answer_name(wanted), _emphasis(signs)
    fields: dict[str, str] = {}
    answers: list[str] = []
    is_open = False
    kept: list[str] = []
    end = 0
    for tag in _tag_of(tuple(wanted)).finditer(text):
        is_final, found, content = bool(tag[1]), tag[2].casefold(), tag[3].strip()
        kept.append(text[end : tag.start()])
        end = tag.end()
        if found == name or (is_final and name is not None and found in ANSWER_NAMES):
            answers.extend(_unboxed(content, signs))
            is_open = not tag[4]
        else:
            fields[found] = content
    if is_open and is_cut and name is not None:
        return _cut_off(name)
    rest = "".join([*kept, text[end:]]).strip()
    lines = _lines(rest, wanted, around)
    if name is None:
        return Found(fields=lines.fields | fields, prose=lines.prose)
    answers.extend(boxes(rest, signs))
    answers.extend(part for line in _final_lines(rest, around) for part in _unboxed(line, signs))
    if line := lines.get(name):  # A heading `Answer:` has nothing behind it.
        answers = [*_unboxed(line, signs), *answers]
    decided = {name: answers[-1]} if answers else {}
    return Found(fields=lines.fields | fields | decided, prose=lines.prose, also=_others(answers))


def _lines(text: str, wanted: Sequence[str], around: str) -> Found:
    """The fields as lines of `name: value`, the last of each name; all other lines are prose."""
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


def answer_name(wanted: Sequence[str]) -> str | None:
    """The one of some fields that holds an answer."""
    return next((name for name in wanted if name in ANSWER_NAMES), None)


def _emphasis(signs: Container[str]) -> str:
    """What may be around an answer and is no part of it."""
    return "".join(char for char in "*_" if char not in signs)


def _unboxed(text: str, signs: Container[str] = frozenset()) -> tuple[str, ...]:
    """What the boxes of a text hold; the text itself where it has none."""
    return boxes(text, signs) or (text,)


def _final_lines(text: str, around: str) -> Iterator[str]:
    """What stands behind `Final answer:` or below it as a heading."""
    is_heading, edges, final_line = False, f" {around}", _final_line(around)
    for line in text.splitlines():
        if is_heading and line.strip():
            is_heading = False
            yield line.strip(edges)
        elif found := final_line.match(line):
            if found[1] and found[2].strip(edges):
                yield found[2].strip(edges)
            is_heading = not found[2].strip(edges)


@lru_cache(maxsize=4)
def _final_line(around: str) -> re.Pattern[str]:
    return re.compile(
        r"^[\s>*_#\-]*(?:(?:so|thus|therefore|hence)\W{1,9})?(?:(?:my|the|our)\s+)?"
        rf"final[\s_\-]+(?:answer|verdict)\b[\s*_]*(is\b|[:=])?[\s{around}:]*(.*)$",
        re.IGNORECASE,
    )


@lru_cache(maxsize=256)
def _tag_of(wanted: tuple[str, ...]) -> re.Pattern[str]:
    known = wanted if answer_name(wanted) is None else (*wanted, "answer")
    names = "|".join(map(re.escape, dict.fromkeys(known)))
    return re.compile(rf"<(final[\s_\-]?)?({names})>(.*?)(</(?:final[\s_\-]?)?\2>|\Z)", re.IGNORECASE | re.DOTALL)


def _gathered(value: JsonObject, wanted: Sequence[str], depth: int = _DEPTH_MAX) -> list[JsonObject]:
    """The objects with fields that are wanted: this one, or those inside it."""
    fields = {key: found for key, found in _named(value, wanted).items() if key in wanted}
    decisive = answer_name(wanted) or wanted[0]
    if decisive in fields or depth == 0:
        return [fields] if fields else []
    inside = [entry for one in value.values() for entry in (one if isinstance(one, list) else [one])]
    found = [one for entry in inside if isinstance(entry, dict) for one in _gathered(entry, wanted, depth - 1) if one]
    return [fields | one for one in found] or ([fields] if fields else [])


def _named(value: JsonObject, wanted: Sequence[str]) -> JsonObject:
    """The object with `final_answer` under the name of the answer; where it has both, the answer is all of them."""
    fields = lowered(value)
    name = answer_name(wanted)
    for key in [key for key in fields if name is not None and key.removeprefix(_FINAL) in ANSWER_NAMES and key != name]:
        if key.startswith(_FINAL) and name is not None:
            given = fields.pop(key)
            fields[name] = {"answer": fields[name], "final_answer": given} if name in fields else given
    return fields


def _leaves(value: JsonValue, depth: int = _DEPTH_MAX) -> list[JsonValue]:
    """The values that an object names as the answer, in all its keys for one; any other value itself."""
    if not isinstance(value, dict) or depth == 0:
        return [value]
    fields = lowered(value)
    named = [fields[key] for key in _LEAVES if key in fields]
    if not named and len(fields) == 1:
        named = list(fields.values())
    return [leaf for one in named for leaf in _leaves(one, depth - 1)] or [value]


def _ends_within(value: JsonObject, name: str) -> bool:
    """Whether the last entry of an object, or of the last object inside it, is the field `name`."""
    while value:
        key, last = list(lowered(value).items())[-1]
        if key.removeprefix(_FINAL) == name:
            return True
        if not isinstance(last, dict):
            return False
        value = last
    return False
