"""Text from elsewhere, made safe to show on a terminal.

A name, a reason or a reply may hold an escape sequence, a line break or a mark that turns the reading direction.
Shown raw it could hide the cursor, rewrite the lines above it or imitate our own output. So everything that is shown to
a person goes through here, in the status view and in the reports.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

# Controls, formats (bidi marks, zero widths), surrogates, private use and unassigned; line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_LOOKALIKES: Final = str.maketrans(
    {
        **dict.fromkeys("─━–−—·", "-"),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼", "+"),
        **dict.fromkeys("“”„", '"'),
        **dict.fromkeys("‘’", "'"),
        "…": "...",
        "→": ">",
        "×": "x",
        "█": "#",
        "░": ".",
    }
)
"""Replacements for the non-ASCII characters of our own output; of the same width where layout depends on it."""


def printable(text: str) -> str:
    """The same text on one line, with each character that is not visible written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _UNSAFE_CATEGORIES else char for char in text)


def counted(count: int, nouns: str) -> str:
    """`1 reply`, `2,000 lanes`; `nouns` in the plural."""
    noun = f"{nouns[:-3]}y" if nouns.endswith("ies") else nouns.removesuffix("s")
    return f"{count:,} {noun if count == 1 else nouns}"


def some_of(names: Sequence[str], most: int) -> str:
    """Names in a line; of very many the first."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def spelt_out(fault: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs: characters that an encoding lacks become similar ASCII, or escapes."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    lacking = fault.object[fault.start : fault.end].translate(_LOOKALIKES)
    return lacking.encode("ascii", "backslashreplace").decode("ascii"), fault.end
