"""The words of a text as the patterns of claims read them: names and roles marked, and the speaker's own words alone.

Each name of a player or a role is replaced by one private character (U+E000 on), which a text cannot bring along. So
patterns need not know which names are in play, and reading a name costs one character. Quotations, the reported words
of others, questions and what is said under a condition are blanked character by character, so a place in the result is
a place in the marked text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles

_FIRST_ROLE = 0xE000
_FIRST_NAME = 0xE100
_LAST = 0xE8FF
NAME = f"[{chr(_FIRST_NAME)}-{chr(_LAST)}]"
ROLE = f"[{chr(_FIRST_ROLE)}-{chr(_FIRST_NAME - 1)}](?!'s)"
"""One role, but not its belongings: `the Sheriff's friend`."""
HAS_ROLE = re.compile(ROLE)
HAS_NAME = re.compile(NAME)
BLANK = "\x00"
"""Replaces what is left out; no pattern matches it."""

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', BLANK: " "})
_PRIVATE = re.compile(f"[{chr(_FIRST_ROLE)}-{chr(_LAST)}]")


@follows_roles
@cache
def _role_names() -> tuple[str, ...]:
    return tuple(role.name for role in ROLES.values())


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with its names and roles marked.

    `ends` are the places after each mark, `shifts` how much further on the same place is in the text that was marked.
    """

    text: str
    ends: tuple[int, ...]
    shifts: tuple[int, ...]

    def place(self, index: int) -> int:
        """The place in the original text of the character at `index`."""
        before = bisect_right(self.ends, index)
        return index + (self.shifts[before - 1] if before else 0)


def names_in(part: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_NAME for mark in part)
    return tuple(dict.fromkeys(players[mark] for mark in marks if 0 <= mark < len(players)))


def roles_in(part: str) -> tuple[str, ...]:
    """The roles named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_ROLE for mark in part)
    roles = _role_names()
    return tuple(dict.fromkeys(roles[mark] for mark in marks if 0 <= mark < len(roles)))


def mark(text: str, players: tuple[str, ...]) -> Marked:
    """Mark the players, written as they are or in capitals, and the roles, by any of their names."""
    plain = _PRIVATE.sub(BLANK, text.translate(_STRAIGHT))
    words, marks = _words(players)
    parts: list[str] = []
    ends: list[int] = []
    shifts: list[int] = []
    done = made = 0
    for found in words.finditer(plain):
        made += found.start() - done + 1
        parts += (plain[done : found.start()], marks.get(found.group()) or marks[found.group().lower()])
        done = found.end()
        ends.append(made)
        shifts.append(done - made)
    return Marked("".join((*parts, plain[done:])), tuple(ends), tuple(shifts))


@follows_roles
@lru_cache(maxsize=64)
def _words(players: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Every word that names a role or a player, as a pattern, and the character for each."""
    any_case: dict[str, str] = {}
    exact: dict[str, str] = {}
    for index, role in enumerate(ROLES.values()):
        name = role.name.lower()
        for word in (name, name.replace(" ", "-"), *role.short_names):
            # Short words in capitals count as such only.
            (exact if word.isupper() else any_case)[word] = chr(_FIRST_ROLE + index)
    exact |= {form: chr(_FIRST_NAME + i) for i, name in enumerate(players) for form in (name.upper(), name)}
    pattern = re.compile(rf"(?<![\w-])(?:(?-i:{_any(exact)})|{_any(any_case)})(?!\w|-\w)", re.I | re.A)
    return pattern, any_case | exact


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


# Whose words they are.

# Quotes around all of it are the writer's habit, and quotes around a word or two are stress.
_QUOTE = re.compile(r'"[^"]*"')
_STRESSED = re.compile(r'"\s*[\w\' -]{1,20}"')
# The beginning of a sentence that goes on about the one just named.
CONTINUING = r"(?:he|she|they|both|the result|results?|it|my result|came|turns? out|nobody|no one)\b"
_GOES_ON = re.compile(rf"\s*{CONTINUING}", re.I)
_END = re.compile(r"[.!?;\n]+")
_ASKING = (
    r"(?:why|who|whom|whose|what|how|when|where|which|do|does|did|is|are|am|was|were|can|could|would|will|should|have|has"
    r"|right|ok|okay|agreed|isn't|aren't|don't|doesn't|didn't|won't|shouldn't|no|yes|any|anyone|anybody|correct)\b"
)
_QUESTION_TAIL = re.compile(rf"(?:,|:|\s[-–—])\s*(?:(?:and|so|but|or)\s+)?(?={_ASKING})", re.I)
_STARTS_ASKING = re.compile(rf"\s*(?:(?:and|so|but|or|well|ok|okay)\b,?\s+)*{_ASKING}", re.I)
# A list of roles after `could be` is a result, not a condition.
_CONDITION = re.compile(
    r"\b(?:if|unless|suppose|supposing|assuming|assume|imagine|pretend\w*|whether|hypothetically|maybe|perhaps|"
    r"possibly|wish|lest|in case"
    r"|(?:might|may|could|would)(?: (?:also|well|just|easily))? (?:not )?be"
    rf"(?! (?:either )?(?:an? |the )?{ROLE}(?:,| or)))\b",
    re.I,
)
# Here and below a run of white space is entered at its beginning only, or it costs the square of its length.
_TURN = re.compile(r"(?:[,:]|(?<!\s))\s*\b(?:but|however|although|though|yet|whereas|nevertheless|regardless)\b", re.I)

