"""Texts as they are compared: words without case, punctuation, articles or contractions, and how often they negate.

Everything here leans to one side: two texts that might mean the opposite of each other are never taken for one.

Signs and symbols tell choices apart too: `-1` is not `1`, and `C++` not `C`. Readers compare letters and digits. Where
these are the same in two choices, signs are made letters too, in choices and answers alike, so that a word with its
signs is one word. A sign is what is neither a letter nor a digit nor blank; raised digits and fractions are signs too.
Not signs are a hyphen or apostrophe within a word, `.,;:` at the end of one, and a dash between blanks. Kinds of dash
and quote, invisible characters and compatibility forms are one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations
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


_AROUND: Final = "\"'()[]{}*_"
"""Signs that may be around an answer, and are part of it only where they tell choices apart."""
_NO_SIGN: Final = re.compile(
    r"(?<=[^\W\d_])[-'](?=[^\W\d_])"  # within a word
    r"|[.,;:]+(?=\s|$)"  # at its end
    r"|(?<!\S)-+(?=\s)"  # between blanks
)
_BEFORE_MARKS: Final = re.compile(rf"[.,;:]+(?=[{re.escape(_AROUND)}]+(?:\s|$))")
_AT_END: Final = re.compile(rf"[!?]+(?=[{re.escape(_AROUND)}]*(?:\s|$))")
_RAISED: Final = ("<super>", "<sub>", "<fraction>")
_UNSEEN: Final = ("VARIATION SELECTOR", "COMBINING GRAPHEME JOINER")
_QUOTES: Final = {**dict.fromkeys("’‘‚‛ʼ′`´", "'"), **dict.fromkeys("“”„‟«»″", '"'), "\u2212": "-"}
_SPOKEN: Final = {
    "-": "minus negative dash",
    "+": "positive",
    "#": "sharp hash",
    "*": "star",
    "!": "factorial",
    "'": "prime",
    "/": "slash over",
    "%": "percentage",
    "$": "dollars",
    "²": "squared",
    "³": "cubed",
}
"""Words for signs beside their names in Unicode."""


def plain(text: str) -> str:
    """The letters and digits of a text, case folded."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(char if char.isalnum() else " " for char in folded).split())


def readings(texts: Sequence[str]) -> list[str]:
    """Texts as readers compare them: their letters and digits, and their signs where those are not enough."""
    found = [plain(text) for text in texts]
    is_enough = all(found) and len(set(found)) == len(found)
    return found if is_enough else [plain("".join(map(_sign_or_char, _read(text)))) for text in texts]


def telling(texts: Sequence[str]) -> frozenset[str]:
    """The signs that tell texts apart of which letters and digits do not."""
    alike: defaultdict[str, list[Counter[str]]] = defaultdict(list)
    for text in texts:
        alike[plain(text)].append(Counter(char for char, is_sign in _read(text) if is_sign))
    told: set[str] = set()
    for letters, group in alike.items():
        if not letters:
            told.update(*group)
        for one, other in combinations(group, 2):
            # The same signs may come in another order.
            told.update((one - other) | (other - one) or one)
    return frozenset(told)


def with_signs(text: str, told: Container[str]) -> str:
    """A text with its signs as letters; marks around a word are left as they are, unless they are `told`."""
    read = [*_read(text)]
    ends = {place for found in _AT_END.finditer("".join(char for char, _ in read)) for place in range(*found.span())}
    return "".join(
        _sign_or_char((char, is_sign and (char in told or (char not in _AROUND and place not in ends))))
        for place, (char, is_sign) in enumerate(read)
    )


def spoken(signs: Iterable[str]) -> frozenset[str]:
    """The words by which signs are called."""
    names = (f"{unicodedata.name(sign, '').lower()} {_SPOKEN.get(sign, '')}" for sign in signs)
    return frozenset(word for name in names for word in re.findall(r"\w+", name)) - {"sign", "mark", "to"}


def _sign_or_char(read: tuple[str, bool]) -> str:
    # A word with a digit is not taken for a misspelling of another.
    char, is_sign = read
    return f"9z{ord(char):x}z" if is_sign else char


def _read(text: str) -> Iterator[tuple[str, bool]]:
    """The characters of a text in one form, and whether each is a sign."""
    unified = _BEFORE_MARKS.sub("", "".join(map(_unified, unicodedata.normalize("NFC", text))))
    no_signs = {place for found in _NO_SIGN.finditer(unified) for place in range(*found.span())}
    for place, char in enumerate(unified):
        is_sign = not char.isspace() and (not char.isalnum() or _is_raised(char))
        yield char, is_sign and place not in no_signs


@cache
def _unified(char: str) -> str:
    if _is_raised(char) or char.isspace():
        return char
    category = unicodedata.category(char)
    if category[0] == "C" or unicodedata.name(char, "").startswith(_UNSEEN):
        return ""
    return "-" if category == "Pd" else _QUOTES.get(char) or compatible(char)


def _is_raised(char: str) -> bool:
    return unicodedata.decomposition(char).startswith(_RAISED)
