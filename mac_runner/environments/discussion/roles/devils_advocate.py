"""The devil's advocate: argues against whatever most of the participants hold, and for another answer."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.discussion.answers import Cause, Found, Problem
from mac_runner.environments.discussion.roles.base import (
    NO_OBJECT,
    Field,
    Moment,
    Role,
    answer_field,
    answer_of,
    speech,
    words_field,
)
from mac_runner.environments.discussion.table import Said
from mac_runner.environments.markup import defuse


def _ask(moment: Moment) -> str:
    if moment.majority is None:
        return "No answer has a majority yet. Argue for an answer that is easily overlooked."
    held = moment.question.choice(moment.majority).text if moment.question.choices else defuse(moment.majority)
    return f"Most hold this answer: {held}. Argue against it, and for another one."


def _fields(moment: Moment) -> tuple[Field, ...]:
    argument = words_field("argument", "your argument, in a few sentences")
    alternative = answer_field("alternative", "the answer you argue for", moment)
    return (alternative, argument) if moment.is_answer_first else (argument, alternative)


def _read(found: Found, moment: Moment) -> Said | Problem:
    argument = speech(found.get("argument") or found.prose)
    if not found.fields.keys() & {"argument", "alternative"}:
        return NO_OBJECT
    if not defuse(argument):
        return Problem(Cause.EMPTY, "its argument is empty")
    said = answer_of(Found(fields={"alternative": found.get("alternative")}), "alternative", moment)
    if isinstance(said, Problem):
        return said
    if said.answer == moment.majority:
        return Problem(Cause.NO_CHALLENGE, "it argues for what most hold already; argue for another answer")
    return replace(said, text=argument)


DEVILS_ADVOCATE = Role(
    name="devils_advocate",
    duty="You are the devil's advocate: you challenge what most of the participants hold, as well as it can be "
    "challenged, whatever you think yourself.",
    decisive="argument",
    ask=_ask,
    fields=_fields,
    read=_read,
)
