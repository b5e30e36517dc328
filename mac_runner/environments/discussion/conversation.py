"""One running discussion: turns out, replies in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from mac_runner.config import DiscussionConfig
from mac_runner.environments.discussion.answers import Found, Matcher, Problem, read_fields
from mac_runner.environments.discussion.answers.labels import listed
from mac_runner.environments.discussion.prompts import (
    DiscussionView,
    Other,
    all_fields,
    aside_field,
    aside_lines,
    lines,
    reply_format,
    reply_schema,
)
from mac_runner.environments.discussion.record import Retries, outcome_of, record_of
from mac_runner.environments.discussion.roles import ROLES, Moment
from mac_runner.environments.discussion.stopping import Ending, ending, majority
from mac_runner.environments.discussion.table import Said, Seat, Table
from mac_runner.environments.discussion.templates import PromptTemplate
from mac_runner.environments.discussion.visibility import Known, known_to
from mac_runner.environments.markup import defuse
from mac_runner.limits import ASIDE_CHARS_MAX
from mac_runner.types import FinishReason, JsonObject, Message, Prompt, Receipt, ReceiptKind, Reply, Turn

OVERFLOW = (
    "the discussion has outgrown the context of the engine; have fewer rounds, agents or history_rounds, or shorter "
    "replies"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all discussions of an experiment have in common."""

    settings: DiscussionConfig
    template: PromptTemplate
    corrections_max: int


