"""The moderator: sums up what was said and asks the question that is still open; it takes no side."""

from __future__ import annotations

from mac_runner.environments.discussion.answers import Cause, Found, Problem
from mac_runner.environments.discussion.roles.base import NO_OBJECT, Field, Moment, Role, speech, words_field
from mac_runner.environments.discussion.table import Said
from mac_runner.environments.markup import defuse


def _ask(moment: Moment) -> str:
    if moment.is_last:
        return "Sum up where the discussion has come to. There is no further round, so ask nothing more."
    return "Sum up what was said, and ask the others one question that helps them on."


def _fields(moment: Moment) -> tuple[Field, ...]:
    meaning = "an empty text" if moment.is_last else "your question to the others"
    return (
        words_field("summary", "what was said, in a few sentences"),
        words_field("question", meaning),
    )


def _read(found: Found, moment: Moment) -> Said | Problem:
    summary = speech(found.get("summary") or found.prose)
    if "summary" not in found.fields and not found.prose:
        return NO_OBJECT
    if not defuse(summary):
        return Problem(Cause.EMPTY, "its summary is empty")
    return Said(text=summary, asks="" if moment.is_last else speech(found.get("question")))


MODERATOR = Role(
    name="moderator",
    duty="You are the moderator: you sum up what the others said and ask what helps them on. You take no side and "
    "give no answer of your own.",
    decisive="summary",
    ask=_ask,
    fields=_fields,
    read=_read,
)
