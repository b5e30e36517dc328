"""The roles of a discussion: what each has to do, the fields of its replies, and how they are read.

A role knows the moment it speaks in and nothing of prompts, seats or routing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mac_runner.environments.base import SPEECH_CHARS_MAX
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.reading.answers import (
    ANSWER_CHARS_MAX,
    SHORT_ANSWER_CHARS_MAX,
    WORDINGS_MAX,
    Found,
)
from mac_runner.environments.discussion.reading.matching import Matcher
from mac_runner.environments.discussion.reading.words import words
from mac_runner.environments.discussion.settings import DiscussionRole
from mac_runner.environments.discussion.state import Said
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import Cause, Problem
from mac_runner.types import JsonObject

CONTINUE: Final = "continue"
"""A judge's word for another round in place of a verdict."""
NO_OBJECT: Final = Problem(Cause.NO_OBJECT, "no JSON object with the fields asked for was found in it")


class Moment(Struct, frozen=True, kw_only=True):
    """When a seat speaks: the question, the round, and what most answers that it knows of say."""

    question: Question
    matcher: Matcher | None
    is_answer_first: bool
    is_last: bool
    majority: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a reply: its name, what it holds in words, and its schema."""

    name: str
    meaning: str
    schema: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role: `duty` for the whole discussion, `ask` for the moment, the fields in their order, and how to read them.

    `decisive` is the field without which a reply says nothing.
    """

    name: DiscussionRole
    duty: str
    decisive: str
    ask: Callable[[Moment], str]
    fields: Callable[[Moment], tuple[Field, ...]]
    read: Callable[[Found, Moment], Said | Problem]
    answer_name: str = "answer"
    """What a statement of it calls its answer when others read it."""


def words_field(name: str, meaning: str) -> Field:
    """A field of free words.

    Its schema has no lengths: they make grammars large, not every engine knows them, and the reader sees to them.
    """
    return Field(name=name, meaning=meaning, schema={"type": "string"})


def answer_field(name: str, meaning: str, moment: Moment, *extra: str) -> Field:
    """A field for one of the choices, or for `extra` words in their place; free words where the question is open."""
    choices = moment.question.shown
    if not choices:
        return words_field(name, meaning)
    return Field(name=name, meaning=meaning, schema={"enum": [*(choice.text for choice in choices), *extra]})


def speech(text: str) -> str:
    """The words that are kept of a speech."""
    return text[:SPEECH_CHARS_MAX].strip()


def answer_of(found: Found, name: str, moment: Moment) -> Said | Problem:
    """The answer under `name`, or, in a reply without fields, the short text that it is."""
    given = found.get(name)
    if name not in found.fields:
        is_short = len(found.prose) <= SHORT_ANSWER_CHARS_MAX and "\n" not in found.prose
        is_object = found.prose.startswith(("{", "["))
        if not found.prose or is_object or (moment.matcher is not None and not is_short):
            refusal = moment.matcher.refusal(found.prose) if moment.matcher is not None else None
            return refusal or NO_OBJECT
        given = found.prose
    if len(found.also) >= WORDINGS_MAX:
        return _several(name)
    if moment.matcher is None:
        answer = given[:ANSWER_CHARS_MAX].strip()
        is_seen = bool(defuse(answer))
        if any(words(other[:ANSWER_CHARS_MAX]) != words(answer) for other in found.also):
            return _several(name)
        return Said(text="", answer=answer, how="open") if is_seen else Problem(Cause.EMPTY, f"its {name} is empty")
    match = moment.matcher.match(given)
    if isinstance(match, Problem):
        return match
    for other in found.also:
        again = moment.matcher.match(other)
        if isinstance(again, Problem) or again.choice_id != match.choice_id:
            return _several(name)
    return Said(text="", answer=match.choice_id, how=match.how)


def _several(name: str) -> Problem:
    return Problem(Cause.AMBIGUOUS, f"it gives several values of {name} that differ; give one")


def _participant_ask(moment: Moment) -> str:
    return "Give your final answer and why." if moment.is_last else "Give your answer as you see it now, and why."


def _participant_fields(moment: Moment) -> tuple[Field, ...]:
    what = "the text of the choice you take" if moment.question.choices else "your answer in a few words"
    answer = answer_field("answer", what, moment)
    rationale = words_field("rationale", "your reasons, in a few sentences")
    return (answer, rationale) if moment.is_answer_first else (rationale, answer)


def _participant_read(found: Found, moment: Moment) -> Said | Problem:
    if moment.matcher is None and "answer" not in found.fields and defuse(found.prose):
        # On an open question plain words are as good a statement as any; that there is an answer in them is not known.
        return Said(text=speech(found.prose), how="prose")
    said = answer_of(found, "answer", moment)
    if isinstance(said, Problem):
        return said
    prose = found.prose if "answer" in found.fields else ""
    return replace(said, text=speech(found.get("rationale") or prose))


