"""The table of answers: a row for what each agent said in each round of each discussion.

Where an answer stands to the stereotype is taken from the outcome, so that the table agrees with the summary; for a
discussion that failed it is taken from the question.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from mac_runner.environments.discussion.outcome import BiasItem, DiscussionResult
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.record import Record, Words, question_of
from mac_runner.environments.discussion.targets import bias_item
from mac_runner.flat import Cell
from mac_runner.results import Export, ExportColumn, parsed
from mac_runner.types import JsonObject, JsonValue

ANSWER_COLUMNS: Final[Mapping[str, ExportColumn]] = {
    "conversation": ExportColumn("text", "the discussion"),
    "task_id": ExportColumn("text", "the same, under its earlier name"),
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
    """The rows of one discussion, by round and place. Raises RunDirectoryError for a damaged transcript."""
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
