"""Questions from JSONL, one a line, and public benchmarks converted to such files.

A line is an object of `question_id`, `source_dataset`, `source_id`, `question_type`, `context`, `question`, `choices`
(objects of `id` and `text`), `correct_answer_id` and `source_metadata`; other keys are ignored. All bad lines are
reported at once, each by file and line. A question that two readers could take for two things (an id given twice,
choices that read alike) is refused, because no result about it would mean anything. Choices that differ in a sign or
symbol do not read alike (`reading.words`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mac_runner.environments.discussion.reading.words import readings
from mac_runner.problems import config_error, found
from mac_runner.types import JsonObject, JsonValue, stable_hash

QUESTIONS_MAX: Final = 500_000
QUESTION_CHARS_MAX: Final = 20_000
CHOICES_MAX: Final = 26
_ID: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")


class QuestionType(StrEnum):
    """What kind of answer a question wants."""

    MULTIPLE_CHOICE = "multiple_choice"
    BINARY = "binary"
    OPEN_ENDED = "open_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the answers a question offers."""

    id: str
    text: str


YES_OR_NO: Final = (Choice(id="yes", text="Yes"), Choice(id="no", text="No"))
"""The choices of a binary question that lists none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, its choices (none: any answer will do) and, where there is one, the right answer.

    `choices` are in the order of the file, which `source_metadata` goes by; `shown` in that of the prompts and labels.
    """

    question_id: str
    question_type: QuestionType
    question: str
    context: str = ""
    choices: tuple[Choice, ...] = ()
    correct_answer_id: str | None = None
    source_dataset: str = ""
    source_id: str = ""
    source_metadata: Mapping[str, JsonValue] | None = None
    order: tuple[str, ...] = ()
    """The ids of the choices in the order in which they are shown; empty for that of the file."""

    @property
    def shown(self) -> tuple[Choice, ...]:
        """The choices as agents read them."""
        return tuple(self.choice(choice_id) for choice_id in self.order) or self.choices

    def choice(self, choice_id: str) -> Choice:
        """The choice with this id."""
        return next(choice for choice in self.choices if choice.id == choice_id)

    def to_json(self) -> JsonObject:
        """The question as a line of JSONL has it."""
        return {
            "question_id": self.question_id,
            "source_dataset": self.source_dataset,
            "source_id": self.source_id,
            "question_type": str(self.question_type),
            "context": self.context,
            "question": self.question,
            "choices": [{"id": choice.id, "text": choice.text} for choice in self.choices],
            "correct_answer_id": self.correct_answer_id,
            "source_metadata": None if self.source_metadata is None else dict(self.source_metadata),
        }


def permuted(question: Question, seed: int) -> Question:
    """The question with its choices shown in an order drawn from `seed` and their ids: all are equally likely."""
    order = sorted(question.choices, key=lambda choice: (stable_hash(seed, "choices", choice.id), choice.id))
    return replace(question, order=tuple(choice.id for choice in order))


def topic_question(number: int, topic: str) -> Question:
    """A topic as an open-ended question."""
    question_id = f"topic_{number:03d}"
    return Question(question_id=question_id, question_type=QuestionType.OPEN_ENDED, question=topic)


def read_questions(files: Mapping[str, bytes]) -> tuple[Question, ...]:
    """The questions of all files in their order. Raises ConfigError naming file and line of each bad one."""
    questions: dict[str, Question] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for place, data in json_lines(files):
        try:
            if isinstance(data, ValueError):
                raise data
            question = parse_question(data)
            if (first := places.get(question.question_id)) is not None:
                raise ValueError(f"question_id {question.question_id!r} is taken already at {first}; give it another")
        except ValueError as fault:
            problems.append(f"{place}: {fault}")
            continue
        questions[question.question_id], places[question.question_id] = question, place
        if len(questions) > QUESTIONS_MAX:
            problems.append(f"{place}: more than {QUESTIONS_MAX} questions; split them over several experiments")
            break
    if not questions and not problems:
        problems.append(f"{', '.join(files)}: no question in it; write one JSON object a line")
    if problems:
        raise config_error(problems)
    return tuple(questions.values())


def json_lines(files: Mapping[str, bytes]) -> Iterator[tuple[str, JsonObject | ValueError]]:
    """For every line that is not blank its place, and the object that it is or why it is none.

    Only line feeds end a line: JSON text may hold other breaks.
    """
    for name, data in files.items():
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            if line.strip():
                try:
                    yield f"{name}:{number}", _object(line)
                except ValueError as fault:
                    yield f"{name}:{number}", fault


