"""The prompts of a discussion seat by seat: the values of `prompt.jinja`, and the same as a view for scripted players.

Who speaks is outside the marks; what was said is between them, defused as everywhere (`markup.defuse`), so no statement
can open a part of its own. Questions and identities are the experiment's own words. An agent's earlier words are its
own ("You said"), all others are under the id of their speaker.

What does not change while the discussion runs (the system message and all that goes into it) is made once for each
seat, from nothing that changes. So it is the same whenever it is made: before a kill or after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from msgspec import Struct

from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.reading.matching import Match, Matcher, listed, unknown_choice
from mac_runner.environments.discussion.roles import ROLES, Moment, words_field
from mac_runner.environments.discussion.settings import DiscussionConfig
from mac_runner.environments.discussion.state import Aside, DiscussionState, Known, Seat, Statement, known_to, majority
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import BLANK, shown_in
from mac_runner.environments.templates import Kind, PromptTemplate, shipped
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonObject, Message, Prompt

KIND: Final = Kind(
    blocks=("system", "first_round", "later_round"),
    fields=(
        *("agent", "ask", "asides", "choices", "context", "correction", "demographics", "demographics_text", "duty"),
        *("identity", "identity_place", "if_as_human", "is_last_round", "members", "others", "persona", "question"),
        *("question_type", "reply_format", "role", "roster", "round", "rounds", "statements"),
    ),
    default=shipped(__name__, "prompt.jinja"),
)
"""What a template may name; docs/discussion.md says what each of the fields is."""
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
    """An agent, and its identity as the others see it, whole and its `Traits`; what they do not see is empty."""

    agent: str
    role: str
    shown: str
    persona: str
    demographics: Mapping[str, str | int]
    demographics_text: str
    if_as_human: bool | None


class DiscussionView(Struct, frozen=True, kw_only=True):
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
    """A statement for a reader who sees its author as `shown`, or who is its author."""
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
        attributes += f' {ROLES[statement.role].answer_name}="{_attribute(answer)}"'
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


def _answer(statement: Statement, question: Question) -> str:
    if statement.answer is None:
        return ""
    return question.choice(statement.answer).text if question.choices else defuse(statement.answer)


def _attribute(text: str) -> str:
    return defuse(text).replace('"', "'")


def _without(seat: Seat, members: tuple[Member, ...]) -> tuple[Member, ...]:
    return tuple(member for member in members if member.agent != seat.agent)


def _aside_line(aside: Aside, *, is_own: bool) -> str:
    attributes = f'channel="{aside.channel}" round="{aside.round + 1}" speaker="{aside.agent}"'
    return f"{'You said: ' if is_own else ''}<aside {attributes}>{defuse(aside.text)}</aside>"


def aside_field(channel: str) -> str:
    """The name under which a reply carries words for a private channel."""
    return f"to_{_PUNCTUATION.sub('_', channel.casefold())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all discussions of an experiment have in common."""

    settings: DiscussionConfig
    template: PromptTemplate
    retry: RetryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The reply asked of a role: its fields, what goes into each in words with the blank form, and as a schema.

    `sought` are the names as a reply is read, the decisive one first. `own` are the fields of the role, without those
    of private channels. `shown` is what prompts show in the place of each field: its meaning, and examples in a
    template of a user's.
    """

    names: tuple[str, ...]
    sought: tuple[str, ...]
    own: tuple[str, ...]
    shown: tuple[tuple[str, ...], ...]
    words: str
    schema: JsonObject


class PromptWriter:
    """Writes what the seats of one state are sent. Changes nothing of the state."""

    def __init__(self, state: DiscussionState, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._fixed: dict[str, tuple[dict[str, object], Message]] = {}
        """What every prompt of a seat has in common: the values of its template, and the system message."""
        self._shown_from = min(seat.identity.shown_from for seat in state.seats)
        self._members: dict[bool, tuple[Member, ...]] = {}
        self._forms: dict[tuple[str, bool, tuple[str, ...]], Form] = {}
        self._lines: dict[tuple[int, int, bool, str], Line] = {}
        self._shown = {seat.agent: seat.identity for seat in state.seats}
        # Scripted players get the question without what only a reader of results may know.
        self._asked = replace(state.question, correct_answer_id=None, source_metadata=None)

    @cached_property
    def _matcher(self) -> Matcher | None:
        settings, choices = self._rules.settings, self._state.question.shown
        if not choices:
            return None
        threshold, margin = settings.answers.near_match_threshold, settings.answers.near_match_margin
        question = self._state.question
        return Matcher(
            choices,
            settings.prompt.choice_format,
            threshold=threshold,
            margin=margin,
            unknown=unknown_choice(question),
            asked=f"{question.context} {question.question}",
        )

    def prompt(self, seat: Seat, attempt: int, correction: str) -> Prompt:
        """What `seat` is sent now; `correction` says what was wrong with its last reply."""
        known = known_to(self._state, seat, self._rules.settings.routing_strategy)
        moment = self.moment(seat, known)
        form = self.form(seat, moment)
        members = self._all(self._state.round)
        others = _without(seat, members)
        if seat.agent not in self._fixed:
            self._fixed[seat.agent] = self._fix(seat)
        fixed, system = self._fixed[seat.agent]
        user = self._rules.template.render(
            "later_round" if self._state.round else "first_round",
            {
                **fixed,
                **self._changing(seat, known, moment, members),
                "members": list(members),
                "others": others,
                "reply_format": form.words,
                "correction": correction,
            },
        )
        return Prompt(
            messages=(system, Message(role="user", content=user)),
            view=DiscussionView(
                agent=seat.agent,
                role=seat.role,
                question=self._asked,
                round=self._state.round,
                rounds=self._rules.settings.max_rounds,
                is_last=moment.is_last,
                majority=moment.majority,
                others=others,
                statements=known.statements,
                asides=known.asides,
                fields=form.own,
                channels=seat.channels,
                attempt=attempt,
            ),
            schema=form.schema,
        )

    def form(self, seat: Seat, moment: Moment) -> Form:
        """The reply asked of `seat`. It is the same in every round but the last."""
        key = (seat.role, moment.is_last, seat.channels)
        if (form := self._forms.get(key)) is None:
            role = ROLES[seat.role]
            own = role.fields(moment)
            asides = (
                words_field(aside_field(channel), f"words for the private channel {channel} alone, or an empty text")
                for channel in seat.channels
            )
            fields = (*own, *asides)
            names = tuple(field.name for field in fields)
            words = " ".join(f'In "{field.name}" give {field.meaning}.' for field in fields)
            blank = json.dumps(dict.fromkeys(names, BLANK))
            form = self._forms[key] = Form(
                names=names,
                sought=tuple(sorted(names, key=lambda name: name != role.decisive)),
                own=tuple(field.name for field in own),
                shown=tuple((field.meaning, *self._examples(field.name)) for field in fields),
                words=f"{words}\nReply with one JSON object and nothing else: {blank}",
                schema={
                    "type": "object",
                    "properties": {field.name: field.schema for field in fields},
                    "required": list(names),
                    "additionalProperties": False,
                },
            )
        return form

    def _examples(self, name: str) -> Iterator[str]:
        """What the template shows in the place of a field; a choice among it may be an answer."""
        for example in shown_in(self._rules.settings.prompt.template or "", name):
            match = self._matcher and self._matcher.match(example)
            if not isinstance(match, Match) or match.how not in ("exact", "normalised", "label"):
                yield example

    def moment(self, seat: Seat, known: Known | None = None) -> Moment:
        """When `seat` speaks, as its role needs to know it; `known` is what it knows, where that was worked out."""
        most_hold = None
        if seat.role == "devils_advocate":
            known = known or known_to(self._state, seat, self._rules.settings.routing_strategy)
            # Of each participant the latest answer that can be read: later statements overwrite earlier ones.
            most_hold = majority({said.agent: said.answer for said in known.statements if said.role == "participant"})
        return Moment(
            question=self._state.question,
            matcher=self._matcher,
            is_answer_first=self._rules.settings.prompt.answer_order == "answer_first",
            is_last=self._state.round + 1 >= self._rules.settings.max_rounds,
            majority=most_hold,
        )

    def _fix(self, seat: Seat) -> tuple[dict[str, object], Message]:
        question = self._state.question
        # Made once for all rounds, so it has of identities what is shown from the first one on.
        members = self._all(0)
        values: dict[str, object] = {
            "agent": seat.agent,
            "role": seat.role,
            "identity": seat.identity.own,
            **seat.identity.traits.fields(),
            "duty": ROLES[seat.role].duty,
            "identity_place": self._rules.settings.prompt.identity_place,
            "members": list(members),
            "others": _without(seat, members),
            "context": question.context,
            "question": question.question,
            "question_type": str(question.question_type),
            "choices": listed(self._rules.settings.prompt.choice_format, question.shown),
            "rounds": self._rules.settings.max_rounds,
        }
        return values, Message(role="system", content=self._rules.template.render("system", values))

    def _all(self, round_number: int) -> tuple[Member, ...]:
        """All agents; they are shown from one round on, the same for each."""
        is_shown = round_number >= self._shown_from
        if is_shown not in self._members:
            self._members[is_shown] = tuple(
                Member(agent=seat.agent, role=seat.role, shown=seat.identity.shown_in(round_number), **traits.fields())
                for seat in self._state.seats
                for traits in (seat.identity.traits_in(round_number),)
            )
        return self._members[is_shown]

    def _changing(self, seat: Seat, known: Known, moment: Moment, shown_now: tuple[Member, ...]) -> dict[str, object]:
        is_marked = self._rules.settings.prompt.identity_place == "system"
        roster: list[Member] = []
        if shown_now is not self._all(0):
            # Those whose identities the system message leaves out and the present round shows.
            is_for_all = self._rules.settings.prompt.identity_place == "last"
            roster = [each for each in shown_now if each.shown and (is_for_all or each.agent != seat.agent)]
        return {
            "roster": roster,
            "round": self._state.round + 1,
            "is_last_round": moment.is_last,
            "statements": [
                self._line(said, is_own=is_marked and said.agent == seat.agent) for said in known.statements
            ],
            "asides": tuple(_aside_line(aside, is_own=aside.agent == seat.agent) for aside in known.asides),
            "ask": ROLES[seat.role].ask(moment),
        }

    def _line(self, said: Statement, *, is_own: bool) -> Line:
        """A statement as it is shown, made once: what was said stays as it is."""
        # Statements made before identities are shown have them from then on.
        shown = self._shown[said.agent].shown_in(self._state.round)
        key = (said.round, said.place, is_own, shown)
        if (line := self._lines.get(key)) is None:
            line = self._lines[key] = line_of(said, shown, self._state.question, is_own=is_own)
        return line
