"""The table of answers: a row for what each agent said in each round of each discussion.

Where an answer stands to the stereotype is taken from the outcome, so that the table agrees with the summary; for a
discussion that failed it is taken from the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mac_runner.environments.discussion.questions import Question, parse_question
from mac_runner.environments.discussion.targets import bias_item
from mac_runner.errors import RunDirectoryError
from mac_runner.flat import Cell
from mac_runner.results import AgentColumns, Export, ExportColumn, parsed
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
    material: dict[str, object]


class _Participant(msgspec.Struct, frozen=True):
    agent: str
    role: str
    identity: str = ""
    shown: str = ""


class _Said(msgspec.Struct, frozen=True):
    answer: str | None = None
    how: str = ""


class _Data(msgspec.Struct, frozen=True):
    """The data of an event; only those of statements have `role`."""

    round: int = 0
    agent: str = ""
    role: str | None = None
    said: _Said | None = None


class _Event(msgspec.Struct, frozen=True):
    data: _Data


class _Record(msgspec.Struct, frozen=True):
    participants: list[_Participant] = []
    events: list[_Event] = []


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


class _Item(msgspec.Struct, frozen=True):
    biased: str | None = None
    counter: str | None = None
    unknown: str | None = None


class _Shown(msgspec.Struct, frozen=True):
    """From which round on, from 1, the identity of an agent was shown."""

    shown_from: int = 1


class _Outcome(msgspec.Struct, frozen=True):
    bias: _Item | None = None
    agents: dict[str, _Shown] = {}


class _Transcript(msgspec.Struct, frozen=True):
    task: _Task
    status: str
    record: _Record
    turns: list[_Turn]
    outcome: _Outcome | None = None


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
    item: _Item | None
    definitions: Mapping[str, _Definition]
    shown_from: int
    asked: dict[tuple[int, str], _Asked] = field(default_factory=dict)

    def rows(self) -> Iterator[Mapping[str, Cell]]:
        for turn in self.transcript.turns:
            self.asked.setdefault((turn.round, turn.agent), _Asked()).add(turn)
        common = self._common()
        people = {agent: self._person(agent) for agent in {agent for _, agent in self.asked}}
        said = {(data.round, data.agent): data for data in self._statements()}
        for (number, agent), asked in self.asked.items():
            data = said.get((number, agent))
            yield {
                **common,
                "round": number + 1,
                **people[agent],
                **({} if number + 1 >= self._shown_from(agent) else {"shown_identity": ""}),
                **self._answer(str(people[agent]["role"]), data, asked),
                "attempts": asked.attempts,
                "prompt_tokens": asked.prompt,
                "completion_tokens": asked.completion,
            }

    def _statements(self) -> Iterator[_Data]:
        return (event.data for event in self.transcript.record.events if event.data.role is not None)

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

    def _answer(self, role: str, data: _Data | None, asked: _Asked) -> dict[str, Cell]:
        if data is None:
            return {"kind": "unanswered", "cause": asked.cause}
        correct = self.question.correct_answer_id
        if data.said is None:
            kind = "refusal" if asked.cause == "refusal" else "pass"
            is_counted = role == "participant" and correct is not None
            return {"kind": kind, "cause": asked.cause, "right": False if is_counted else None}
        answer = data.said.answer
        is_judged = role in ("participant", "judge") and correct is not None and answer is not None
        return {
            "answer": answer,
            "answer_text": self._text(answer),
            "kind": self._kind(role, answer),
            "right": answer == correct if is_judged else None,
            "how": data.said.how or None,
        }

    def _kind(self, role: str, answer: str | None) -> str:
        if answer is None:
            return "open" if role == "participant" else "statement"
        if not self.question.choices:
            return "open"
        item = self.item or _Item()
        named = {item.unknown: "unknown", item.counter: "counter", item.biased: "biased"}
        if answer in named:
            return named[answer]
        # A question of BBQ has one beside the two.
        return "other" if item.biased is None else "unknown"

    def _text(self, answer: str | None) -> str | None:
        return next((choice.text for choice in self.question.choices if choice.id == answer), answer)


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
    task = transcript.get("task")
    where = f"the transcript of {task.get('task_id') if isinstance(task, dict) else None!r}"
    found = parsed(_Transcript, transcript, where)
    told = parsed(_Experiment, experiment, "the recorded experiment")
    material = task.get("material") if isinstance(task, dict) else None
    try:
        question = parse_question(material if isinstance(material, dict) else {})
    except ValueError as fault:
        raise RunDirectoryError(f"{where}: {fault}; check the run with verify") from fault
    item = None if found.outcome is None else found.outcome.bias
    if found.outcome is None and (asked := bias_item(question)) is not None:
        item = parsed(_Item, asked, where)
    definitions = {definition.agent_id: definition for definition in told.agent_definitions}
    shown_from = told.discussion.identity_reveal_config.reveal_from_round
    return _Discussion(found, question, item, definitions, shown_from).rows()


ANSWERS: Final = Export(
    ANSWER_COLUMNS,
    answer_rows,
    "What was asked of each agent in each round, and what it answered.",
    ("conversation", "round", "agent"),
)

DISCUSSION_CONVERSATION_COLUMNS: Final[Mapping[str, ExportColumn]] = {
    "question_id": ExportColumn("text", "the id of the question", source="outcome.question_id"),
    "question_type": ExportColumn("text", "the type of the question", source="outcome.question_type"),
    "source_dataset": ExportColumn("text", "where the question comes from", source="outcome.source_dataset"),
    "correct_answer_id": ExportColumn("text", "the right choice", source="outcome.correct_answer_id"),
    "rounds": ExportColumn("integer", "how many rounds it lasted", "rounds", "outcome.rounds"),
    "ended_by": ExportColumn("text", "what ended it, such as `max_rounds`", source="outcome.ended_by"),
    "answer": ExportColumn("text", "the answer of the group", source="outcome.answer"),
    "verdict": ExportColumn("text", "the verdict of a judge", source="outcome.verdict"),
    "consensus": ExportColumn("truth", "whether all agreed in the last round", source="outcome.consensus"),
    "passes": ExportColumn("integer", "how many statements had no use", "statements", "outcome.passes"),
}

_SEAT: Final = "record.participants[]"
DISCUSSION_AGENT_COLUMNS: Final = (
    AgentColumns(
        _SEAT,
        "agent",
        {
            "role": ExportColumn("text", "its role in the discussion", source=f"{_SEAT}.role"),
            "identity": ExportColumn("text", "what it read of itself", source=f"{_SEAT}.identity"),
            "shown": ExportColumn("text", "what others saw of it besides its id", source=f"{_SEAT}.shown"),
            "waits_for": ExportColumn("texts", "whom it speaks after within a round", source=f"{_SEAT}.waits_for[]"),
            "reads": ExportColumn("texts", "whose statements it reads", source=f"{_SEAT}.reads[]"),
            "seat_more": ExportColumn("json", "what else the record has of its seat", source=f"{_SEAT}.*"),
        },
    ),
)
