"""The judge: hears the answers, and decides on one of them, or that the discussion goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mac_runner.environments.discussion.answers import Cause, Found, Problem
from mac_runner.environments.discussion.answers.words import words
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
from mac_runner.limits import ANSWER_CHARS_MAX

CONTINUE: Final = "continue"


def _ask(moment: Moment) -> str:
    if moment.is_last:
        return "This is the last round: give your verdict."
    return f"Give your verdict if you are sure of it; if not, say {CONTINUE}, and there is another round."


def _fields(moment: Moment) -> tuple[Field, ...]:
    what = "the text of the choice you decide on" if moment.question.choices else "the answer you decide on"
    extra = () if moment.is_last else (CONTINUE,)
    verdict = answer_field("verdict", what if moment.is_last else f"{what}, or {CONTINUE}", moment, *extra)
    rationale = words_field("rationale", "your reasons, in a few sentences")
    return (verdict, rationale) if moment.is_answer_first else (rationale, verdict)


def _read(found: Found, moment: Moment) -> Said | Problem:
    rationale = speech(found.get("rationale"))
    if words((found.get("verdict") or found.prose)[:ANSWER_CHARS_MAX])[:1] == (CONTINUE,):
        if moment.is_last:
            return Problem(Cause.MISSING, "there is no further round; give your verdict")
        return Said(text=rationale)
    said = answer_of(found, "verdict", moment)
    return said if isinstance(said, Problem) else replace(said, text=rationale, ends=True)


JUDGE = Role(
    name="judge",
    duty="You are the judge: you hear the participants and decide on one answer. You give no answer but your verdict.",
    decisive="verdict",
    ask=_ask,
    fields=_fields,
    read=_read,
)
