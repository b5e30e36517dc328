"""What is kept of a discussion: its record in the transcript, and its outcome, from which all results are counted."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import to_builtins

from mac_runner.environments.dialogue import Replies
from mac_runner.environments.discussion.formats import benchmark_item
from mac_runner.environments.discussion.influence import (
    Tally,
    changes_by_identity,
    changes_by_round,
    influence,
    influence_by_identity,
)
from mac_runner.environments.discussion.reading.answers import SHORT_ANSWER_CHARS_MAX
from mac_runner.environments.discussion.state import (
    DiscussionState,
    Ending,
    Seat,
    Statement,
    consensus,
    majority,
    verdict_of,
)
from mac_runner.environments.discussion.targets import bias_item
from mac_runner.environments.markup import defuse
from mac_runner.types import JsonObject, JsonValue


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
    """All that the future of a discussion depends on but for what is to be corrected."""
    return {
        "question": state.question.to_json(),
        **({"order": _order(state)} if state.question.order else {}),
        "seats": [[seat.agent, seat.role, seat.model, seat.place] for seat in state.seats],
        "statements": [_state(statement) for statement in state.in_order()],
        "ended_by": ended_by,
    }


def _state(statement: Statement) -> JsonValue:
    said = statement.said
    where: list[JsonValue] = [statement.round, statement.place]
    if said is None:
        return where
    asides: list[JsonValue] = [[channel, text] for channel, text in said.asides]
    return [*where, said.text, said.answer, said.how, said.asks, said.ends, asides]


def outcome_of(state: DiscussionState, ended_by: Ending, replies: Mapping[str, Replies]) -> JsonObject:
    """The outcome of the discussion: all that a summary needs."""
    tallies = influence(state)
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
        "roles": _roles_json(state, tallies),
        "bias": bias_item(question),
        **_details(state, tallies, replies),
    }


def _details(
    state: DiscussionState, tallies: Mapping[str, Mapping[str, Tally]], replies: Mapping[str, Replies]
) -> JsonObject:
    """What else the scores need.

    `item` is what the scores of a benchmark need of the question.
    `order` has the ids of the choices as they were shown. `agents` says who each agent is, and from which round on,
    counted from 1, what is `shown` of it was shown. For each participant and round, `how` says how its answer was
    recognised, `lapses` why it passed. `moved` has, for each author and reader, `[followed, exposed]`.
    `tokens` has the turns of each agent, corrections too, and the tokens of its prompts and replies.
    """
    statements = {
        seat.agent: [state.statements[number, seat.place] for number in range(state.round)]
        for seat in state.participants
    }
    return {
        "item": to_builtins(benchmark_item(state.question)),
        "order": _order(state),
        "agents": {
            seat.agent: {
                "role": seat.role,
                "model": seat.model,
                "own": seat.identity.own,
                "shown": seat.identity.shown,
                "shown_from": seat.identity.shown_from + 1,
            }
            for seat in state.seats
        },
        "how": {agent: [one.said.how if one.said else None for one in said] for agent, said in statements.items()},
        "lapses": {agent: [one.cause for one in said] for agent, said in statements.items()},
        "tokens": {
            seat.agent: [one.turns, one.tokens.prompt, one.tokens.completion]
            for seat in state.seats
            for one in (replies[seat.agent],)
        },
        "moved": {
            author: {reader: _pair(tally) for reader, tally in readers.items()}
            for author, readers in tallies.items()
            if readers
        },
    }


def _roles_json(state: DiscussionState, tallies: Mapping[str, Mapping[str, Tally]]) -> JsonObject:
    """What agents other than participants did, and who followed them."""
    parts: JsonObject = {}
    for seat in state.seats:
        if seat.role == "participant":
            continue
        said = [one.said for one in state.in_order() if one.place == seat.place and one.said is not None]
        followed = Tally()
        for tally in tallies.get(seat.agent, {}).values():
            followed.include(tally)
        parts[seat.agent] = {
            "role": seat.role,
            "statements": len(said),
            "questions": sum(bool(defuse(one.asks)) for one in said),
            "verdicts": sum(one.ends for one in said),
            "followed": _pair(followed),
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


def _order(state: DiscussionState) -> JsonValue:
    return [choice.id for choice in state.question.shown]


def _asked(state: DiscussionState) -> JsonObject:
    question = state.question
    parts = (question.context, question.question, " / ".join(choice.text for choice in question.shown))
    text = " ".join(part for part in parts if part)
    data: JsonObject = {"question_id": question.question_id, "order": _order(state)}
    return {"when": "Question", "turn": None, "audience": "all", "text": text, "data": data}


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
    when = f"Round {statement.round + 1}"
    return {"when": when, "turn": statement.turn, "audience": audience, "text": text, "data": data}


def _aside_events(statement: Statement, state: DiscussionState) -> list[JsonObject]:
    return [
        {
            "when": f"Round {statement.round + 1}",
            "turn": statement.turn,
            "audience": [*sorted(seat.agent for seat in state.seats if channel in seat.channels)],
            "text": f"{statement.agent} in {channel}: {defuse(text)}",
            "data": {"round": statement.round, "agent": statement.agent, "channel": channel, "text": text},
        }
        for channel, text in (statement.said.asides if statement.said else ())
    ]
