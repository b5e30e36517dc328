"""Text that an engine sent, made fit to keep as a reply or to quote in an error. Pure."""

from __future__ import annotations

from typing import Final

from mac_runner.limits import ENGINE_ERROR_CHARS_MAX
from mac_runner.printable import printable

CUT: Final = "…"
"""Stands for what is left out at the end of a quotation."""


def scalars_only(text: str) -> str:
    """JSON can spell half a surrogate pair, UTF-8 cannot: such a half is replaced where it comes in."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clipped(text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX, *, goes_on: bool = False) -> str:
    """What an engine said, on one line, short and harmless to print; `CUT` stands where it goes on.

    `goes_on`: more came than `text`. The text of a server with a key goes to `Redactor.quoted` instead.
    """
    looked_at = text[: 4 * chars_max]
    words = " ".join(looked_at.split())
    if not goes_on and len(looked_at) == len(text) and len(words) <= chars_max:
        return printable(words)
    return printable(words[: chars_max - 1]) + CUT
