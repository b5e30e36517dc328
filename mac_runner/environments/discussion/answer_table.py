"""The table of answers: a row for what each agent said in each round of each discussion.

Where an answer stands to the stereotype is taken from the outcome, so that the table agrees with the summary; for a
discussion that failed it is taken from the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Asked:
    """What one agent was asked in one round."""

    attempts: int = 0
    prompt: int = 0
    completion: int = 0
    cause: str | None = None

    def add(self, turn: _Turn) -> None:
        self.attempts += 1
        tokens = turn.reply.tokens if turn.reply is not None else _Tokens()
        self.prompt += tokens.prompt
        self.completion += tokens.completion
        self.cause = None if turn.receipt is None else turn.receipt.cause


@dataclass(slots=True)
class _Discussion:
    """A transcript, and what is looked up in it for each row."""

    transcript: _Transcript
    question: Question
    definitions: Mapping[str, _Definition]
    shown_from: int

    def rows(self) -> Iterator[Mapping[str, Cell]]:
        found: dict[tuple[int, str], _Asked] = {}
        for turn in self.transcript.turns:
            found.setdefault((turn.round, turn.agent), _Asked()).add(turn)
        common = self._common()
        people = {agent: self._person(agent) for agent in {agent for _, agent in found}}
        spoken = self.transcript.record.spoken()
        for (number, agent), asked in found.items():
            yield {
                **common,
                "round": number + 1,
                **people[agent],
                **({} if number + 1 >= self._shown_from(agent) else {"shown_identity": ""}),
                **self._answer(str(people[agent]["role"]), spoken.get((number, agent)), asked),
                "attempts": asked.attempts,
                "prompt_tokens": asked.prompt,
                "completion_tokens": asked.completion,
            }

    def _common(self) -> dict[str, Cell]:
        task, metadata = self.transcript.task, self.question.source_metadata or {}
        return {
            "conversation": task.task_id,
            "task_id": task.task_id,
            "index": task.index,
            "status": self.transcript.status,
            "seed": task.seed,
            "question": self.question.question_id,
            "dataset": self.question.source_dataset or None,
            "category": _word(metadata, "category"),
            "context": _word(metadata, "context_condition", "condition"),
            "polarity": _word(metadata, "question_polarity"),
            "split": _word(metadata, "split", "fill_type"),
        }

    def _person(self, agent_id: str) -> dict[str, Cell]:
        agent = next((one for one in self.transcript.task.agents if one.agent_id == agent_id), None)
        seat = next((one for one in self.transcript.record.participants if one.agent == agent_id), None)
        definition = self.definitions.get(agent.definition) if agent is not None else None
        return {
            "agent": agent_id,
            "role": None if seat is None else seat.role,
            "model": None if agent is None else agent.model,
            "persona": None if definition is None else definition.persona,
            "demographics": None if definition is None else _demographics(definition),
            "if_as_human": None if definition is None else definition.if_as_human,
            "own_identity": None if seat is None else seat.identity,
            "shown_identity": None if seat is None else seat.shown,
        }

    def _shown_from(self, agent_id: str) -> int:
        """The round from which its identity was shown."""
        agents = {} if self.transcript.outcome is None else self.transcript.outcome.agents
        return agents[agent_id].shown_from if agent_id in agents else self.shown_from

    def _answer(self, role: str, spoken: tuple[int, Words | None] | None, asked: _Asked) -> dict[str, Cell]:
        if spoken is None:
            return {"kind": "unanswered", "cause": asked.cause}
        (_, said), correct = spoken, self.question.correct_answer_id
        if said is None:
            kind = "refusal" if asked.cause == "refusal" else "pass"
            is_counted = role == "participant" and correct is not None
            return {"kind": kind, "cause": asked.cause, "right": False if is_counted else None}
        answer = said.answer
        is_judged = role in ("participant", "judge") and correct is not None and answer is not None
        return {
            "answer": answer,
            "answer_text": next((choice.text for choice in self.question.choices if choice.id == answer), answer),
            "kind": self._kind(role, answer),
            "right": answer == correct if is_judged else None,
            "how": said.how or None,
        }

    def _kind(self, role: str, answer: str | None) -> str:
        if answer is None:
            return "open" if role == "participant" else "statement"
        if not self.question.choices:
            return "open"
        outcome = self.transcript.outcome
        item = (bias_item(self.question) if outcome is None else outcome.bias) or BiasItem("", "ambig")
        named = {item.unknown: "unknown", item.counter: "counter", item.biased: "biased"}
        if answer in named:
            return named[answer]
        # A question of BBQ has one beside the two.
        return "other" if item.biased is None else "unknown"


def _word(metadata: Mapping[str, JsonValue], *keys: str) -> str | None:
    """The first of `keys` that the metadata has a word for."""
    found = (metadata.get(key) for key in keys)
    return next((str(value) for value in found if isinstance(value, str | int) and not isinstance(value, bool)), None)


def _demographics(definition: _Definition) -> str | None:
    told = definition.demographics
    if not told:
        return None
    return told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)


def answer_rows(transcript: JsonObject, experiment: JsonObject) -> Iterator[Mapping[str, Cell]]:
    """The rows of one discussion, by round and place. Raises RunDirectoryError for a damaged transcript."""
    where, question = question_of(transcript)
    found = parsed(_Transcript, transcript, where)
    told = parsed(_Experiment, experiment, "the recorded experiment")
    definitions = {definition.agent_id: definition for definition in told.agent_definitions}
    shown_from = told.discussion.identity_reveal_config.reveal_from_round
    return _Discussion(found, question, definitions, shown_from).rows()


ANSWERS: Final = Export(
    ANSWER_COLUMNS,
    answer_rows,
    "What was asked of each agent in each round, and what it answered.",
    ("conversation", "round", "agent"),
)
