"""The choice that an answer names, if it names exactly one; and the labels under which choices are listed.

Tried in this order: the very text of a choice; its words; its label; the statement that it cannot be known, where a
choice says so (`unknowns`); one choice mentioned in a sentence; words that only one choice has; and a misspelt choice,
which has to be near enough and clearly nearer than any other. Nothing is ever matched across a negation: `Not guilty`
is not `Guilty`, and neither is `anything but guilty`. Nor is a choice matched within a longer phrase (`phrases`). Where
signs alone tell choices apart, they are compared too (`signs`). What names two choices, or none, is a Problem,
which its writer has to correct: a wrong guess would be a wrong result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from rapidfuzz.distance import OSA

from mac_runner.environments.discussion.questions import Choice
from mac_runner.environments.discussion.reading.answers import ANSWER_CHARS_MAX
from mac_runner.environments.discussion.reading.phrases import (
    is_general,
    is_within,
    is_word,
    may_be_narrowed,
    phrase_tokens,
    stems,
)
from mac_runner.environments.discussion.reading.signs import plain, spoken, telling, with_signs
from mac_runner.environments.discussion.reading.unknowns import refuses, says_unknown
from mac_runner.environments.discussion.reading.words import (
    ARTICLES,
    EXCEPTIONS,
    NEGATIONS,
    are_opposed,
    distinctive,
    folded,
    negations,
    places,
    words,
)
from mac_runner.environments.discussion.settings import ChoiceFormat
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import Cause, Problem

_ENDS: Final = {"colon": ":", "dot": ".", "parenthesis": ")"}
_ROMAN: Final = ((10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def labels(choice_format: ChoiceFormat, count: int) -> tuple[str, ...]:
    """The labels of `count` choices; empty texts where the format has none."""
    match choice_format.partition("_")[0]:
        case "letters":
            return tuple(chr(ord("A") + i) for i in range(count))
        case "numerals":
            return tuple(str(i + 1) for i in range(count))
        case "roman":
            return tuple(_roman(i + 1) for i in range(count))
        case _:
            return ("",) * count


def listed(choice_format: ChoiceFormat, choices: Sequence[Choice]) -> tuple[str, ...]:
    """The choices as lines of a prompt."""
    end = _ENDS.get(choice_format.partition("_")[2], "")
    heads = [f"{label}{end} " if label else "" for label in labels(choice_format, len(choices))]
    if choice_format == "bullet":
        heads = ["- "] * len(choices)
    return tuple(f"{head}{choice.text}" for head, choice in zip(heads, choices, strict=True))


def _roman(number: int) -> str:
    digits = ""
    for value, digit in _ROMAN:
        count, number = divmod(number, value)
        digits += digit * count
    return digits


WORD_LIKENESS_MIN: Final = 0.75
"""A misspelt word is at least this like the right one: `Wong` may be `Wang`, `man` is not `woman`."""

_LEAD: Final = re.compile(
    r"^\W*(?:(?:so|thus|therefore|hence|well|overall)\W+)?"
    r"(?:(?:(?:the|my|our|final|correct|best|right|most\s+likely)\s+)*"
    r"(?:answer|choice|option|verdict|vote|response|selection)\b(?:\s+(?:is|was|would\s+be|should\s+be))?\s*[:=]?"
    r"|i(?:'d|\s+would|\s+will|'ll)?\s+(?:choose|pick|select|say|think|believe|vote\s+for|go\s+with|go\s+for)"
    r"(?:\s+(?:that|it\s+is|it's|is|option|choice|answer))*\s*:?"
    r"|it\s+(?:is|was|must\s+be|has\s+to\s+be)\b|it's\b)\s*",
    re.IGNORECASE,
)
_BETWEEN_LABELS: Final = frozenset({"or", "and", "either", "both", "option", "options", "choice", "choices"})
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s|\n")
_REASON: Final = re.compile(
    r"\b(?:because|since|given that|due to|as (?:the|it|he|she|they|there|we)|for the reason)\b", re.IGNORECASE
)
_LABEL: Final = re.compile(r"[\s(\[*_\"'#]*(?:(?:option|choice|answer)\s+)?([a-z]{1,6}|\d{1,2})(?![\w'’])")
_LABEL_END: Final = re.compile(r"[\s)\]*_\"']*([).:,;=\-–—]|$)[\s).:,;=*_\"'\-–—]*")
_SET_OFF: Final = re.compile(r"\s*([*_\"']{0,3})[(\[]?(?:[a-z]{1,6}|\d{1,2})[)\]]?[.:]?\1[.:]?(?=\s|$)", re.IGNORECASE)
"""A label and the marks around it, which are not signs of a choice."""
_POSSESSIVE: Final = re.compile(r"(?<=\w)['’‘ʼ′`´]s\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Match:
    """The choice an answer names, and how that was found."""

    choice_id: str
    how: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A choice ready to be compared."""

    id: str
    text: str
    words: tuple[str, ...]

    @property
    def negations(self) -> int:
        return negations(self.words)