class DiscussionConversation:
    """The Conversation contract over a table of statements."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        self._seats = {seat.agent: seat for seat in table.seats}
        self._retries: Retries = {}
        self._ending: Ending | None = None
        self._system: dict[str, str] = {}
        settings, choices = rules.settings, table.question.choices
        self._choices = listed(settings.prompt.choice_format, choices)
        self._matcher = (
            Matcher(
                choices,
                settings.prompt.choice_format,
                threshold=settings.answers.near_match_threshold,
                margin=settings.answers.near_match_margin,
            )
            if choices
            else None
        )

    @property
    def outcome(self) -> JsonObject | None:
        """What was answered, once it has ended."""
        if self._ending is None:
            return None
        return outcome_of(self._table, self._ending, self._retries)

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have spoken."""
        return self._table.round

    def turns(self) -> tuple[Turn, ...]:
        """One for each seat that has not spoken in the present round."""
        if self._ending is not None:
            return ()
        return tuple(
            Turn(
                round=self._table.round,
                agent=seat.agent,
                model=seat.model,
                place=seat.place,
                attempt=len(self._table.problems.get(seat.place, ())),
                after=seat.waits_for,
            )
            for seat in self._table.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        seat = self._seats[turn.agent]
        known = known_to(self._table, seat, self._rules.settings.routing_strategy)
        moment = self._moment(known)
        fields = all_fields(ROLES[seat.role], moment, seat.channels)
        values = self._values(seat, known, moment) | {"reply_format": reply_format(fields)}
        block = "later_round" if turn.round else "first_round"
        if seat.agent not in self._system:
            self._system[seat.agent] = self._rules.template.render("system", values)
        return Prompt(
            messages=(
                Message(role="system", content=self._system[seat.agent]),
                Message(role="user", content=self._rules.template.render(block, values)),
            ),
            view=self._view(turn, seat, known, moment),
            schema=reply_schema(fields),
        )

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Put down what is said; a reply that cannot be used is asked for again, and in the end the agent passes."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return Receipt(kind=ReceiptKind.FAILURE, detail=OVERFLOW)
        seat = self._seats[turn.agent]
        said = self._read(seat, reply)
        if isinstance(said, Said):
            self._put(seat, said)
            return Receipt(kind=ReceiptKind.ACT, detail=_detail(said))
        causes = self._retries.setdefault(seat.agent, {})
        causes[said.cause] = causes.get(said.cause, 0) + 1
        if turn.attempt < self._rules.corrections_max:
            problems = self._table.problems
            problems[seat.place] = (*problems.get(seat.place, ()), said)
            return Receipt(kind=ReceiptKind.CORRECTION, detail=said.reason)
        self._put(seat, None)
        return Receipt(kind=ReceiptKind.DEFAULT, detail=f"passes ({said.reason})")

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        return record_of(self._table, self._retries)

    def fingerprint(self) -> str:
        """Digest of the table and of the corrections under way."""
        state: JsonObject = self.record() | {
            "ending": self._ending,
            "problems": [
                [place, *(problem.reason for problem in problems)]
                for place, problems in sorted(self._table.problems.items())
            ],
        }
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()

    def _put(self, seat: Seat, said: Said | None) -> None:
        before = self._table.round
        self._table.put(seat, said)
        if self._table.round > before:
            settings = self._rules.settings
            self._ending = ending(self._table, settings.max_rounds, settings.stopping)

    def _read(self, seat: Seat, reply: Reply) -> Said | Problem:
        role = ROLES[seat.role]
        moment = self._moment(known_to(self._table, seat, self._rules.settings.routing_strategy))
        names = [field.name for field in all_fields(role, moment, seat.channels)]
        found = read_fields(reply, sorted(names, key=lambda name: name != role.decisive))
        if isinstance(found, Problem):
            return found
        said = role.read(found, moment)
        return said if isinstance(said, Problem) else replace(said, asides=_asides(found, seat))

    def _moment(self, known: Known) -> Moment:
        table = self._table
        # The latest answer of each participant that can be read; later statements overwrite earlier ones.
        answers = {said.agent: said.answer for said in known.statements if said.role == "participant"}
        return Moment(
            question=table.question,
            matcher=self._matcher,
            is_answer_first=self._rules.settings.prompt.answer_order == "answer_first",
            is_last=table.round + 1 >= self._rules.settings.max_rounds,
            majority=majority(answers),
        )

    def _values(self, seat: Seat, known: Known, moment: Moment) -> dict[str, object]:
        table, role = self._table, ROLES[seat.role]
        problems = table.problems.get(seat.place)
        return {
            "agent": seat.agent,
            "role": seat.role,
            "identity": seat.identity.own,
            "duty": role.duty,
            "others": [
                Other(agent=other.agent, role=other.role.replace("_", " "), shown=other.identity.shown)
                for other in sorted(table.seats, key=lambda other: other.place)
                if other is not seat
            ],
            "context": table.question.context,
            "question": table.question.question,
            "question_type": str(table.question.question_type),
            "choices": self._choices,
            "round": table.round + 1,
            "rounds": self._rules.settings.max_rounds,
            "is_last_round": moment.is_last,
            "statements": lines(known, seat, table.seats, table.question),
            "asides": aside_lines(known, seat),
            "ask": role.ask(moment),
            "correction": problems[-1].reason if problems else "",
        }

    def _view(self, turn: Turn, seat: Seat, known: Known, moment: Moment) -> DiscussionView:
        return DiscussionView(
            agent=seat.agent,
            role=seat.role,
            question=replace(self._table.question, correct_answer_id=None, source_metadata=None),
            round=turn.round,
            rounds=self._rules.settings.max_rounds,
            is_last=moment.is_last,
            majority=moment.majority,
            statements=known.statements,
            asides=known.asides,
            fields=tuple(field.name for field in ROLES[seat.role].fields(moment)),
            channels=seat.channels,
            attempt=turn.attempt,
        )


def _asides(found: Found, seat: Seat) -> tuple[tuple[str, str], ...]:
    said = ((channel, found.get(aside_field(channel))[:ASIDE_CHARS_MAX].strip()) for channel in seat.channels)
    return tuple((channel, text) for channel, text in said if defuse(text))


def _detail(said: Said) -> str:
    answer = f"{said.answer} ({said.how}): " if said.answer is not None else ""
    return defuse(f"{answer}{said.text}")
