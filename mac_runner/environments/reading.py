"""The forms in which a model may reply: private thoughts, tags, JSON objects, boxes; and what of it is no answer.

Each environment has its own vocabulary (the acts of a game, the fields of a discussion, the schema of a question) and
its own rules for what is ambiguous. What a form is, and where it begins and ends in a text, is said here, once. Nothing
here raises for any text, and all of it is read at the cost of a few passes.

In markup a reply is private thought, perhaps a tool request, and one act, each in a tag of its own. Whatever is outside
the tags is private too. The scanner knows tags by name and looks inside none of them: what is between `<speak>` and
`</speak>` is text, whatever it looks like.

A small model copies a form that looks like an answer: `{"answer": "your answer in a few words"}` came back word for
word. So a form says in words what goes where, and shows BLANK inside. What is copied all the same is no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Self, SupportsIndex

from mac_runner.environments.markup import OBSERVATION_TAG, THOUGHT_TAGS, TOOL_TAG, compatible
from mac_runner.results import COPIED
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, JsonObject, JsonValue, Reply


class Cause(StrEnum):
    """What was wrong with a reply. A thought may have been left open by its writer, or by the limit on tokens."""

    EMPTY = "empty"
    OPEN_THOUGHT = "open_thought"
    CUT_OFF_THOUGHT = "cut_off_thought"
    CUT_OFF = "cut_off"
    PLACEHOLDER = COPIED
    # No form, or no use of it.
    MALFORMED = "malformed"
    NO_OBJECT = "no_object"
    MISSING = "missing"
    INVALID = "invalid"
    REFUSED = "refused"
    # No answer, or none that is clear.
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    NEGATED = "negated"
    REFUSAL = "refusal"
    NO_CHALLENGE = "no_challenge"
    # No act, or none that can be done.
    NO_ACT = "no_act"
    SEVERAL_ACTS = "several_acts"
    ILLEGAL = "illegal"
    TOO_MANY_TOOLS = "too_many_tools"
    INVALID_MOVE = "invalid_move"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply, or a part of it, cannot be used: the cause for statistics, the reason for its writer."""

    cause: Cause
    reason: str


def spoken(reply: Reply, *, may_be_object: bool) -> str | Problem:
    """What a reply says beside its thoughts.

    In one that is an object from end to end, what looks like a thought is a part of a text.
    """
    said = reply.text[:REPLY_CHARS_MAX].strip()
    if not (may_be_object and said.startswith("{") and said.endswith("}")):
        said = after_thoughts(said)
    if opens_thought(said):
        if reply.finish_reason is FinishReason.LENGTH:
            return Problem(Cause.CUT_OFF_THOUGHT, "it was cut off inside its thoughts; think less")
        return Problem(Cause.OPEN_THOUGHT, "its thoughts were never closed")
    return said or Problem(Cause.EMPTY, "it was empty")


