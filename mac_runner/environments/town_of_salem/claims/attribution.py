"""What the speaker of a text says in earnest, with the rest blanked out.

Quotations, the reported words of others, questions and what is said under a condition are blanked character by
character, so a place in the result is a place in the text. All of it works on marked text (`vocabulary`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mac_runner.environments.town_of_salem.claims.vocabulary import BLANK, NAME, ROLE

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


class Sentence(NamedTuple):
    """One sentence: its place in its passage, and what of it is the speaker's own."""

    start: int
    text: str


class Passage(NamedTuple):
    """A sentence and those after it that go on with what it began; `start` is its place in the text."""

    start: int
    text: str


def passages(text: str) -> list[Passage]:
    """The passages of a marked text, quotations blanked."""
    found: list[Passage] = []
    is_open = False
    for start, sentence in _sentences(_without_quotes(text)):
        if found and (is_open or _GOES_ON.match(sentence)):
            found[-1] = Passage(found[-1].start, found[-1].text + sentence)
        else:
            found.append(Passage(start, sentence))
        is_open = sentence.endswith(";")
    return found


def own_words(passage: str) -> list[Sentence]:
    """The sentences of a passage, blanked where they are not their speaker's own or not in earnest."""
    return [_own(start, sentence) for start, sentence in _sentences(passage)]


def _without_quotes(text: str) -> str:
    """Quotations blanked, those of a word or two and one around the whole excepted."""
    inner = text.strip()
    if inner.startswith('"') and inner.endswith('"') and inner.count('"') == 2:
        return text
    return _QUOTE.sub(lambda quote: quote.group() if _STRESSED.fullmatch(quote.group()) else _blank(quote), text)


def _blank(match: re.Match[str]) -> str:
    return BLANK * len(match.group())


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


def _own(start: int, said: str) -> Sentence:
    stated = _without_question(said) if "?" in said[-3:] else said
    return Sentence(start, "".join(map(_in_earnest, _clauses(stated))))


def _without_question(sentence: str) -> str:
    """The statement before a question: `I am the Doctor, why would I lie?`"""
    tail = _QUESTION_TAIL.search(sentence)
    if tail is None or _STARTS_ASKING.match(sentence):
        return BLANK * len(sentence)
    return sentence[: tail.start()] + BLANK * (len(sentence) - tail.start())


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
        clause = clause[: condition.start()] + BLANK * (len(clause) - condition.start())
    reported = _REPORTED.search(clause)
    if reported is None:
        return clause
    back = _back_to_oneself(clause, reported.end())
    return clause[: reported.start()] + BLANK * (back - reported.start()) + clause[back:]


_AGAIN = re.compile(r",\s*(?:and\s+|so\s+|while\s+)(?=I\b(?!(?:\s+\w+){0,2}\s+(?:said|told)))", re.I)


def _back_to_oneself(clause: str, start: int) -> int:
    """The place where the speaker's own words go on (`, and I …`); after a colon there is none."""
    again = _AGAIN.search(clause, start)
    if again is None or ":" in clause[start : again.start()]:
        return len(clause)
    return again.start()
