"""What is kept of a discussion: its record in the transcript, written and read, its outcome, and the table of answers.

What the fields mean is told by their annotations: the columns of exported tables and the list in the documentation come
from these.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from mac_runner.environments.dialogue import Replies
from mac_runner.environments.discussion.formats import benchmark_item
from mac_runner.environments.discussion.influence import (
    NO_CASES,
    changes,
    exposures,
    influence,
    shares,
    shown,
)
from mac_runner.environments.discussion.outcome import AgentPart, BiasItem, DiscussionResult, RolePart
from mac_runner.environments.discussion.questions import Question, parse_question
from mac_runner.environments.discussion.reading.answers import SHORT_ANSWER_CHARS_MAX
from mac_runner.environments.discussion.settings import DiscussionRole
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
from mac_runner.errors import RunDirectoryError
from mac_runner.flat import Cell, columns_of
from mac_runner.measures import Share
from mac_runner.results import AgentColumns, Export, ExportColumn, parsed, section
from mac_runner.structs import as_json
from mac_runner.types import JsonObject, JsonValue


class Participant(msgspec.Struct, frozen=True):
    """One agent of the discussion."""

    agent: Annotated[str, Meta(description="its id")]
    role: Annotated[DiscussionRole, Meta(description="its role in the discussion")]
    identity: Annotated[str, Meta(description="what it read of itself")] = ""
    shown: Annotated[str, Meta(description="what others saw of it besides its id")] = ""
    waits_for: Annotated[list[str], Meta(description="whom it speaks after within a round")] = []
    reads: Annotated[list[str], Meta(description="whose statements it reads")] = []
    channels: Annotated[list[str], Meta(description="its private channels")] = []


class Words(msgspec.Struct, frozen=True):
    """What a statement says to all who read it."""

    text: Annotated[str, Meta(description="its words")]
    answer: Annotated[str | None, Meta(description="a choice, or words on an open question")] = None
    how: Annotated[str, Meta(description="how the answer was recognised")] = ""
    asks: Annotated[str, Meta(description="a moderator's question")] = ""
    ends: Annotated[bool, Meta(description="whether a judge ends the discussion with it")] = False


class Spoken(msgspec.Struct, frozen=True):
    """The data of an event: of the question, which is the first, of a statement, or of words in a private channel."""

    question_id: Annotated[str | UnsetType | None, Meta(description="of the question")] = UNSET
    order: Annotated[list[str] | UnsetType, Meta(description="of the question: its choices as they were shown")] = UNSET
    round: Annotated[int | UnsetType, Meta(description="the round, from 0")] = UNSET
    agent: Annotated[str | UnsetType, Meta(description="who spoke")] = UNSET
    role: Annotated[DiscussionRole | UnsetType, Meta(description="of a statement: the role of who made it")] = UNSET
    said: Annotated[
        Words | UnsetType | None, Meta(description="of a statement: what it says; null where the agent passed")
    ] = UNSET
    channel: Annotated[str | UnsetType, Meta(description="a private channel")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="the words in it")] = UNSET


class Event(msgspec.Struct, frozen=True):
    """The question, a statement, or words in a private channel."""

    when: Annotated[str, Meta(description="when it was: `Question`, `Round 1`")]
    turn: Annotated[str | None, Meta(description="the turn that made it; null for the question")]
    audience: Annotated[list[str] | Literal["all"], Meta(description="`all`, or those who read it")]
    text: Annotated[str, Meta(description="what it is, in words")]
    data: Annotated[Spoken, Meta(description="what it is, as data")]


class Record(msgspec.Struct, frozen=True):
    """The environment's part of the transcript."""

    participants: Annotated[list[Participant], Meta(description="who took part")] = []
    events: Annotated[list[Event], Meta(description="what was asked and said, in order")] = []

    def spoken(self) -> dict[tuple[int, str], tuple[int, Words | None]]:
        """By round and agent, the event of each statement, and what it says."""
        return {
            (data.round, data.agent): (number, data.said or None)
            for number, event in enumerate(self.events)
            for data in (event.data,)
            if data.role and data.agent and data.round is not UNSET
        }


def question_of(transcript: JsonObject) -> tuple[str, Question]:
    """What a transcript is called, and its question. Raises RunDirectoryError for one that cannot be read."""
    task = section(transcript, "task")
    where = f"the transcript of {task.get('task_id')!r}"
    try:
        return where, parse_question(section(task, "material"))
    except ValueError as fault:
        raise RunDirectoryError(f"{where}: the question cannot be read: {fault}; check the run with verify") from fault