# Without ASCII a long s in place of an s would match a name and then not be it.
_FLAGS = re.IGNORECASE | re.ASCII
# The look-behind lets a name begin at its first letter only: without it a long word costs the square of its length.
_ATTRIBUTE = re.compile(r"""(?<![a-z_])([a-z_]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""", _FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """One top-level tag of a reply; `text` is all that is in it, stripped."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """The tags of a reply in order, thoughts left out, the first one that was never closed, if any, and what is left
    of the text behind the last one.
    """

    tags: tuple[Tag, ...]
    unclosed: str | None = None
    rest: str = ""


@lru_cache(maxsize=64)
def _opening(names: frozenset[str]) -> re.Pattern[str]:
    known = sorted({*names, *THOUGHT_TAGS, TOOL_TAG, OBSERVATION_TAG}, key=len, reverse=True)
    return re.compile(rf"<\s*({'|'.join(map(re.escape, known))})((?:\s[^<>]*?)?)(/?)>", _FLAGS)


@lru_cache(maxsize=256)
def _closing(name: str) -> re.Pattern[str]:
    return re.compile(rf"<\s*/\s*{re.escape(name)}\s*>", _FLAGS)


_THOUGHT_TAG = re.compile(rf"<\s*(?:(/)\s*)?(?:{'|'.join(sorted(THOUGHT_TAGS))})\s*>", _FLAGS)


def holds_thought(text: str) -> bool:
    """Whether `text` holds a tag of private thought."""
    return _THOUGHT_TAG.search(text) is not None


def opens_thought(text: str) -> bool:
    """Whether `text` begins with a thought."""
    match = _THOUGHT_TAG.match(text)
    return match is not None and not match.group(1)


def _thought_ends(text: str) -> int:
    """Where a thought ends that the reply did not open itself: some chat templates open it at the end of the prompt."""
    is_open, end = False, 0
    for match in _THOUGHT_TAG.finditer(text):
        if match.group(1) and not is_open:
            end = match.end()
        is_open = not match.group(1)
    return end


def scan(text: str, names: Collection[str]) -> Markup:
    """Find the top-level tags of `text` that are in `names`, besides thoughts and tool requests. Never raises.

    Everything before the end of a thought that was never opened is thought. A tool request that was never closed counts
    as closed at the end, where a stop sequence may have cut it; everything after a tool request is left out, for the
    model wrote it without having seen the answer.
    """
    opening = _opening(frozenset(names))
    tags: list[Tag] = []
    position = _thought_ends(text)
    while match := opening.search(text, position):
        name = match.group(1).lower()
        if match.group(3):
            inside, position = "", match.end()
        elif closing := _closing(name).search(text, match.end()):
            inside, position = text[match.end() : closing.start()], closing.end()
        elif name == TOOL_TAG:
            inside, position = text[match.end() :], len(text)
        else:
            return Markup(tags=tuple(tags), unclosed=name)
        if name not in THOUGHT_TAGS and name != OBSERVATION_TAG:
            tags.append(Tag(name=name, attributes=_attributes(match.group(2)), text=inside.strip()))
        if name == TOOL_TAG:
            return Markup(tags=tuple(tags))
    return Markup(tags=tuple(tags), rest=text[position:].strip())


def _attributes(text: str) -> dict[str, str]:
    return {key.lower(): double or single for key, double, single in _ATTRIBUTE.findall(text)} if text else {}


def after_thoughts(text: str) -> str:
    """What follows the closed thoughts a reply begins with, stripped; the first of them need not have been opened."""
    text = text[_thought_ends(text) :].strip()
    opening = _opening(THOUGHT_TAGS)
    while (match := opening.match(text)) and match.group(1).lower() in THOUGHT_TAGS and not match.group(3):
        closing = _closing(match.group(1)).search(text, match.end())
        if closing is None:
            break
        text = text[closing.end() :].lstrip()
    return text


class Thoughts(NamedTuple):
    """The private thoughts of a reply, and what it says besides."""

    thought: str
    said: str


_JSON_THOUGHT = re.compile(
    rf'"(?:{"|".join(sorted(THOUGHT_TAGS))})"\s*:\s*("(?:[^"\\]|\\.)*"?)\s*,?\s*', _FLAGS | re.DOTALL
)


def thoughts(text: str, apart: str | None = None) -> Thoughts:
    """Part the thoughts of a reply from the rest, for a reader. Never raises.

    Thoughts are what is in a thought's tags, up to the end where a tag was never closed and from the beginning where it
    was never opened, and the text `thinking` of a JSON object, which may be cut off. Those that the engine gave `apart`
    come first.
    """
    found = _parted(text) if "{" in text or holds_thought(text) else Thoughts("", text.strip())
    return found._replace(thought="\n".join(filter(None, (apart.strip(), found.thought)))) if apart else found


def _parted(text: str) -> Thoughts:
    position = _thought_ends(text)
    parts = [_THOUGHT_TAG.sub("\n", text[:position])]
    said, start = [], None
    for match in _THOUGHT_TAG.finditer(text, position):
        if match.group(1):
            if start is not None:
                parts.append(text[start : match.start()])
                start, position = None, match.end()
        elif start is None:
            said.append(text[position : match.start()])
            start = match.end()
    said.append("" if start is not None else text[position:])
    parts.append("" if start is None else text[start:])
    rest = "".join(said).strip()
    if (written := _JSON_THOUGHT.search(rest)) and "{" in rest[: written.start()]:
        parts.append(_unquoted(written.group(1)))
        rest = (rest[: written.start()] + rest[written.end() :]).strip()
    return Thoughts("\n".join(filter(None, (part.strip() for part in parts))), rest)


def _unquoted(quoted: str) -> str:
    """The text of a JSON string, which may lack its end."""
    closed = quoted if len(quoted) > 1 and quoted.endswith('"') else quoted + '"'
    try:
        return str(json.loads(closed, strict=False))
    except ValueError:
        return quoted.strip('"')


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
        # `NaN` is not equal to itself.
        found[key] = value if key not in found or found[key] == value else [found[key], value]
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


_BOXES_MAX: Final = 32
_BOX_CHARS_MAX: Final = 2_000
_NESTED_MAX: Final = 4
# In JSON that is not escaped `\b`, `\f` and `\t` are a backspace, a form feed and a tab.
_BOX: Final = re.compile(r"(?:\\boxed|\x08oxed|\\fbox|\x0cbox)\s*\{")
_BRACE: Final = re.compile(r"[{}]")
_COMMAND: Final = re.compile(r"(?:\\text|\text|\\math|\\mbox)\w*\s*\{([^{}]*)\}")
_MATHS: Final = re.compile(r"\\[()\[\],;!]|[$~]|\\ ")


def boxes(text: str, signs: Container[str] = frozenset()) -> tuple[str, ...]:
    """What the boxes of a text hold, such as `\\boxed{B}`; `signs` belong to it and are no maths."""
    return tuple(_boxes(text, signs))


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
    for _ in range(_NESTED_MAX):
        text = _COMMAND.sub(r"\1", text)
    return _MATHS.sub(lambda found: found[0] if found[0] in signs else "", text).strip()


BLANK: Final = "..."
"""What a form shows in the place of free words."""

_SHOWN: Final = r"""(?:\s*[:=]|\b[^<>\n]*>)[\s\[(<*`]*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\n<]+))"""
"""What stands behind the name of a field: in an object, a line or a tag."""
_JINJA: Final = re.compile(r"\{[{%#]")
_WORD: Final = re.compile(r"[^\W_]+")
_LOOKED_AT_CHARS_MAX: Final = 1_000
_BEGINNING_WORDS_MIN: Final = 3


def is_placeholder(text: str, shown: Iterable[str] = ()) -> bool:
    """Whether a text is a BLANK, or is or begins with one of the texts `shown`: case, punctuation and quotes aside.

    An answer may begin with a word or two of them by chance (`Reason: …`), so these count only as the whole text.
    """
    looked_at = compatible(text[:_LOOKED_AT_CHARS_MAX]).casefold()
    if (first := _WORD.search(looked_at)) is None:
        return BLANK in looked_at
    forms = [words for words in map(_words, shown) if words[:1] == (first[0],)]
    # Nearly every text begins otherwise, and is not taken apart.
    said = _words(looked_at) if forms else ()
    return any(said == words or (len(words) >= _BEGINNING_WORDS_MIN and said[: len(words)] == words) for words in forms)


@lru_cache(maxsize=256)
def shown_in(template: str, name: str) -> tuple[str, ...]:
    """What a template shows as the value of the field `name`, each up to what is filled in; no single words.

    One word may be an answer as well as an example of one.
    """
    found = re.finditer(rf"(?i)(?<![\w-]){re.escape(name)}[\"'*_`]*{_SHOWN}", template)
    values = (_JINJA.split(next(filter(None, each.groups()), ""))[0] for each in found)
    return tuple(value for value in values if len(_words(value)) > 1)


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(compatible(text).casefold()))