_PARTICIPANT: Final = Role(
    name="participant",
    duty="You are a participant: in each round you give your own answer and your reasons. You may change your mind.",
    decisive="answer",
    ask=_participant_ask,
    fields=_participant_fields,
    read=_participant_read,
)


def _moderator_ask(moment: Moment) -> str:
    if moment.is_last:
        return "Sum up where the discussion has come to. There is no further round, so ask nothing more."
    return "Sum up what was said, and ask the others one question that helps them on."


def _moderator_fields(moment: Moment) -> tuple[Field, ...]:
    meaning = "an empty text" if moment.is_last else "your question to the others"
    return (
        words_field("summary", "what was said, in a few sentences"),
        words_field("question", meaning),
    )


def _moderator_read(found: Found, moment: Moment) -> Said | Problem:
    summary = speech(found.get("summary") or found.prose)
    if "summary" not in found.fields and not found.prose:
        return NO_OBJECT
    if not defuse(summary):
        return Problem(Cause.EMPTY, "its summary is empty")
    return Said(text=summary, asks="" if moment.is_last else speech(found.get("question")))


_MODERATOR: Final = Role(
    name="moderator",
    duty="You are the moderator: you sum up what the others said and ask what helps them on. You take no side and "
    "give no answer of your own.",
    decisive="summary",
    ask=_moderator_ask,
    fields=_moderator_fields,
    read=_moderator_read,
)


def _devils_advocate_ask(moment: Moment) -> str:
    if moment.majority is None:
        return "No answer has a majority yet. Argue for an answer that is easily overlooked."
    held = moment.question.choice(moment.majority).text if moment.question.choices else defuse(moment.majority)
    return f"Most hold this answer: {held}. Argue against it, and for another one."


def _devils_advocate_fields(moment: Moment) -> tuple[Field, ...]:
    argument = words_field("argument", "your argument, in a few sentences")
    alternative = answer_field("alternative", "the answer you argue for", moment)
    return (alternative, argument) if moment.is_answer_first else (argument, alternative)


def _devils_advocate_read(found: Found, moment: Moment) -> Said | Problem:
    argument = speech(found.get("argument") or found.prose)
    if not found.fields.keys() & {"argument", "alternative"}:
        return NO_OBJECT
    if not defuse(argument):
        return Problem(Cause.EMPTY, "its argument is empty")
    said = answer_of(replace(found, fields={"alternative": found.get("alternative")}), "alternative", moment)
    if isinstance(said, Problem):
        return said
    if said.answer == moment.majority:
        return Problem(Cause.NO_CHALLENGE, "it argues for what most hold already; argue for another answer")
    return replace(said, text=argument)


_DEVILS_ADVOCATE: Final = Role(
    name="devils_advocate",
    duty="You are the devil's advocate: you challenge what most of the participants hold, as well as it can be "
    "challenged, whatever you think yourself.",
    decisive="argument",
    answer_name="argues_for",
    ask=_devils_advocate_ask,
    fields=_devils_advocate_fields,
    read=_devils_advocate_read,
)


def _judge_ask(moment: Moment) -> str:
    if moment.is_last:
        return "This is the last round: give your verdict."
    return f"Give your verdict if you are sure of it; if not, say {CONTINUE}, and there is another round."


def _judge_fields(moment: Moment) -> tuple[Field, ...]:
    what = "the text of the choice you decide on" if moment.question.choices else "the answer you decide on"
    extra = () if moment.is_last else (CONTINUE,)
    verdict = answer_field("verdict", what if moment.is_last else f"{what}, or {CONTINUE}", moment, *extra)
    rationale = words_field("rationale", "your reasons, in a few sentences")
    return (verdict, rationale) if moment.is_answer_first else (rationale, verdict)


def _judge_read(found: Found, moment: Moment) -> Said | Problem:
    rationale = speech(found.get("rationale"))
    if words((found.get("verdict") or found.prose)[:ANSWER_CHARS_MAX])[:1] == (CONTINUE,):
        if found.also:
            return _several("verdict")
        if moment.is_last:
            return Problem(Cause.MISSING, "there is no further round; give your verdict")
        return Said(text=rationale)
    said = answer_of(found, "verdict", moment)
    return said if isinstance(said, Problem) else replace(said, text=rationale, ends=True)


_JUDGE: Final = Role(
    name="judge",
    duty="You are the judge: you hear the participants and decide on one answer. You give no answer but your verdict.",
    decisive="verdict",
    answer_name="verdict",
    ask=_judge_ask,
    fields=_judge_fields,
    read=_judge_read,
)


ROLES: Final[Mapping[DiscussionRole, Role]] = {
    role.name: role for role in (_PARTICIPANT, _MODERATOR, _DEVILS_ADVOCATE, _JUDGE)
}
"""Every role by its name."""
