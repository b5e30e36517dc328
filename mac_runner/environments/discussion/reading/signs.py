"""Signs and symbols in choices: `-1` is not `1`, and `C++` not `C`.

Readers compare letters and digits. Where these are the same in two choices, signs are made letters too, in choices and
answers alike, so that a word with its signs is one word. A sign is what is neither a letter nor a digit nor blank;
raised digits and fractions are signs too. Not signs are a hyphen or apostrophe within a word, `.,;:` at the end of one,
and a dash between blanks. Kinds of dash and quote, invisible characters and compatibility forms are one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Final

from mac_runner.environments.markup import compatible

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
