"""Answers that a reply marks in its text: `\\boxed{B}`, `<answer>B</answer>`, a line `Final answer`; and in objects.

All of it is read at the cost of a few passes over the text.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from mac_runner.environments.json_objects import lowered
from mac_runner.types import JsonObject, JsonValue

ANSWER_NAMES: Final = ("answer", "verdict", "alternative")
"""The fields that hold an answer to the question."""

_BOXES_MAX: Final = 32
_BOX_CHARS_MAX: Final = 2_000
_DEPTH_MAX: Final = 4
_FINAL: Final = "final_"

# In JSON that is not escaped `\b`, `\f` and `\t` are a backspace, a form feed and a tab.
_BOX: Final = re.compile(r"(?:\\boxed|\x08oxed|\\fbox|\x0cbox)\s*\{")
_BRACE: Final = re.compile(r"[{}]")
_COMMAND: Final = re.compile(r"(?:\\text|\text|\\math|\\mbox)\w*\s*\{([^{}]*)\}")
_MATHS: Final = re.compile(r"\\[()\[\],;!]|[$~]|\\ ")
_LEAVES: Final = (
    *("answer", "verdict", "choice", "option", "selection", "selected", "id", "label", "letter", "text", "value"),
    *("choice_id", "choice_text", "selected_choice", "selected_option", "answer_id", "answer_text", "final_answer"),
)
"""The keys under which an object that stands for an answer names it."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a text has in tags, in boxes and under the heading of a final answer; and the rest of it."""

    fields: Mapping[str, str]
    answers: tuple[str, ...]
    rest: str
    is_open: bool
    """Whether the tag of an answer has no end."""


def answer_name(wanted: Sequence[str]) -> str | None:
    """The one of some fields that holds an answer."""
    return next((name for name in wanted if name in ANSWER_NAMES), None)


def emphasis(signs: Container[str]) -> str:
    """What may be around an answer and is no part of it."""
    return "".join(char for char in "*_" if char not in signs)


def marks_of(text: str, wanted: Sequence[str], signs: Container[str] = frozenset()) -> Marks:
    """The marked fields of a text; `signs` belong to answers."""
    name = answer_name(wanted)
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
            answers.extend(unboxed(content, signs))
            is_open = not tag[4]
        else:
            fields[found] = content
    rest = "".join([*kept, text[end:]]).strip()
    if name is not None:
        answers.extend(_boxes(rest, signs))
        answers.extend(part for line in _final_lines(rest, emphasis(signs)) for part in unboxed(line, signs))
    return Marks(fields=fields, answers=tuple(answers), rest=rest, is_open=is_open)


def unboxed(text: str, signs: Container[str] = frozenset()) -> tuple[str, ...]:
    """What the boxes of a text hold; the text itself where it has none."""
    return tuple(_boxes(text, signs)) or (text,)


def _boxes(text: str, signs: Container[str]) -> Iterator[str]:
    end = 0
    for box in list(_BOX.finditer(text))[-_BOXES_MAX:]:
        if box.start() < end:
            continue
        depth = 1
        for brace in _BRACE.finditer(text, box.end(), box.end() + _BOX_CHARS_MAX):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = brace.end()
                yield _without_maths(text[box.end() : brace.start()], signs)
                break


def _without_maths(text: str, signs: Container[str]) -> str:
    for _ in range(_DEPTH_MAX):
        text = _COMMAND.sub(r"\1", text)
    return _MATHS.sub(lambda found: found[0] if found[0] in signs else "", text).strip()


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


def gathered(value: JsonObject, wanted: Sequence[str], depth: int = _DEPTH_MAX) -> list[JsonObject]:
    """The objects with fields that are wanted: this one, or those inside it."""
    fields = {key: found for key, found in _named(value, wanted).items() if key in wanted}
    decisive = answer_name(wanted) or wanted[0]
    if decisive in fields or depth == 0:
        return [fields] if fields else []
    inside = [entry for one in value.values() for entry in (one if isinstance(one, list) else [one])]
    found = [one for entry in inside if isinstance(entry, dict) for one in gathered(entry, wanted, depth - 1) if one]
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


def leaves(value: JsonValue, depth: int = _DEPTH_MAX) -> list[JsonValue]:
    """The values that an object names as the answer, in all its keys for one; any other value itself."""
    if not isinstance(value, dict) or depth == 0:
        return [value]
    fields = lowered(value)
    named = [fields[key] for key in _LEAVES if key in fields]
    if not named and len(fields) == 1:
        named = list(fields.values())
    return [leaf for one in named for leaf in leaves(one, depth - 1)] or [value]


def ends_within(value: JsonObject, name: str) -> bool:
    """Whether the last entry of an object, or of the last object inside it, is the field `name`."""
    while value:
        key, last = list(lowered(value).items())[-1]
        if key.removeprefix(_FINAL) == name:
            return True
        if not isinstance(last, dict):
            return False
        value = last
    return False