def _object(line: bytes) -> JsonObject:
    try:
        value: JsonValue = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as fault:
        raise ValueError(f"byte {line[fault.start]:#04x} is not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deep; a question is a flat object") from None
    except json.JSONDecodeError as fault:
        raise ValueError(f"not valid JSON at column {fault.colno}: {fault.msg}; write one JSON object a line") from None
    if not isinstance(value, dict):
        raise ValueError(f"{found(value)}; write a JSON object with question_id, question_type and question")
    return value


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON; write a finite number or null")


def parse_question(data: JsonObject) -> Question:
    """A question from its JSON object. Raises ValueError: which key, what was found, what is allowed."""
    question_id = text_field(data, "question_id")
    if not _ID.fullmatch(question_id):
        raise ValueError(f"question_id: {found(question_id)}; allowed: 1 to 200 characters without blanks")
    kind = data.get("question_type")
    if not isinstance(kind, str) or kind not in set(QuestionType):
        raise ValueError(f"question_type: {found(kind)}; allowed: {', '.join(QuestionType)}")
    question_type = QuestionType(kind)
    choices = _choices(data.get("choices"), question_type, question_id)
    metadata = data.get("source_metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise ValueError(f"source_metadata: {found(metadata)}; allowed: an object or null")
    return Question(
        question_id=question_id,
        question_type=question_type,
        question=text_field(data, "question"),
        context=text_field(data, "context", is_optional=True),
        choices=choices,
        correct_answer_id=_correct(data.get("correct_answer_id"), choices),
        source_dataset=text_field(data, "source_dataset", is_optional=True),
        source_id=text_field(data, "source_id", is_optional=True),
        source_metadata=metadata,
    )


def text_field(data: Mapping[str, JsonValue], key: str, *, is_optional: bool = False) -> str:
    """The text under `key`, which may be empty or missing where it `is_optional`. Raises ValueError for any other."""
    value = data.get(key)
    if value is None and is_optional:
        return ""
    if not isinstance(value, str) or (not value.strip() and not is_optional):
        raise ValueError(f"{key}: {found(value)}; allowed: a text that is not empty")
    if len(value) > QUESTION_CHARS_MAX:
        raise ValueError(f"{key}: {len(value)} characters; allowed: at most {QUESTION_CHARS_MAX}")
    return value


def _choices(value: JsonValue, question_type: QuestionType, question_id: str) -> tuple[Choice, ...]:
    if value is None or value == []:
        if question_type is QuestionType.MULTIPLE_CHOICE:
            raise ValueError("choices: is missing; a multiple-choice question lists two or more objects of id and text")
        return YES_OR_NO if question_type is QuestionType.BINARY else ()
    if question_type is QuestionType.OPEN_ENDED:
        raise ValueError("choices: an open-ended question has none; leave them out, or change question_type")
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"choices: {found(value)}; allowed: a list of objects of id and text")
    choices = tuple(
        Choice(id=text_field(entry, "id"), text=text_field(entry, "text")) for entry in value if isinstance(entry, dict)
    )
    at_most = 2 if question_type is QuestionType.BINARY else CHOICES_MAX
    if not 2 <= len(choices) <= at_most:
        raise ValueError(f"choices: {len(choices)} of them; a {question_type} question has 2 to {at_most}")
    ids: dict[str, Choice] = {}
    read: dict[str, Choice] = {}
    for choice, reading in zip(choices, readings([choice.text for choice in choices]), strict=True):
        if not reading:
            raise ValueError(f"choices: {found(choice.text)}; a choice needs a letter, a digit or a sign in its text")
        if ids.setdefault(choice.id, choice) is not choice:
            raise ValueError(f"choices: two of question {question_id!r} have the id {choice.id!r}; give each its own")
        if (first := read.setdefault(reading, choice)) is not choice:
            pair = f"{first.text[:80]!r} ({first.id}) and {choice.text[:80]!r} ({choice.id})"
            raise ValueError(f"choices: {pair} of question {question_id!r} read alike; make them different")
    return choices


def _correct(value: JsonValue, choices: tuple[Choice, ...]) -> str | None:
    if value is None:
        return None
    ids = [choice.id for choice in choices]
    if not isinstance(value, str) or value not in ids:
        allowed = f"null, or the id of a choice ({', '.join(ids)})" if ids else "null for an open-ended question"
        raise ValueError(f"correct_answer_id: {found(value)}; allowed: {allowed}")
    return value
