"""The prompts of one discussion, seat by seat.

What does not change while the discussion runs (the system message and all that goes into it) is made once for each
seat and from nothing that changes, so that it is the same whenever it is made: before a kill or after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from mac_runner.environments.discussion.answers import Matcher
from mac_runner.environments.discussion.answers.labels import listed
from mac_runner.environments.discussion.prompts import (
    DiscussionView,
    Line,
    Member,
    all_fields,
    aside_lines,
    line_of,
    reply_format,
    reply_schema,
)
from mac_runner.environments.discussion.roles import ROLES, Moment
from mac_runner.environments.discussion.settings import DiscussionConfig
from mac_runner.environments.discussion.stopping import majority
from mac_runner.environments.discussion.table import Seat, Statement, Table
from mac_runner.environments.discussion.templates import Blocks
from mac_runner.environments.discussion.visibility import Known, known_to
from mac_runner.types import JsonObject, Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all discussions of an experiment have in common."""

    settings: DiscussionConfig
    template: Blocks
    corrections_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What every prompt of a seat has in common: the values of its template, and the system message."""

    values: dict[str, object]
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The reply asked of a role: the names of its fields, in words, and as a schema; the role's own names apart."""

    names: tuple[str, ...]
    own: tuple[str, ...]
    words: str
    schema: JsonObject


class PromptWriter:
    """Writes what the seats of one table are sent. Changes nothing of the table."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        self._fixed: dict[str, _Fixed] = {}
        self._others: dict[str, tuple[Member, ...]] = {}
        self._forms: dict[tuple[str, bool, tuple[str, ...]], Form] = {}
        self._lines: dict[tuple[int, int, bool], Line] = {}
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
        form = self.form(seat, moment)
        if (fixed := self._fixed.get(seat.agent)) is None:
            fixed = self._fixed[seat.agent] = self._fix(seat)
        user = self._rules.template.render(
            "later_round" if self._table.round else "first_round",
            {**fixed.values, **self._changing(seat, known, moment), "reply_format": form.words},
        )
        return Prompt(
            messages=(Message(role="system", content=fixed.system), Message(role="user", content=user)),
            view=self._view(seat, known, moment, form, attempt),
            schema=form.schema,
        )

    def moment(self, seat: Seat) -> Moment:
        """When `seat` speaks, as its role needs to know it."""
        return self._moment(seat, self._known(seat) if seat.role == "devils_advocate" else None)

    def form(self, seat: Seat, moment: Moment) -> Form:
        """The reply asked of `seat`. It is the same in every round but the last."""
        key = (seat.role, moment.is_last, seat.channels)
        if (form := self._forms.get(key)) is None:
            own = ROLES[seat.role].fields(moment)
            fields = all_fields(ROLES[seat.role], moment, seat.channels)
            form = self._forms[key] = Form(
                names=tuple(field.name for field in fields),
                own=tuple(field.name for field in own),
                words=reply_format(fields),
                schema=reply_schema(fields),
            )
        return form

    def _known(self, seat: Seat) -> Known:
        return known_to(self._table, seat, self._rules.settings.routing_strategy)

    def _moment(self, seat: Seat, known: Known | None) -> Moment:
        most_hold = None
        if known is not None and seat.role == "devils_advocate":
            # Of each participant the latest answer that can be read: later statements overwrite earlier ones.
            most_hold = majority({said.agent: said.answer for said in known.statements if said.role == "participant"})
        return Moment(
            question=self._table.question,
            matcher=self._matcher,
            is_answer_first=self._rules.settings.prompt.answer_order == "answer_first",
            is_last=self._table.round + 1 >= self._rules.settings.max_rounds,
            majority=most_hold,
        )

    def _fix(self, seat: Seat) -> _Fixed:
        question = self._table.question
        members = [_member(other) for other in self._table.seats]
        self._others[seat.agent] = tuple(member for member in members if member.agent != seat.agent)
        values: dict[str, object] = {
            "agent": seat.agent,
            "role": seat.role,
            "identity": seat.identity.own,
            "duty": ROLES[seat.role].duty,
            "identity_place": self._rules.settings.prompt.identity_place,
            "members": members,
            "others": self._others[seat.agent],
            "context": question.context,
            "question": question.question,
            "question_type": str(question.question_type),
            "choices": listed(self._rules.settings.prompt.choice_format, question.choices),
            "rounds": self._rules.settings.max_rounds,
        }
        return _Fixed(values=values, system=self._rules.template.render("system", values))

    def _changing(self, seat: Seat, known: Known, moment: Moment) -> dict[str, object]:
        problems = self._table.problems.get(seat.place)
        is_marked = self._rules.settings.prompt.identity_place == "system"
        return {
            "round": self._table.round + 1,
            "is_last_round": moment.is_last,
            "statements": [
                self._line(said, is_own=is_marked and said.agent == seat.agent) for said in known.statements
            ],
            "asides": aside_lines(known, seat),
            "ask": ROLES[seat.role].ask(moment),
            "correction": problems[-1].reason if problems else "",
        }

    def _line(self, said: Statement, *, is_own: bool) -> Line:
        """A statement as it is shown, made once: what was said stays as it is."""
        key = (said.round, said.place, is_own)
        if (line := self._lines.get(key)) is None:
            shown = next(seat.identity.shown for seat in self._table.seats if seat.agent == said.agent)
            line = self._lines[key] = line_of(said, shown, self._table.question, is_own=is_own)
        return line

    def _view(self, seat: Seat, known: Known, moment: Moment, form: Form, attempt: int) -> DiscussionView:
        return DiscussionView(
            agent=seat.agent,
            role=seat.role,
            question=self._asked,
            round=self._table.round,
            rounds=self._rules.settings.max_rounds,
            is_last=moment.is_last,
            majority=moment.majority,
            others=self._others[seat.agent],
            statements=known.statements,
            asides=known.asides,
            fields=form.own,
            channels=seat.channels,
            attempt=attempt,
        )


def _member(seat: Seat) -> Member:
    return Member(agent=seat.agent, role=seat.role, shown=seat.identity.shown)
