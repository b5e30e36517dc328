"""What a form shows in the place of an answer, and how a copy of it is told from an answer.

A small model copies a form that looks like an answer: `{"answer": "your answer in a few words"}` came back word for
word. So a form says in words what goes where, and shows BLANK inside. What is copied all the same is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from mac_runner.environments.markup import compatible

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
