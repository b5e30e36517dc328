"""The words of a model made harmless, before others or a chat template read them; and the tags that are ours."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

THOUGHT_TAGS = frozenset({"thinking", "think"})
TOOL_TAG = "tool_request"
OBSERVATION_TAG = "observation"

# Without ASCII a long s in place of an s would match a name and then not be it.
_FLAGS = re.IGNORECASE | re.ASCII


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
