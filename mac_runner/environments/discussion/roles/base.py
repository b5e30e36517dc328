"""What a role is: what it is told to do, the fields of its replies, and how they are read.

A role knows the moment it speaks in and nothing of prompts, tables or routing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mac_runner.environments.discussion.answers import Cause, Found, Matcher, Problem
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.settings import DiscussionRole
from mac_runner.environments.discussion.table import Said
from mac_runner.environments.markup import defuse
from mac_runner.limits import ANSWER_CHARS_MAX, SHORT_ANSWER_CHARS_MAX, SPEECH_CHARS_MAX
from mac_runner.types import JsonObject

NO_OBJECT: Final = Problem(Cause.NO_OBJECT, "no JSON object with the fields asked for was found in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a seat speaks: the question, where the discussion stands, and what most answers it knows of say."""

    question: Question
    matcher: Matcher | None
    is_answer_first: bool
    is_last: bool
    majority: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a reply: its name, what stands in it in words, and its schema."""

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


def words_field(name: str, meaning: str) -> Field:
    """A field of free words.

    Its schema has no lengths: they make grammars large, not every engine knows them, and the reader sees to them.
    """
    return Field(name=name, meaning=meaning, schema={"type": "string"})


def answer_field(name: str, meaning: str, moment: Moment, *extra: str) -> Field:
    """A field for one of the choices, or for `extra` words in their place; free words where the question is open."""
    choices = moment.question.choices
    if not choices:
        return words_field(name, meaning)
    return Field(name=name, meaning=meaning, schema={"enum": [*(choice.text for choice in choices), *extra]})


def speech(text: str) -> str:
    """Words as they are put down: their own, up to a bound."""
    return text[:SPEECH_CHARS_MAX].strip()


def answer_of(found: Found, name: str, moment: Moment) -> Said | Problem:
    """The answer under `name`, or, in a reply without fields, the short text that it is."""
    given = found.get(name)
    if name not in found.fields:
        is_short = len(found.prose) <= SHORT_ANSWER_CHARS_MAX and "\n" not in found.prose
        is_object = found.prose.startswith(("{", "["))
        if not found.prose or is_object or (moment.matcher is not None and not is_short):
            return NO_OBJECT
        given = found.prose
    if moment.matcher is None:
        answer = given[:ANSWER_CHARS_MAX].strip()
        is_seen = bool(defuse(answer))
        return Said(text="", answer=answer, how="open") if is_seen else Problem(Cause.EMPTY, f"its {name} is empty")
    match = moment.matcher.match(given)
    if isinstance(match, Problem):
        return match
    return Said(text="", answer=match.choice_id, how=match.how)
