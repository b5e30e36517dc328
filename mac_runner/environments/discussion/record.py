"""A discussion as the transcript and the index keep it: who took part, what was said, what came of it."""

from __future__ import annotations

from mac_runner.environments.discussion.bias import bias_item
from mac_runner.environments.discussion.influence import (
    Tally,
    changes_by_identity,
    changes_by_round,
    influence_by_advocate,
    influence_by_identity,
)
from mac_runner.environments.discussion.stopping import Ending, consensus, majority, verdict_of
from mac_runner.environments.discussion.table import Seat, Statement, Table
from mac_runner.environments.markup import defuse
from mac_runner.limits import SHORT_ANSWER_CHARS_MAX
from mac_runner.types import JsonObject, JsonValue


def record_of(table: Table) -> JsonObject:
    """The environment's part of the transcript."""
    return {
        "participants": [_seat_json(seat) for seat in table.seats],
        "events": [
            _asked(table),
            *(event for said in table.in_order() for event in (_event(said, table), *_aside_events(said, table))),
        ],
    }


def state_of(table: Table, ended_by: Ending | None) -> JsonObject:
    """All that the future of a discussion depends on: what was said, and what is to be corrected."""
    return {
        "question": table.question.to_json(),
        "seats": [[seat.agent, seat.role, seat.model, seat.place] for seat in table.seats],
        "statements": [_state(statement) for statement in table.in_order()],
        "problems": [
            [place, *(problem.reason for problem in problems)] for place, problems in sorted(table.problems.items())
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


def outcome_of(table: Table, ended_by: Ending) -> JsonObject:
    """What came of the discussion: all that a summary needs to know of it."""
    rounds = table.round
    answers = [table.answers(number) for number in range(rounds)]
    verdict = verdict_of(table)
    group = verdict if verdict is not None else majority(answers[-1])
    question = table.question
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
        "consensus": consensus(table, rounds - 1) is not None,
        "answers": {seat.agent: [_short(given[seat.agent]) for given in answers] for seat in table.participants},
        "passes": sum(statement.said is None for statement in table.in_order()),
        "changes": [_pair(tally) for tally in changes_by_round(table)],
        "changes_by_identity": {shown: _pair(tally) for shown, tally in changes_by_identity(table).items()},
        "influence": {shown: _pair(tally) for shown, tally in influence_by_identity(table).items()},
        "roles": _roles_json(table),
        "bias": bias_item(question),
    }


def _roles_json(table: Table) -> JsonObject:
    """What those did whose answers do not count: their statements, questions and verdicts, and who followed them."""
    followed = influence_by_advocate(table)
    parts: JsonObject = {}
    for seat in table.seats:
        if seat.role == "participant":
            continue
        said = [one.said for one in table.in_order() if one.place == seat.place and one.said is not None]
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


def _asked(table: Table) -> JsonObject:
    question = table.question
    parts = (question.context, question.question, " / ".join(choice.text for choice in question.choices))
    text = " ".join(part for part in parts if part)
    return {"when": "Question", "audience": "all", "text": text, "data": {"question_id": question.question_id}}


def _event(statement: Statement, table: Table) -> JsonObject:
    """A statement as the transcript's readers expect an event: when, who may learn of it, what it was in words."""
    said = statement.said
    data: JsonObject = {"round": statement.round, "agent": statement.agent, "role": statement.role}
    if said is None:
        return _told(statement, table, f"{statement.agent} passes.", data | {"said": None})
    parts: JsonObject = {
        "text": said.text,
        "answer": said.answer,
        "how": said.how,
        "asks": said.asks,
        "ends": said.ends,
    }
    answer = _answer_text(said.answer, table)
    text = " ".join(
        part for part in (answer, defuse(said.text), f"Question: {defuse(said.asks)}" if said.asks else "") if part
    )
    return _told(statement, table, f"{statement.agent}: {text}", data | {"said": parts})


def _answer_text(answer: str | None, table: Table) -> str:
    if answer is None:
        return ""
    return f"[{table.question.choice(answer).text}]" if table.question.choices else defuse(answer)


def _told(statement: Statement, table: Table, text: str, data: JsonObject) -> JsonObject:
    readers = [
        seat.agent
        for seat in table.seats
        if seat.agent == statement.agent or statement.agent in seat.reads | seat.waits_for
    ]
    audience: JsonValue = "all" if len(readers) == len(table.seats) else [*sorted(readers)]
    return {"when": f"Round {statement.round + 1}", "audience": audience, "text": text, "data": data}


def _aside_events(statement: Statement, table: Table) -> list[JsonObject]:
    return [
        {
            "when": f"Round {statement.round + 1}",
            "audience": [*sorted(seat.agent for seat in table.seats if channel in seat.channels)],
            "text": f"{statement.agent} in {channel}: {defuse(text)}",
            "data": {"round": statement.round, "agent": statement.agent, "channel": channel, "text": text},
        }
        for channel, text in (statement.said.asides if statement.said else ())
    ]
