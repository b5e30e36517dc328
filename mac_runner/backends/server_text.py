"""Text that a server sent: made fit to keep or to quote. Pure.

`scalars_only` is for replies, `clipped` for errors; `tokens_of` and `own_reason` read what stands beside a reply, in
whatever form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mac_runner.printable import printable
from mac_runner.types import FinishReason, TokenCount

ENGINE_ERROR_CHARS_MAX: Final = 300
"""How much of an engine's own words an error quotes."""
ENGINE_TOKENS_MAX: Final = 1 << 40
"""A token count beyond this counts nothing."""
_REASON_CHARS_MAX: Final = 40


def scalars_only(text: str) -> str:
    """`text` with each half of a surrogate pair replaced: JSON can spell one, UTF-8 cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clipped(text: str, chars_max: int = ENGINE_ERROR_CHARS_MAX) -> str:
    """`text` on one line, printable. The text of a server that has a key goes to `Redactor.quoted` instead."""
    return printable(on_one_line(text, chars_max))


def on_one_line(text: str, chars_max: int) -> str:
    """`text` in at most `chars_max` characters; `…` shows that something is left out."""
    searched = text[: 4 * chars_max]
    words = " ".join(searched.split())
    if len(searched) == len(text) and len(words) <= chars_max:
        return words
    return words[: chars_max - 1] + "…"


def tokens_of(*, prompt: object, completion: object, cached: object = None) -> TokenCount:
    """Tokens as a server counts them. What can be no number of tokens is unknown, as where a server does not count."""
    known, of_cache = token_count(prompt), token_count(cached)
    return TokenCount(prompt=known, cached=of_cache if of_cache <= known else 0, completion=token_count(completion))


def token_count(value: object) -> int:
    """A whole number from 0, else 0; a gateway whose language has one kind of number may write 10 as 10.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= ENGINE_TOKENS_MAX:
        return 0
    return int(value) if value == int(value) else 0


def own_reason(said: object, quoted: Callable[[str, int], str] = clipped) -> FinishReason:
    """Why a reply ended, in a server's own word; UNKNOWN where it gives none."""
    word = quoted(said, _REASON_CHARS_MAX) if isinstance(said, str) else ""
    # OVERFLOW is ours, for what is no reply.
    return FinishReason.UNKNOWN if word in ("", FinishReason.OVERFLOW) else FinishReason(word)
