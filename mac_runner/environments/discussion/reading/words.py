"""Texts as they are compared: words without case, punctuation, articles or contractions, and how often they negate.

Everything here leans to one side: two texts that might mean the opposite of each other are never taken for one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from mac_runner.environments.markup import compatible

ARTICLES: Final = frozenset({"the", "a", "an"})
NEGATIONS: Final = frozenset(
    [
        *("not", "no", "never", "neither", "nor", "none", "nobody", "nothing", "without", "non", "nope"),
        *("hardly", "scarcely", "barely", "unlikely", "doubt", "doubts", "doubtful", "false", "untrue"),
    ]
)
"""Words that turn a claim around, those that only doubt it among them: `hardly guilty` is not `Guilty`."""
EXCEPTIONS: Final = frozenset(
    [
        *("but", "except", "excluding", "unlike", "instead", "rather", "opposite", "against", "other"),
        *("wrong", "incorrect", "impossible", "improbable"),
    ]
)
"""Words by which a choice may be named in order to turn it down."""
_OPPOSING_PREFIXES: Final = ("un", "in", "im", "il", "ir", "dis", "non", "a", "anti", "mis")

_APOSTROPHES: Final = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "′": "'", "`": "'", "´": "'"})
_IRREGULAR: Final = (
    (re.compile(r"\bcan'?t\b|\bcannot\b"), "can not"),
    (re.compile(r"\bwon'?t\b"), "will not"),
    (re.compile(r"\b(is|are|was|were|do|does|did|has|have|had|should|would|could|must|need)n'?t\b"), r"\1 not"),
    (re.compile(r"\bain'?t\b"), "is not"),
    (re.compile(r"\bfar from\b"), "not"),
)
_WORD: Final = re.compile(r"[^\W_]+")


def folded(text: str) -> str:
    """One spelling for what looks or reads alike: compatibility forms, case, apostrophes, contractions."""
    text = compatible(text).casefold().translate(_APOSTROPHES)
    for pattern, spelled in _IRREGULAR:
        text = pattern.sub(spelled, text)
    return text.replace("'", "")


@lru_cache(maxsize=4096)
def words(text: str) -> tuple[str, ...]:
    """The words of a text, articles included."""
    return tuple(_WORD.findall(folded(text)))


def distinctive(all_words: tuple[str, ...]) -> tuple[str, ...]:
    """The words that distinguish choices: all but articles, unless there is nothing else."""
    return tuple(word for word in all_words if word not in ARTICLES) or all_words


def negations(some_words: tuple[str, ...]) -> int:
    """How often the words negate."""
    return sum(word in NEGATIONS for word in some_words)


def are_opposed(one: str, other: str) -> bool:
    """Whether one of two words is the other with a prefix that turns it around: possible and impossible."""
    short, long = sorted((one, other), key=len)
    return any(long == prefix + short for prefix in _OPPOSING_PREFIXES)


def places(part: tuple[str, ...], whole: tuple[str, ...]) -> list[range]:
    """The places of `part` in `whole`, counted in words."""
    n = len(part)
    return [range(start, start + n) for start in range(len(whole) - n + 1) if whole[start : start + n] == part]
