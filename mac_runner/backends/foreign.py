"""Text that an engine sent, made fit to keep as a reply or to quote in an error. Pure."""

from __future__ import annotations

from mac_runner.limits import ENGINE_ERROR_CHARS_MAX
from mac_runner.printable import printable


def scalars_only(text: str) -> str:
    """JSON can spell half a surrogate pair, UTF-8 cannot: such a half is replaced where it comes in."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clipped(text: str) -> str:
    """What a server said, on one line, short and harmless to print."""
    return printable(" ".join(text[: 4 * ENGINE_ERROR_CHARS_MAX].split())[:ENGINE_ERROR_CHARS_MAX])