_SEAT: Final = "record.participants[]"
DISCUSSION_AGENT_COLUMNS: Final = (
    AgentColumns(
        _SEAT,
        "agent",
        {
            **columns_of(_SEAT, Participant, without=("agent", "channels")),
            "seat_more": ExportColumn("json", "what else the record has of its seat", source=f"{_SEAT}.*"),
        },
    ),
)


def record_of(state: DiscussionState) -> JsonObject:
    """The environment's part of the transcript."""
    question = state.question
    parts = (question.context, question.question, " / ".join(choice.text for choice in question.shown))
    asked = Event(
        when="Question",
        turn=None,
        audience="all",
        text=" ".join(filter(None, parts)),
        data=Spoken(question_id=question.question_id, order=_order(state)),
    )
    participants = [
        Participant(
            agent=seat.agent,
            role=seat.role,
            identity=seat.identity.own,
            shown=seat.identity.shown,
            waits_for=sorted(seat.waits_for),
            reads=sorted(seat.reads),
            channels=[*seat.channels],
        )
        for seat in state.seats
    ]
    said = (event for statement in state.in_order() for event in _events(statement, state))
    return as_json(Record(participants, [asked, *said]))


def state_of(state: DiscussionState, ended_by: Ending | None) -> JsonObject:
    """All that the future of a discussion depends on but for what is to be corrected."""
    return {
        "question": state.question.to_json(),
        **({"order": [*_order(state)]} if state.question.order else {}),
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
    moved = influence(state)
    rounds, question, verdict, changed = state.round, state.question, verdict_of(state), [*changes(state)]
    by_round = shares((change.round, change.has_changed) for change in changed)
    said = {
        seat.agent: [state.statements[number, seat.place] for number in range(rounds)] for seat in state.participants
    }
    return as_json(
        DiscussionResult(
            question_id=question.question_id,
            question_type=str(question.question_type),
            source_dataset=question.source_dataset,
            correct_answer_id=question.correct_answer_id,
            rounds=rounds,
            ended_by=str(ended_by),
            answer=_short(verdict if verdict is not None else majority(state.answers(rounds - 1))),
            verdict=_short(verdict),
            consensus=consensus(state, rounds - 1) is not None,
            answers={agent: [_short(one.answer) for one in given] for agent, given in said.items()},
            passes=sum(statement.said is None for statement in state.in_order()),
            changes=[by_round.get(number, NO_CASES) for number in range(1, rounds)],
            changes_by_identity=shares((shown(one.seat, one.round), one.has_changed) for one in changed),
            influence=shares(
                (shown(case.author, case.round), case.has_followed)
                for case in exposures(state)
                if case.author.role == "participant"
            ),
            roles={seat.agent: _role(state, seat, moved) for seat in state.seats if seat.role != "participant"},
            bias=bias_item(question),
            item=benchmark_item(question),
            order=_order(state),
            agents={
                seat.agent: AgentPart(
                    role=seat.role,
                    model=seat.model,
                    own=seat.identity.own,
                    shown=seat.identity.shown,
                    shown_from=seat.identity.shown_from + 1,
                )
                for seat in state.seats
            },
            how={agent: [one.said.how if one.said else None for one in given] for agent, given in said.items()},
            lapses={agent: [one.cause for one in given] for agent, given in said.items()},
            tokens={
                seat.agent: (one.turns, one.tokens.prompt, one.tokens.completion)
                for seat in state.seats
                for one in (replies[seat.agent],)
            },
            moved=moved,
        )
    )


def _role(state: DiscussionState, seat: Seat, moved: Mapping[str, Mapping[str, Share]]) -> RolePart:
    """What an agent other than a participant did, and who followed it."""
    said = [one.said for one in state.in_order() if one.place == seat.place and one.said is not None]
    return RolePart(
        role=seat.role,
        statements=len(said),
        questions=sum(bool(defuse(one.asks)) for one in said),
        verdicts=sum(one.ends for one in said),
        followed=sum(moved.get(seat.agent, {}).values(), NO_CASES),
    )


def _short(answer: str | None) -> str | None:
    """An answer as a row of the index has room for it; the id of a choice is short enough."""
    return None if answer is None else answer[:SHORT_ANSWER_CHARS_MAX]


def _order(state: DiscussionState) -> list[str]:
    return [choice.id for choice in state.question.shown]


def _events(statement: Statement, state: DiscussionState) -> Iterator[Event]:
    """A statement. What it says in private channels are events of their own."""
    said, agent, question = statement.said, statement.agent, state.question

    def event(audience: list[str] | Literal["all"], text: str, data: Spoken) -> Event:
        return Event(f"Round {statement.round + 1}", statement.turn, audience, text, data)

    readers = [seat.agent for seat in state.seats if seat.agent == agent or agent in seat.reads | seat.waits_for]
    spoken = Spoken(round=statement.round, agent=agent, role=statement.role, said=None)
    text = f"{agent} passes."
    if said is not None:
        spoken = replace(spoken, said=Words(said.text, said.answer, said.how, said.asks, said.ends))
        answer = defuse(said.answer or "")
        if said.answer is not None and question.choices:
            answer = f"[{question.choice(said.answer).text}]"
        asked = f"Question: {defuse(said.asks)}" if said.asks else ""
        text = f"{agent}: {' '.join(filter(None, (answer, defuse(said.text), asked)))}"
    yield event("all" if len(readers) == len(state.seats) else sorted(readers), text, spoken)
    for channel, words in said.asides if said is not None else ():
        members = sorted(seat.agent for seat in state.seats if channel in seat.channels)
        data = Spoken(round=statement.round, agent=agent, channel=channel, text=words)
        yield event(members, f"{agent} in {channel}: {defuse(words)}", data)


ANSWER_COLUMNS: Final[Mapping[str, ExportColumn]] = {
    "conversation": ExportColumn("text", "the discussion"),
    "task_id": ExportColumn("text", "`conversation`, under its earlier name"),
    "index": ExportColumn("integer", "its number, from 0; in all combinations of a grid the same question"),
    "status": ExportColumn("text", "`finished` or `failed`; a summary counts answers of finished ones"),
    "seed": ExportColumn("integer", "the seed of the discussion"),
    "question": ExportColumn("text", "the id of the question"),
    "dataset": ExportColumn("text", "where the question comes from"),
    "category": ExportColumn("text", "`category` of its metadata"),
    "context": ExportColumn("text", "`context_condition` or `condition` of its metadata, such as `ambig`"),
    "polarity": ExportColumn("text", "`question_polarity` of its metadata"),
    "split": ExportColumn("text", "`split` or `fill_type` of its metadata, such as `explicit`"),
    "round": ExportColumn("integer", "the round, from 1"),
    "agent": ExportColumn("text", "who spoke"),
    "role": ExportColumn("text", "its role; answers of a `participant` count, and the verdict of a `judge`"),
    "model": ExportColumn("text", "its entry of `model_definitions`"),
    "persona": ExportColumn("text", "its `persona`"),
    "demographics": ExportColumn("text", "its `demographics`, as JSON where there are several"),
    "if_as_human": ExportColumn("truth", "its `if_as_human`"),
    "own_identity": ExportColumn("text", "what it read of itself"),
    "shown_identity": ExportColumn("text", "what others saw of it in this round besides its id"),
    "answer": ExportColumn("text", "the id of its choice, or its words on an open question"),
    "answer_text": ExportColumn("text", "the text of its choice"),
    "kind": ExportColumn(
        "text",
        "`biased`, `counter`, `unknown`, `other` (a choice that is none of these), `open` (words), `refusal` or `pass` "
        "(no usable reply), `statement` (a role that gives no answer here), `unanswered` (the discussion failed)",
    ),
    "right": ExportColumn("truth", "whether the answer is right; false for a pass; empty without a right answer"),
    "how": ExportColumn("text", "how the answer was recognised"),
    "cause": ExportColumn("text", "why the agent passed"),
    "attempts": ExportColumn("integer", "how many replies it took"),
    "prompt_tokens": ExportColumn("integer", "tokens of its prompts, over all attempts"),
    "completion_tokens": ExportColumn("integer", "tokens of its replies, over all attempts"),
}


class _Agent(msgspec.Struct, frozen=True):
    agent_id: str
    definition: str
    model: str


class _Task(msgspec.Struct, frozen=True):
    task_id: str
    index: int
    seed: int
    agents: list[_Agent]


class _Tokens(msgspec.Struct, frozen=True):
    prompt: int = 0
    completion: int = 0


class _Reply(msgspec.Struct, frozen=True):
    tokens: _Tokens = _Tokens()


class _Receipt(msgspec.Struct, frozen=True):
    cause: str | None = None


class _Turn(msgspec.Struct, frozen=True):
    round: int
    agent: str
    reply: _Reply | None = None
    receipt: _Receipt | None = None


class _Transcript(msgspec.Struct, frozen=True):
    task: _Task
    status: str
    record: Record
    turns: list[_Turn]
    outcome: DiscussionResult | None = None


class _Definition(msgspec.Struct, frozen=True):
    agent_id: str
    persona: str | None = None
    demographics: dict[str, str | int] | str | None = None
    if_as_human: bool | None = None


class _Reveal(msgspec.Struct, frozen=True):
    reveal_from_round: int = 1


class _Settings(msgspec.Struct, frozen=True):
    identity_reveal_config: _Reveal = _Reveal()


class _Experiment(msgspec.Struct, frozen=True):
    agent_definitions: list[_Definition] = []
    discussion: _Settings = _Settings()


def answer_rows(transcript: JsonObject, experiment: JsonObject) -> Iterator[Mapping[str, Cell]]:
    """The rows of one discussion, by round and place. Raises RunDirectoryError for a damaged transcript.

    Where an answer stands to the stereotype is taken from the outcome, so that the table agrees with the summary; for a
    discussion that failed it is taken from the question.
    """
    where, question = question_of(transcript)
    found = parsed(_Transcript, transcript, where)
    told = parsed(_Experiment, experiment, "the recorded experiment")
    task, metadata = found.task, question.source_metadata or {}
    common: dict[str, Cell] = {
        "conversation": task.task_id,
        "task_id": task.task_id,
        "index": task.index,
        "status": found.status,
        "seed": task.seed,
        "question": question.question_id,
        "dataset": question.source_dataset or None,
        "category": _word(metadata, "category"),
        "context": _word(metadata, "context_condition", "condition"),
        "polarity": _word(metadata, "question_polarity"),
        "split": _word(metadata, "split", "fill_type"),
    }
    turns: defaultdict[tuple[int, str], list[_Turn]] = defaultdict(list)
    for turn in found.turns:
        turns[turn.round, turn.agent].append(turn)
    people = {agent: _person(agent, found, told) for _, agent in turns}
    parts = {} if found.outcome is None else found.outcome.agents
    spoken = found.record.spoken()
    for (number, agent), asked in turns.items():
        settings = told.discussion.identity_reveal_config
        shown_from = parts[agent].shown_from if agent in parts else settings.reveal_from_round
        is_hidden = number + 1 < shown_from
        tokens = [turn.reply.tokens for turn in asked if turn.reply is not None]
        cause = None if (receipt := asked[-1].receipt) is None else receipt.cause
        yield {
            **common,
            "round": number + 1,
            **people[agent],
            **({"shown_identity": ""} if is_hidden else {}),
            **_answer(found, question, people[agent], cause, spoken.get((number, agent))),
            "attempts": len(asked),
            "prompt_tokens": sum(each.prompt for each in tokens),
            "completion_tokens": sum(each.completion for each in tokens),
        }


def _word(metadata: Mapping[str, JsonValue], *keys: str) -> str | None:
    """The first of `keys` that the metadata has a word for."""
    found = (metadata.get(key) for key in keys)
    return next((str(value) for value in found if isinstance(value, str | int) and not isinstance(value, bool)), None)


def _person(agent_id: str, found: _Transcript, told: _Experiment) -> dict[str, Cell]:
    person: dict[str, Cell] = {"agent": agent_id}
    for seat in found.record.participants:
        if seat.agent == agent_id:
            person |= {"role": seat.role, "own_identity": seat.identity, "shown_identity": seat.shown}
    for agent in found.task.agents:
        if agent.agent_id == agent_id:
            person["model"] = agent.model
            for definition in told.agent_definitions:
                if definition.agent_id == agent.definition:
                    traits = definition.demographics
                    words = traits if isinstance(traits, str | None) else json.dumps(traits, ensure_ascii=False)
                    person |= {"persona": definition.persona, "demographics": words if traits else None}
                    person["if_as_human"] = definition.if_as_human
    return person


def _answer(
    found: _Transcript,
    question: Question,
    person: Mapping[str, Cell],
    cause: str | None,
    spoken: tuple[int, Words | None] | None,
) -> dict[str, Cell]:
    """What was answered; without a statement the discussion had failed."""
    if spoken is None:
        return {"kind": "unanswered", "cause": cause}
    (_, said), role, correct = spoken, person.get("role"), question.correct_answer_id
    if said is None:
        right = False if role == "participant" and correct is not None else None
        return {"kind": "refusal" if cause == "refusal" else "pass", "cause": cause, "right": right}
    answer = said.answer
    is_judged = role in ("participant", "judge") and correct is not None and answer is not None
    item = (bias_item(question) if found.outcome is None else found.outcome.bias) or BiasItem("", "ambig")
    named = {item.unknown: "unknown", item.counter: "counter", item.biased: "biased"}
    if answer is None:
        kind = "open" if role == "participant" else "statement"
    elif not question.choices:
        kind = "open"
    else:
        # A question of BBQ has one choice beside the two.
        kind = named.get(answer, "other" if item.biased is None else "unknown")
    return {
        "answer": answer,
        "answer_text": next((choice.text for choice in question.choices if choice.id == answer), answer),
        "kind": kind,
        "right": answer == correct if is_judged else None,
        "how": said.how or None,
    }


ANSWERS: Final = Export(
    ANSWER_COLUMNS,
    answer_rows,
    "What was asked of each agent in each round, and what it answered.",
    ("conversation", "round", "agent"),
)
