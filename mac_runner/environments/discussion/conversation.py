"""One running discussion: turns out, replies in; then its record and its outcome.

A participant changes its answer when it gives another one than in the round before; a pass in either round is not a
case. It is exposed to an agent when it could read that agent's answer, which was another than its own. It has followed
that agent when it then changed to that very answer. Both are counted by how the agent was shown to it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

from mac_runner.environments.discussion.answers import SHORT_ANSWER_CHARS_MAX, Found, Problem, read_fields
from mac_runner.environments.discussion.prompts import PromptWriter, Rules, aside_field
from mac_runner.environments.discussion.results import bias_item
from mac_runner.environments.discussion.roles import ROLES
from mac_runner.environments.discussion.state import (
    DiscussionState,
    Ending,
    Said,
    Seat,
    Statement,
    consensus,
    ending,
    majority,
    same,
    verdict_of,
)
from mac_runner.environments.markup import defuse
from mac_runner.types import FinishReason, JsonObject, JsonValue, Prompt, Receipt, ReceiptKind, Reply, Turn

ASIDE_CHARS_MAX: Final = 500
"""What a private channel takes of one reply."""
OVERFLOW: Final = (
    "the discussion has outgrown the context of the engine; have fewer rounds, agents or history_rounds, or shorter "
    "replies"
)


class DiscussionConversation:
    """The Conversation contract over the state of a discussion."""

    def __init__(self, state: DiscussionState, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._seats = {seat.agent: seat for seat in state.seats}
        self._writer = PromptWriter(state, rules)
        self._ending: Ending | None = None
        self._outcome: JsonObject | None = None

    @property
    def outcome(self) -> JsonObject | None:
        """What was answered, once it has ended."""
        return self._outcome

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have spoken."""
        return self._state.round

    def turns(self) -> tuple[Turn, ...]:
        """One for each seat that has not spoken in the present round."""
        if self._ending is not None:
            return ()
        return tuple(
            Turn(
                round=self._state.round,
                agent=seat.agent,
                model=seat.model,
                place=seat.place,
                attempt=len(self._state.problems.get(seat.place, ())),
                after=seat.waits_for,
            )
            for seat in self._state.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        return self._writer.prompt(self._seats[turn.agent], turn.attempt)

    def receive(self, turn: Turn, reply: Reply) -> Receipt:
        """Record what is said; a reply without use is asked for again, and in the end the agent passes."""
        if reply.finish_reason is FinishReason.OVERFLOW:
            return Receipt(kind=ReceiptKind.FAILURE, detail=OVERFLOW)
        seat = self._seats[turn.agent]
        said = self._read(seat, reply)
        if isinstance(said, Said):
            self._put(seat, said)
            return Receipt(kind=ReceiptKind.ACT, detail=_detail(said))
        if turn.attempt < self._rules.corrections_max:
            problems = self._state.problems
            problems[seat.place] = (*problems.get(seat.place, ()), said)
            return Receipt(kind=ReceiptKind.CORRECTION, detail=said.reason, cause=said.cause)
        self._put(seat, None)
        return Receipt(kind=ReceiptKind.DEFAULT, detail=f"passes ({said.reason})", cause=said.cause)

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        return record_of(self._state)

    def fingerprint(self) -> str:
        """Digest of the state and of the corrections under way."""
        state = state_of(self._state, self._ending)
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()

    def _put(self, seat: Seat, said: Said | None) -> None:
        before = self._state.round
        self._state.put(seat, said)
        if self._state.round > before:
            settings = self._rules.settings
            self._ending = ending(self._state, settings.max_rounds, settings.stopping)
            if self._ending is not None:
                self._outcome = outcome_of(self._state, self._ending)

    def _read(self, seat: Seat, reply: Reply) -> Said | Problem:
        role, moment = ROLES[seat.role], self._writer.moment(seat)
        names = self._writer.form(seat, moment).names
        found = read_fields(reply, sorted(names, key=lambda name: name != role.decisive))
        if isinstance(found, Problem):
            return found
        said = role.read(found, moment)
        if isinstance(said, Problem) or not seat.channels:
            return said
        return replace(said, asides=_asides(found, seat))


def _asides(found: Found, seat: Seat) -> tuple[tuple[str, str], ...]:
    said = ((channel, found.get(aside_field(channel))[:ASIDE_CHARS_MAX].strip()) for channel in seat.channels)
    return tuple((channel, text) for channel, text in said if defuse(text))


def _detail(said: Said) -> str:
    answer = f"{said.answer} ({said.how}): " if said.answer is not None else ""
    return defuse(f"{answer}{said.text}")


def record_of(state: DiscussionState) -> JsonObject:
    """The environment's part of the transcript."""
    return {
        "participants": [_seat_json(seat) for seat in state.seats],
        "events": [
            _asked(state),
            *(event for said in state.in_order() for event in (_event(said, state), *_aside_events(said, state))),
        ],
    }


def state_of(state: DiscussionState, ended_by: Ending | None) -> JsonObject:
    """All that the future of a discussion depends on: what was said, and what is to be corrected."""
    return {
        "question": state.question.to_json(),
        "seats": [[seat.agent, seat.role, seat.model, seat.place] for seat in state.seats],
        "statements": [_state(statement) for statement in state.in_order()],
        "problems": [
            [place, *(problem.reason for problem in problems)] for place, problems in sorted(state.problems.items())
        ],
        "ended_by": ended_by,
    }


def _state(statement: Statement) -> JsonValue:
    said = statement.said
    where: list[JsonValue] = [statement.round, statement.place]
    if said is None:
        return where
    asides: list[JsonValue] = [[channel, text] for channel, text in said.asides]
    return [*where, said.text, said.answer, said.how, said.asks, said.ends, asides]


def outcome_of(state: DiscussionState, ended_by: Ending) -> JsonObject:
    """The outcome of the discussion: all that a summary needs."""
    rounds = state.round
    answers = [state.answers(number) for number in range(rounds)]
    verdict = verdict_of(state)
    group = verdict if verdict is not None else majority(answers[-1])
    question = state.question
    return {
        "kind": "discussion",
        "question_id": question.question_id,
        "question_type": str(question.question_type),
        "source_dataset": question.source_dataset,
        "correct_answer_id": question.correct_answer_id,
        "rounds": rounds,
        "ended_by": str(ended_by),
        "answer": _short(group),
        "verdict": _short(verdict),
        "consensus": consensus(state, rounds - 1) is not None,
        "answers": {seat.agent: [_short(given[seat.agent]) for given in answers] for seat in state.participants},
        "passes": sum(statement.said is None for statement in state.in_order()),
        "changes": [_pair(tally) for tally in changes_by_round(state)],
        "changes_by_identity": {shown: _pair(tally) for shown, tally in changes_by_identity(state).items()},
        "influence": {shown: _pair(tally) for shown, tally in influence_by_identity(state).items()},
        "roles": _roles_json(state),
        "bias": bias_item(question),
    }


def _roles_json(state: DiscussionState) -> JsonObject:
    """What agents other than participants did, and who followed them."""
    followed = influence_by_advocate(state)
    parts: JsonObject = {}
    for seat in state.seats:
        if seat.role == "participant":
            continue
        said = [one.said for one in state.in_order() if one.place == seat.place and one.said is not None]
        parts[seat.agent] = {
            "role": seat.role,
            "statements": len(said),
            "questions": sum(bool(defuse(one.asks)) for one in said),
            "verdicts": sum(one.ends for one in said),
            "followed": _pair(followed.get(seat.agent, Tally())),
        }
    return parts


def _short(answer: str | None) -> str | None:
    """An answer as a row of the index has room for it; the id of a choice is short enough."""
    return None if answer is None else answer[:SHORT_ANSWER_CHARS_MAX]


def _pair(tally: Tally) -> JsonValue:
    return [tally.count, tally.cases]


def _seat_json(seat: Seat) -> JsonObject:
    return {
        "agent": seat.agent,
        "role": seat.role,
        "identity": seat.identity.own,
        "shown": seat.identity.shown,
        "waits_for": [*sorted(seat.waits_for)],
        "reads": [*sorted(seat.reads)],
        "channels": [*seat.channels],
    }


def _asked(state: DiscussionState) -> JsonObject:
    question = state.question
    parts = (question.context, question.question, " / ".join(choice.text for choice in question.choices))
    text = " ".join(part for part in parts if part)
    return {"when": "Question", "audience": "all", "text": text, "data": {"question_id": question.question_id}}


def _event(statement: Statement, state: DiscussionState) -> JsonObject:
    """A statement as the transcript's readers expect an event: when, who may learn of it, what it was in words."""
    said = statement.said
    data: JsonObject = {"round": statement.round, "agent": statement.agent, "role": statement.role}
    if said is None:
        return _public_event(statement, state, f"{statement.agent} passes.", data | {"said": None})
    parts: JsonObject = {
        "text": said.text,
        "answer": said.answer,
        "how": said.how,
        "asks": said.asks,
        "ends": said.ends,
    }
    answer = _answer_text(said.answer, state)
    text = " ".join(
        part for part in (answer, defuse(said.text), f"Question: {defuse(said.asks)}" if said.asks else "") if part
    )
    return _public_event(statement, state, f"{statement.agent}: {text}", data | {"said": parts})


def _answer_text(answer: str | None, state: DiscussionState) -> str:
    if answer is None:
        return ""
    return f"[{state.question.choice(answer).text}]" if state.question.choices else defuse(answer)


def _public_event(statement: Statement, state: DiscussionState, text: str, data: JsonObject) -> JsonObject:
    readers = [
        seat.agent
        for seat in state.seats
        if seat.agent == statement.agent or statement.agent in seat.reads | seat.waits_for
    ]
    audience: JsonValue = "all" if len(readers) == len(state.seats) else [*sorted(readers)]
    return {"when": f"Round {statement.round + 1}", "audience": audience, "text": text, "data": data}


def _aside_events(statement: Statement, state: DiscussionState) -> list[JsonObject]:
    return [
        {
            "when": f"Round {statement.round + 1}",
            "audience": [*sorted(seat.agent for seat in state.seats if channel in seat.channels)],
            "text": f"{statement.agent} in {channel}: {defuse(text)}",
            "data": {"round": statement.round, "agent": statement.agent, "channel": channel, "text": text},
        }
        for channel, text in (statement.said.asides if statement.said else ())
    ]


NOT_SHOWN = "(not shown)"

Answers: TypeAlias = Mapping[str, str | None]


@dataclass(slots=True)
class Tally:
    """How many of how many cases."""

    count: int = 0
    cases: int = 0

    def add(self, is_counted: bool) -> None:
        """One more case."""
        self.cases += 1
        self.count += is_counted


def changes_by_round(state: DiscussionState) -> list[Tally]:
    """For each round but the first: changed answers, and answers that could have changed."""
    tallies = []
    for number in range(1, state.round):
        tally = Tally()
        before, after = state.answers(number - 1), state.answers(number)
        for agent, answer in after.items():
            if answer is not None and before[agent] is not None:
                tally.add(same(answer) != same(before[agent]))
        tallies.append(tally)
    return tallies


def changes_by_identity(state: DiscussionState) -> dict[str, Tally]:
    """By the identity with which others are shown who answers: changed answers, and those that could have changed."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for number in range(1, state.round):
        before, after = state.answers(number - 1), state.answers(number)
        for seat in state.participants:
            if (held := before[seat.agent]) is not None and (given := after[seat.agent]) is not None:
                tallies[seat.identity.shown or NOT_SHOWN].add(same(given) != same(held))
    return dict(sorted(tallies.items()))


def influence_by_identity(state: DiscussionState) -> dict[str, Tally]:
    """By the identity shown: how often a participant followed an agent whose other answer it had read."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    answers = [state.answers(number) for number in range(state.round)]
    for earlier, now in pairwise(answers):
        for seat in state.participants:
            before, after = earlier[seat.agent], now[seat.agent]
            if before is None or after is None:
                continue
            for other in state.participants:
                held = _read_by(seat, other, earlier, now)
                if other is not seat and held is not None and same(held) != same(before):
                    tallies[other.identity.shown or NOT_SHOWN].add(same(after) == same(held))
    return dict(sorted(tallies.items()))


def influence_by_advocate(state: DiscussionState) -> dict[str, Tally]:
    """For each devil's advocate: how often a participant took over the other answer that it had read it argue for."""
    tallies = {seat.agent: Tally() for seat in state.seats if seat.role == "devils_advocate"}
    for number in range(1, state.round):
        for advocate in (seat for seat in state.seats if seat.agent in tallies):
            argued = {n: {advocate.agent: state.statements[n, advocate.place].answer} for n in (number - 1, number)}
            for seat in state.participants:
                before, after = state.answers(number - 1)[seat.agent], state.answers(number)[seat.agent]
                held = _read_by(seat, advocate, argued[number - 1], argued[number])
                if before is not None and after is not None and held is not None and same(held) != same(before):
                    tallies[advocate.agent].add(same(after) == same(held))
    return tallies


def _read_by(seat: Seat, other: Seat, earlier: Answers, now: Answers) -> str | None:
    """The latest answer of `other` that `seat` could read when it spoke, after a round with the `earlier` answers."""
    if other.agent in seat.waits_for:
        return now[other.agent]
    return earlier[other.agent] if other.agent in seat.reads else None
