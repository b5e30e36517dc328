"""The prompts of one discussion, seat by seat.

What does not change while the discussion runs (the system message and all that goes into it) is made once for each
seat and from nothing that changes, so that it is the same whenever it is made: before a kill or after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from mac_runner.config import DiscussionConfig
from mac_runner.environments.discussion.answers import Matcher
from mac_runner.environments.discussion.answers.labels import listed
from mac_runner.environments.discussion.prompts import (
    DiscussionView,
    Other,
    all_fields,
    aside_lines,
    lines,
    reply_format,
    reply_schema,
)
from mac_runner.environments.discussion.roles import ROLES, Field, Moment
from mac_runner.environments.discussion.stopping import majority
from mac_runner.environments.discussion.table import Seat, Table
from mac_runner.environments.discussion.templates import PromptTemplate
from mac_runner.environments.discussion.visibility import Known, known_to
from mac_runner.types import Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all discussions of an experiment have in common."""

    settings: DiscussionConfig
    template: PromptTemplate
    corrections_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What every prompt of a seat has in common: the values of its template, and the system message."""

    values: dict[str, object]
    system: str


class PromptWriter:
    """Writes what the seats of one table are sent. Changes nothing of the table."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        self._fixed: dict[str, _Fixed] = {}
        # Scripted players get the question without what only a reader of results may know.
        self._asked = replace(table.question, correct_answer_id=None, source_metadata=None)

    @cached_property
    def _matcher(self) -> Matcher | None:
        settings, choices = self._rules.settings, self._table.question.choices
        if not choices:
            return None
        threshold, margin = settings.answers.near_match_threshold, settings.answers.near_match_margin
        return Matcher(choices, settings.prompt.choice_format, threshold=threshold, margin=margin)

    def prompt(self, seat: Seat, attempt: int) -> Prompt:
        """What `seat` is sent now."""
        known = self._known(seat)
        moment = self._moment(seat, known)
        fields = all_fields(ROLES[seat.role], moment, seat.channels)
        if (fixed := self._fixed.get(seat.agent)) is None:
            fixed = self._fixed[seat.agent] = self._fix(seat)
        user = self._rules.template.render(
            "later_round" if self._table.round else "first_round",
            {**fixed.values, **self._changing(seat, known, moment), "reply_format": reply_format(fields)},
        )
        return Prompt(
            messages=(Message(role="system", content=fixed.system), Message(role="user", content=user)),
            view=self._view(seat, known, moment, attempt),
            schema=reply_schema(fields),
        )

    def moment(self, seat: Seat) -> Moment:
        """When `seat` speaks, as its role needs to know it."""
        return self._moment(seat, self._known(seat) if seat.role == "devils_advocate" else None)

    def fields(self, seat: Seat, moment: Moment) -> tuple[Field, ...]:
        """The fields of the seat's reply."""
        return all_fields(ROLES[seat.role], moment, seat.channels)

    def _known(self, seat: Seat) -> Known:
        return known_to(self._table, seat, self._rules.settings.routing_strategy)

    def _moment(self, seat: Seat, known: Known | None) -> Moment:
        # Of each participant the latest answer that can be read: later statements overwrite earlier ones.
        statements = known.statements if known else ()
        answers = {said.agent: said.answer for said in statements if said.role == "participant"}
        return Moment(
            question=self._table.question,
            matcher=self._matcher,
            is_answer_first=self._rules.settings.prompt.answer_order == "answer_first",
            is_last=self._table.round + 1 >= self._rules.settings.max_rounds,
            majority=majority(answers) if seat.role == "devils_advocate" else None,
        )

    def _fix(self, seat: Seat) -> _Fixed:
        question = self._table.question
        others = (other for other in self._table.seats if other is not seat)
        values: dict[str, object] = {
            "agent": seat.agent,
            "role": seat.role,
            "identity": seat.identity.own,
            "duty": ROLES[seat.role].duty,
            "others": [Other(agent=other.agent, role=other.role, shown=other.identity.shown) for other in others],
            "context": question.context,
            "question": question.question,
            "question_type": str(question.question_type),
            "choices": listed(self._rules.settings.prompt.choice_format, question.choices),
            "rounds": self._rules.settings.max_rounds,
        }
        return _Fixed(values=values, system=self._rules.template.render("system", values))

    def _changing(self, seat: Seat, known: Known, moment: Moment) -> dict[str, object]:
        problems = self._table.problems.get(seat.place)
        return {
            "round": self._table.round + 1,
            "is_last_round": moment.is_last,
            "statements": lines(known, seat, self._table.seats, self._table.question),
            "asides": aside_lines(known, seat),
            "ask": ROLES[seat.role].ask(moment),
            "correction": problems[-1].reason if problems else "",
        }

    def _view(self, seat: Seat, known: Known, moment: Moment, attempt: int) -> DiscussionView:
        return DiscussionView(
            agent=seat.agent,
            role=seat.role,
            question=self._asked,
            round=self._table.round,
            rounds=self._rules.settings.max_rounds,
            is_last=moment.is_last,
            majority=moment.majority,
            statements=known.statements,
            asides=known.asides,
            fields=tuple(field.name for field in ROLES[seat.role].fields(moment)),
            channels=seat.channels,
            attempt=attempt,
        )
