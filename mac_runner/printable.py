"""Text that came from elsewhere, made safe to show on a terminal.

A name, a reason or a reply may hold an escape sequence, a line break or a mark that turns the reading direction.
Shown raw it could hide the cursor, rewrite what stands above it or imitate our own output, so everything that
is shown to a person goes through here, in the status view as in the reports.
"""

from __future__ import annotations

import unicodedata

# Controls, formats (bidi marks, zero widths), surrogates, private use and unassigned; line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """The same text on one line, with each character that is not plainly visible written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _UNSAFE_CATEGORIES else char for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