_SAYING = (
    r"(?:sa(?:y|ys|id|ying)|claim(?:s|ed|ing)?|t(?:ell|ells|old|elling)|th(?:ink|inks|ought|inking)|believ\w+|accus\w+"
    r"|suspect(?:s|ed|ing)?|argu\w+|insist\w*|sw(?:ear|ears|ore|earing)|stat(?:e|es|ed|ing)|suggest\w*|voted|votes|voting"
    r"|want(?:s|ed|ing)?|push(?:es|ed|ing)|defend\w*|call(?:s|ed|ing)?|ask\w*|report(?:s|ed)|mention\w*|whisper\w*"
    r"|den(?:y|ies|ied)|admit\w*|confess\w*|wrote|writes|announc\w+|read|reads|trust(?:s|ed)|reveal(?:s|ed)|implie[sd]"
    r"|hint(?:s|ed)|found(?= (?:that|out)))"
)
_HELPING = (
    r"(?:(?:\w+ly|just|also|already|even|then|has|have|had|is|was|are|were|been|being|did|does|do|not|never|keeps?|kept"
    r"|didn't|doesn't|don't|who|who's|who has|first|now|went|and|back|you|to|me|us)\s+){0,6}"
)


_SOMEBODY = (
    rf"(?:{NAME}|he|she|they|you|it|who|everyone|everybody|someone|somebody|people|some|others|nobody|no one"
    rf"|none of you|one of you|the (?:town|mafia|others|will|note|dead|deceased|accused)|(?:the|our|an?) {ROLE}"
    r"|(?:his|her|their) (?:will|note|words))"
)
_RUMOUR = r"\b(?:I(?: have|'ve)? (?:heard|hear|was told|read)|according to|rumou?r has it|supposedly|allegedly)\b"
# Another player who says, thinks or votes: what follows is theirs.
_REPORTED = re.compile(rf"{_RUMOUR}|(?<![\w-]){_SOMEBODY}\s+{_HELPING}{_SAYING}\b", re.I)
_AGAIN = re.compile(r",\s*(?:and\s+|so\s+|while\s+)(?=I\b(?!(?:\s+\w+){0,2}\s+(?:said|told)))", re.I)


class Part(NamedTuple):
    """A passage of a text or a sentence of a passage, and where it begins in that."""

    start: int
    text: str


def passages(text: str) -> list[Part]:
    """The passages of a marked text, quotations blanked: a sentence and those after it that go on with it."""
    found: list[Part] = []
    is_open = False
    for start, sentence in _sentences(_without_quotes(text)):
        if found and (is_open or _GOES_ON.match(sentence)):
            found[-1] = Part(found[-1].start, found[-1].text + sentence)
        else:
            found.append(Part(start, sentence))
        is_open = sentence.endswith(";")
    return found


def own_words(passage: str) -> list[Part]:
    """The sentences of a passage, blanked where they are not their speaker's own or not in earnest."""
    return [
        Part(start, "".join(map(_in_earnest, _clauses(_without_question(said))))) for start, said in _sentences(passage)
    ]


def _without_quotes(text: str) -> str:
    """Quotations blanked, those of a word or two and one around the whole excepted."""
    inner = text.strip()
    if inner.startswith('"') and inner.endswith('"') and inner.count('"') == 2:
        return text
    return _QUOTE.sub(lambda found: found[0] if _STRESSED.fullmatch(found[0]) else BLANK * len(found[0]), text)


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the mark that ends it, and its place; `1.` in a list ends none."""
    start = 0
    for end in _END.finditer(text):
        if end.group() == "." and end.start() > start and text[end.start() - 1].isdecimal():
            continue
        yield start, text[start : end.end()]
        start = end.end()
    if start < len(text):
        yield start, text[start:]


def _without_question(sentence: str) -> str:
    """The statement before a question: `I am the Doctor, why would I lie?`"""
    if "?" not in sentence[-3:]:
        return sentence
    tail = _QUESTION_TAIL.search(sentence)
    start = 0 if tail is None or _STARTS_ASKING.match(sentence) else tail.start()
    return _blanked(sentence, start, len(sentence))


def _blanked(text: str, start: int, end: int) -> str:
    return text[:start] + BLANK * (end - start) + text[end:]


def _clauses(sentence: str) -> Iterator[str]:
    """The parts of a sentence; a `but` turns from the words of others back to the speaker."""
    start = 0
    for turn in _TURN.finditer(sentence):
        yield sentence[start : turn.start()]
        start = turn.start()
    yield sentence[start:]


def _in_earnest(clause: str) -> str:
    condition = _CONDITION.search(clause)
    if condition is not None:
        clause = _blanked(clause, condition.start(), len(clause))
    reported = _REPORTED.search(clause)
    if reported is None:
        return clause
    # The speaker's own words go on with `, and I …`, but not after a colon.
    again = _AGAIN.search(clause, reported.end())
    is_back = again is not None and ":" not in clause[reported.end() : again.start()]
    return _blanked(clause, reported.start(), again.start() if again and is_back else len(clause))
