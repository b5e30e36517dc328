"""The participant: answers the question each round and says why. Its answers are those that count."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.discussion.answers import Found, Problem
from mac_runner.environments.discussion.roles.base import (
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
    return "Give your final answer and why." if moment.is_last else "Give your answer as you see it now, and why."


def _fields(moment: Moment) -> tuple[Field, ...]:
    what = "the text of the choice you take" if moment.question.choices else "your answer in a few words"
    answer = answer_field("answer", what, moment)
    rationale = words_field("rationale", "your reasons, in a few sentences")
    return (answer, rationale) if moment.is_answer_first else (rationale, answer)


def _read(found: Found, moment: Moment) -> Said | Problem:
    if moment.matcher is None and "answer" not in found.fields and defuse(found.prose):
        # On an open question plain words are as good a statement as any; that there is an answer in them is not known.
        return Said(text=speech(found.prose), how="prose")
    said = answer_of(found, "answer", moment)
    if isinstance(said, Problem):
        return said
    prose = found.prose if "answer" in found.fields else ""
    return replace(said, text=speech(found.get("rationale") or prose))


PARTICIPANT = Role(
    name="participant",
    duty="You are a participant: in each round you give your own answer and your reasons. You may change your mind.",
    decisive="answer",
    ask=_ask,
    fields=_fields,
    read=_read,
)