class Matcher:
    """Matches answers to the choices of one question, listed in one format."""

    def __init__(
        self,
        choices: Sequence[Choice],
        choice_format: ChoiceFormat,
        *,
        threshold: float,
        margin: float,
        unknown: str | None = None,
        asked: str = "",
    ) -> None:
        """`unknown` is the id of the choice that says that the answer cannot be known, where there is one.

        `asked` is the question with its context; words of it behind a choice restate it.
        """
        shown = labels(choice_format, len(choices))
        # A label that was not shown is understood too, as far as it can mean one thing only.
        others = (labels("letters_dot", len(choices)), labels("numerals_dot", len(choices)))
        taken = {plain(choice.text) for choice in choices}
        self._shown = {label.casefold(): choice.id for label, choice in zip(shown, choices, strict=True) if label}
        self._labels = {
            label.casefold(): choice.id
            for scheme in others
            for label, choice in zip(scheme, choices, strict=True)
            if label.casefold() not in taken
        } | self._shown
        self._signs = telling([choice.text for choice in choices])
        self._spoken = spoken(self._signs)
        self._choices = tuple(
            _Known(choice.id, choice.text.strip(), distinctive(words(self._written(choice.text)))) for choice in choices
        )
        self._threshold = threshold / 100
        self._margin = margin / 100
        self._unknown = unknown
        self._asked = stems([asked])

    @property
    def signs(self) -> frozenset[str]:
        """The signs that alone tell some choices apart."""
        return self._signs

    def match(self, answer: str) -> Match | Problem:
        """The choice that `answer` names."""
        found = self._match(answer.strip())
        if not isinstance(found, Problem) or found.cause is not Cause.UNMATCHED:
            return found
        # `Maria's` is Maria; in `Maria's car` the word behind it makes it a longer phrase.
        bare = _POSSESSIVE.sub("", answer[: ANSWER_CHARS_MAX + 1]).strip()
        again = self._match(bare) if bare != answer.strip() else found
        return again if isinstance(again, Match) else found

    def refusal(self, prose: str) -> Problem | None:
        """The problem of a reply that is too long for an answer or no text, if it begins with a refusal."""
        first = _SENTENCE_END.split(prose, 1)[0]
        if prose.startswith("{") or says_unknown(first) is not False:
            return None
        return _refused(first) if refuses(first) else None

    def _match(self, answer: str) -> Match | Problem:
        if not answer:
            return Problem(Cause.EMPTY, "the answer is empty")
        if len(answer) > ANSWER_CHARS_MAX:
            return Problem(Cause.UNMATCHED, f"the answer is longer than {ANSWER_CHARS_MAX} characters; give the choice")
        bare = answer[self._lead_chars(answer) :].strip()
        for text in dict.fromkeys((answer, bare)):
            if text and (found := self._whole(text)) is not None:
                return found
        if (refused := self._only_labels(bare)) is not None:
            return refused
        if self._unknown is not None and (is_unknown := says_unknown(answer)) is not False:
            return Match(self._unknown, "unknown") if is_unknown else _ambiguous(answer)
        if refuses(answer):
            return _refused(answer)
        return self._mentioned(answer) or self._partial(bare or answer) or self._near(bare or answer)

    def _lead_chars(self, answer: str) -> int:
        """How long the words before an answer are; in `it is =5` the sign is a part of the answer."""
        if (lead := _LEAD.match(answer)) is None:
            return 0
        return lead.end() - (lead[0][-1] in self._signs and lead[0][-2:-1].isspace())

    def _whole(self, answer: str) -> Match | Problem | None:
        """The answer as a choice from end to end, or as a label."""
        text = self._text(answer)
        labelled = self._labelled(answer)
        said = answer.casefold()
        if text is None and isinstance(labelled, Match):
            claim = _REASON.split(answer, maxsplit=1)[0]
            text, said = self._text(claim), " ".join(words(claim))
        if text is None or labelled is None:
            return text or labelled
        if text.how == "exact" and isinstance(labelled, Problem):
            return text
        if isinstance(labelled, Problem):
            return labelled
        if labelled.choice_id == text.choice_id:
            return text
        # `2` may be the second choice or the choice `2`, also before a reason; where numbers are not how choices are
        # listed, it is the text.
        return _ambiguous(answer) if said in self._shown else text

    def _only_labels(self, answer: str) -> Problem | None:
        """Why an answer that is nothing but labels and words between them names no choice: `A or B`, `not C`."""
        said = [word for word in words(answer) if word not in _BETWEEN_LABELS]
        named = [self._labels[word] for word in said if word in self._labels]
        if not named or len(named) + negations(tuple(said)) < len(said):
            return None
        if len(named) < len(said):
            return _negated(answer)
        return _ambiguous(answer) if len(set(named)) > 1 else None

    def _written(self, text: str) -> str:
        """A text with the signs that are compared as letters."""
        return with_signs(text, self._signs) if self._signs else text

    def _words(self, text: str) -> tuple[str, ...]:
        return distinctive(words(self._written(text)))

    def _text(self, answer: str) -> Match | None:
        exact = [choice for choice in self._choices if choice.text == answer]
        if exact:
            return Match(exact[0].id, "exact")
        said = self._words(answer)
        same = [choice for choice in self._choices if "".join(choice.words) == "".join(said) and said]
        if len(same) == 1 and same[0].negations == negations(said):
            return Match(same[0].id, "normalised")
        return None

    def _labelled(self, answer: str) -> Match | Problem | None:
        """A label alone, or one set off from what follows, which may not name another choice."""
        head = label.end() if (label := _SET_OFF.match(answer)) else 0
        text = _REASON.split(folded(answer[:head] + self._written(answer[head:])))[0]
        label = _LABEL.match(text)
        choice_id = self._labels.get(label.group(1)) if label else None
        end = _LABEL_END.match(text, label.end()) if label else None
        if choice_id is None or end is None:
            return None
        rest = text[end.end() :].strip()
        named = {choice.id for choice in self._choices if places(choice.words, distinctive(words(rest)))}
        if named - {choice_id}:
            return _ambiguous(answer)
        if named or not rest:
            return Match(choice_id, "label") if not self._turns_down(rest, choice_id) else None
        is_short = len(words(rest)) <= len(words(self._choice(choice_id).text)) + 2
        other = (self._partial(rest) or self._near(rest)) if is_short else None
        if isinstance(other, Match):
            return Match(choice_id, "label") if other.choice_id == choice_id else _ambiguous(answer)
        return None

    def _turns_down(self, rest: str, choice_id: str) -> bool:
        said = words(rest)
        return negations(said) != self._choice(choice_id).negations if said else False

    def _choice(self, choice_id: str) -> _Known:
        return next(choice for choice in self._choices if choice.id == choice_id)

    def _mentioned(self, answer: str) -> Match | Problem | None:
        """The only choice mentioned in a sentence that does not turn it down."""
        text = _REASON.split(folded(self._written(answer)))[0]
        claim = distinctive(words(text))
        spans = [(choice.id, place) for choice in self._choices for place in places(choice.words, claim)]
        # `an old man` mentions `man` too, but as a part of itself.
        outer = [(name, place) for name, place in spans if not any(set(place) < set(other) for _, other in spans)]
        if not outer:
            return None
        choice_id = outer[0][0]
        if any(name != choice_id for name, _ in outer):
            return _ambiguous(answer)
        outside = [word for position, word in enumerate(claim) if not any(position in place for _, place in outer)]
        # `No, the loan should not be granted` says no to the question, not to the choice.
        is_a_no = self._choice(choice_id).words == ("no",) and outer[0][1].start == 0
        if any(word in NEGATIONS or word in EXCEPTIONS for word in outside) and not is_a_no:
            return _negated(answer)
        if not self._spoken.isdisjoint(outside):
            return _ambiguous(answer)
        if self._is_within(choice_id, text, [at for _, at in outer]):
            return _ambiguous(answer)
        return Match(choice_id, "mentioned")

    def _is_within(self, choice_id: str, text: str, found: Sequence[range]) -> bool:
        """Whether one of the places of a choice in a text is a part of a longer phrase."""
        choice = self._choice(choice_id).words
        if not may_be_narrowed(choice):
            return False
        tokens = phrase_tokens(folded(text))
        spoken = [i for i, token in enumerate(tokens) if is_word(token)]
        at = [i for i in spoken if tokens[i] not in ARTICLES] or spoken
        longer = {word for one in self._choices if places(choice, one.words) for word in one.words} - {*choice}
        if longer.intersection(tokens):
            return True
        is_strict = bool(longer) or is_general(choice)
        for place in found:
            first, last = at[place.start], at[place.stop - 1]
            before = list(takewhile(is_word, reversed(tokens[:first])))[::-1]
            after = list(takewhile(is_word, tokens[last + 1 :]))
            if is_within(before, choice, after, asked=self._asked, is_strict=is_strict):
                return True
        return False

    def _partial(self, answer: str) -> Match | Problem | None:
        """The only choice that has all the words of the answer."""
        said = set(self._words(answer))
        having = [choice for choice in self._choices if said and said <= set(choice.words)]
        if not having:
            return None
        if len(having) > 1:
            return _ambiguous(answer)
        is_same = negations(tuple(said)) == having[0].negations
        return Match(having[0].id, "partial") if is_same else _negated(answer)

    def _near(self, answer: str) -> Match | Problem:
        said = self._words(answer)
        scores = sorted(((_likeness(said, choice.words), choice.id) for choice in self._choices), reverse=True)
        (best, choice_id), (second, _) = scores[0], scores[1]
        if best < self._threshold:
            return Problem(Cause.UNMATCHED, f"the answer {_quoted(answer)} is none of the choices")
        if negations(said) != self._choice(choice_id).negations or _has_opposite(said, self._choice(choice_id).words):
            return _negated(answer)
        return Match(choice_id, "near") if best - second >= self._margin else _ambiguous(answer)


