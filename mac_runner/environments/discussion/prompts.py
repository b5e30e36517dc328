"""What a seat is sent, and the same as a view for scripted players.

Who speaks is told by us, outside the marks; what was said stands between them, defused as everywhere
(`markup.defuse`), so that no statement can open a part of its own. Questions and identities are the experiment's own
words. An agent's earlier words are its own ("You said"), everybody else's are under their id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.roles import Field, Moment, Role
from mac_runner.environments.discussion.roles.base import words_field
from mac_runner.environments.discussion.table import Seat, Statement
from mac_runner.environments.discussion.visibility import Aside, Known
from mac_runner.environments.markup import defuse
from mac_runner.types import JsonObject

_PUNCTUATION: Final = re.compile(r"[._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A statement as a template may show it: `line` is all of it with its frame, the rest its parts."""

    round: int
    agent: str
    role: str
    shown: str
    is_own: bool
    answer: str
    text: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent, and as what the others are shown it."""

    agent: str
    role: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscussionView:
    """What the seat knows: the prompt without its words. Answers are ids of choices, or words where it is open."""

    agent: str
    role: str
    question: Question
    round: int
    rounds: int
    is_last: bool
    majority: str | None
    others: tuple[Member, ...]
    statements: tuple[Statement, ...]
    asides: tuple[Aside, ...]
    fields: tuple[str, ...]
    channels: tuple[str, ...]
    attempt: int


def line_of(statement: Statement, shown: str, question: Question, *, is_own: bool) -> Line:
    """A statement for a reader who is shown its author as `shown`, or who is its author."""
    said = statement.said
    answer = _answer(statement, question)
    text = "" if said is None else defuse(said.text)
    if said is not None and said.asks:
        text = f"{text} Question: {defuse(said.asks)}".strip()
    attributes = f'round="{statement.round + 1}" speaker="{statement.agent}"'
    if statement.role != "participant":
        attributes += f' role="{statement.role}"'
    if shown and not is_own:
        attributes += f' identity="{_attribute(shown)}"'
    if answer:
        attributes += f' {_ANSWER_NAMES[statement.role]}="{_attribute(answer)}"'
    frame = f"<statement {attributes} passes/>" if said is None else f"<statement {attributes}>{text}</statement>"
    return Line(
        round=statement.round + 1,
        agent=statement.agent,
        role=statement.role,
        shown=shown,
        is_own=is_own,
        answer=answer,
        text=text,
        line=f"You said: {frame}" if is_own else frame,
    )


_ANSWER_NAMES = {"participant": "answer", "devils_advocate": "argues_for", "judge": "verdict", "moderator": "answer"}


def _answer(statement: Statement, question: Question) -> str:
    if statement.answer is None:
        return ""
    return question.choice(statement.answer).text if question.choices else defuse(statement.answer)


def _attribute(text: str) -> str:
    return defuse(text).replace('"', "'")


def aside_lines(known: Known, seat: Seat) -> tuple[str, ...]:
    """The lines of private channels that `seat` reads."""
    return tuple(_aside_line(aside, is_own=aside.agent == seat.agent) for aside in known.asides)


def _aside_line(aside: Aside, *, is_own: bool) -> str:
    attributes = f'channel="{aside.channel}" round="{aside.round + 1}" speaker="{aside.agent}"'
    return f"{'You said: ' if is_own else ''}<aside {attributes}>{defuse(aside.text)}</aside>"


def all_fields(role: Role, moment: Moment, channels: Sequence[str]) -> tuple[Field, ...]:
    """The fields of a reply: those of the role, then one for each private channel the seat may write to."""
    asides = (
        words_field(
            aside_field(channel),
            f"words for the private channel {channel} alone, or an empty text",
        )
        for channel in channels
    )
    return (*role.fields(moment), *asides)


def aside_field(channel: str) -> str:
    """The name under which a reply carries words for a private channel."""
    return f"to_{_PUNCTUATION.sub('_', channel.casefold())}"


def reply_format(fields: Sequence[Field]) -> str:
    """What a reply has to look like, in words."""
    shape = ", ".join(f"{json.dumps(field.name)}: {json.dumps(field.meaning)}" for field in fields)
    return f"Reply with one JSON object and nothing else: {{{shape}}}"


def reply_schema(fields: Sequence[Field]) -> JsonObject:
    """The JSON schema of a reply; its keys stand in the order in which they are to be written."""
    return {
        "type": "object",
        "properties": {field.name: field.schema for field in fields},
        "required": [field.name for field in fields],
        "additionalProperties": False,
    }
