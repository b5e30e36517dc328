"""The markup agents answer in, and what is done to their words before others read them.

A reply is private thought, perhaps a tool request, and one act, each in a tag of its own. Whatever is outside the
tags is private too. The scanner knows tags by name and looks inside none of them: what is between `<speak>` and
`</speak>` is text, whatever it looks like.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

THOUGHT_TAGS = frozenset({"thinking", "think"})
TOOL_TAG = "tool_request"
OBSERVATION_TAG = "observation"

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


# Template markers of chat models that are written in square brackets, such as [INST], [gMASK] and [/TOOL_CALLS].
_BRACKETED_MARKER = re.compile(r"\[(/?[A-Za-z_]{2,})\]")
_LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_STRUCTURE = str.maketrans(
    {
        **dict.fromkeys("<〈⟨❬❰⧼ᐸ", "‹"),
        **dict.fromkeys(">〉⟩❭❱⧽ᐳ", "›"),
        "[": "(",
        "]": ")",
        "|": "¦",
        **dict.fromkeys("“”„‟❝❞〝〞〟🙶🙷🙸", '"'),
        # Signs without a width that are letters or marks to Unicode.
        **dict.fromkeys("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", None),
        **dict.fromkeys((*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)), None),
    }
)


# Private characters are not visible, so no text brings them along.
_SET_ASIDE = str.maketrans("\ufdfa\ufdfb", "\ue000\ue001")
_PUT_BACK = str.maketrans("\ue000\ue001", "\ufdfa\ufdfb")


@lru_cache(maxsize=4096)
def defuse(text: str) -> str:
    """Words of a player as others may read them: one line, without anything that could pass for structure.

    Control, format and unassigned characters go; line ends become ` / `; compatibility forms are folded (NFKC), so that
    look-alikes are caught with what they look like; angle and square brackets, bars and curly quotes are replaced by
    harmless look-alikes, so that neither a stamp nor a chat template's marker can be written. Doing it twice changes
    nothing more. The raw text stays in the transcript.
    """
    # Invisible characters go before folding, or they would keep apart what folds together without them.
    lines = (compatible(_visible(part)) for part in _LINE_ENDS.split(text))
    spaced = (" ".join(line.split()) for line in lines)
    joined = " / ".join(line for line in spaced if line)
    return joined.translate(_STRUCTURE)


def disarm(reply: str, names: Collection[str]) -> str:
    """A model's own reply as it is sent back to it: our tags stay, nothing else that a chat template knows does."""
    return _BRACKETED_MARKER.sub(r"(\1)", _foreign(frozenset(names)).sub("‹", reply))


@lru_cache(maxsize=64)
def _foreign(names: frozenset[str]) -> re.Pattern[str]:
    """The angle bracket of a tag that is not ours."""
    known = "|".join(map(re.escape, sorted({*names, *THOUGHT_TAGS, TOOL_TAG, OBSERVATION_TAG})))
    return re.compile(rf"<(?!/?(?:{known})[\s/>])", _FLAGS)


def compatible(text: str) -> str:
    """`text` in compatibility form (NFKC), but for the two signs that each mean a sentence of 8 or 18 letters."""
    if "\ufdfa" not in text and "\ufdfb" not in text:
        return unicodedata.normalize("NFKC", text)
    return unicodedata.normalize("NFKC", text.translate(_SET_ASIDE)).translate(_PUT_BACK)


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isspace() or unicodedata.category(char)[0] != "C")