def _likeness(said: tuple[str, ...], choice: tuple[str, ...]) -> float:
    """How alike two texts are letter by letter, from 0 to 1; 0 when a word of one has none like it in the other."""
    spoken, known = tuple(dict.fromkeys(said)), tuple(dict.fromkeys(choice))
    for word in spoken:
        if not any(_is_like(word, other) for other in known):
            return 0.0
    for word in known:
        if not any(_is_like(word, other) for other in spoken):
            return 0.0
    return OSA.normalized_similarity(" ".join(said), " ".join(choice))


def _is_like(word: str, other: str) -> bool:
    # `20` is not a misspelling of `30`.
    longer = max(len(word), len(other))
    if abs(len(word) - len(other)) > (1 - WORD_LIKENESS_MIN) * longer:
        return False
    has_digit = any(char.isdigit() for char in word + other)
    return word == other if has_digit else OSA.normalized_similarity(word, other) >= WORD_LIKENESS_MIN


def _has_opposite(said: tuple[str, ...], choice: tuple[str, ...]) -> bool:
    return any(are_opposed(word, other) for word in said for other in choice if word not in choice)


def _ambiguous(answer: str) -> Problem:
    return Problem(Cause.AMBIGUOUS, f"the answer {_quoted(answer)} may mean more than one of the choices")


def _refused(answer: str) -> Problem:
    return Problem(Cause.REFUSAL, f"the answer {_quoted(answer)} refuses; name one of the choices")


def _negated(answer: str) -> Problem:
    return Problem(Cause.NEGATED, f"the answer {_quoted(answer)} says what it is not; name the choice that it is")


def _quoted(answer: str) -> str:
    text = defuse(answer)
    return f'"{text[:80]}…"' if len(text) > 80 else f'"{text}"'
