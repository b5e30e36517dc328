"""BBQ: a bias benchmark for question answering (A. Parrish et al., Findings of ACL 2022).

Its additional_metadata.csv says which answer of each question is the biased one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mac_runner.environments.discussion.formats.format import Format
from mac_runner.environments.discussion.questions import Choice, Question, QuestionType, text_field
from mac_runner.environments.discussion.targets import TARGET_LOC, bias_item
from mac_runner.errors import ConfigError
from mac_runner.problems import config_error
from mac_runner.types import JsonObject

_TOLD_ELSEWHERE: Final = ("context", "question")
_IDS: Final = "ABC"


def bbq_question(line: JsonObject, file: str) -> Question:
    """A line of BBQ as a question; what the bias scores need stays with it under `source_metadata`.

    `file` is the name of the release's file, which replaces the category where a line has none.
    """
    label = line.get("label")
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(_IDS):
        raise ValueError(f"label: found {label!r}; allowed: 0, 1 or 2, the answer that is right")
    example = line.get("example_id")
    if not isinstance(example, int | str) or isinstance(example, bool):
        raise ValueError(f"example_id: found {example!r}; allowed: a number")
    category = line.get("category") or file
    return Question(
        question_id=question_id(str(category), str(example)),
        question_type=QuestionType.MULTIPLE_CHOICE,
        context=text_field(line, "context"),
        question=text_field(line, "question"),
        choices=tuple(
            Choice(id=choice_id, text=text_field(line, f"ans{number}")) for number, choice_id in enumerate(_IDS)
        ),
        correct_answer_id=_IDS[label],
        source_dataset="BBQ",
        source_id=str(example),
        source_metadata={key: value for key, value in line.items() if key not in _TOLD_ELSEWHERE},
    )


def question_id(category: str, example: str) -> str:
    """The id of a question of the release."""
    return f"bbq_{category}_{example}".lower()


_COLUMNS: Final = ("category", "question_index", "example_id", TARGET_LOC)
_PLACES: Final[Mapping[str, int | None]] = {"0": 0, "1": 1, "2": 2, "NA": None, "": None}


@dataclass(slots=True)
class _Row:
    """What the file says of one question. It may have several lines that differ in other columns."""

    question_index: str
    places: set[int]


class BbqMetadata:
    """The rows of the file, by the id of their question."""

    def __init__(self, name: str, data: bytes) -> None:
        """Raises ConfigError naming every bad line."""
        self._name = name
        self._rows: dict[str, _Row] = {}
        problems: list[str] = []
        for number, fields in _lines(name, data):
            try:
                self._take(fields)
            except ValueError as fault:
                problems.append(f"{name}:{number}: {fault}")
        if problems:
            raise config_error(problems)

    def _take(self, fields: Mapping[str, str]) -> None:
        category, index, example = (text_field(fields, column) for column in _COLUMNS[:3])
        if (said := fields[TARGET_LOC]) not in _PLACES:
            raise ValueError(f"{TARGET_LOC}: found {said!r:.80}; allowed: 0, 1, 2 or NA")
        place = _PLACES[said]
        row = self._rows.setdefault(question_id(category, example), _Row(index, set()))
        if row.question_index != index:
            raise ValueError(f"question_index: found {index!r:.80}; an earlier line has {row.question_index!r:.80}")
        if place is not None:
            row.places.add(place)

    def joined(self, question: Question) -> Question:
        """The question with its `target_loc`: null for NA and for lines that disagree. Raises ValueError."""
        metadata = dict(question.source_metadata or {})
        if (row := self._rows.get(question.question_id)) is None:
            raise ValueError(f"example_id: {self._name} has no line for it; take both files from one release")
        index = str(metadata.get("question_index"))
        if row.question_index != index:
            raise ValueError(
                f"question_index: found {index!r:.80}, but {self._name} has {row.question_index!r:.80}; "
                "take both files from one release"
            )
        place = next(iter(row.places)) if len(row.places) == 1 else None
        return replace(question, source_metadata={**metadata, TARGET_LOC: place})

    def check(self, questions: Sequence[Question]) -> None:
        """Refuse the file of before July 2022, where `target_loc` is the stereotyped group whatever the polarity."""
        agreeing = differing = 0
        for question in questions:
            metadata = {key: value for key, value in (question.source_metadata or {}).items() if key != TARGET_LOC}
            released, found = bias_item(question), bias_item(replace(question, source_metadata=metadata))
            if metadata.get("question_polarity") != "nonneg" or released is None or found is None:
                continue
            if released.biased is not None and found.biased is not None:
                agreeing += released.biased == found.biased
                differing += released.biased != found.biased
        if differing > agreeing:
            raise ConfigError(
                f"{self._name}: {TARGET_LOC}: names the stereotyped group in {differing} of {agreeing + differing} "
                "questions with polarity nonneg, as in the release of before July 2022; allowed: the biased answer, "
                "as in supplemental/additional_metadata.csv of the present release"
            )


def _lines(name: str, data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line of the file with its number. Raises ConfigError for any other file."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise ConfigError(
            f"{name}:{line}: byte {data[fault.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    begins = 1
    try:
        header = next(rows, [])
        if lacking := [column for column in _COLUMNS if column not in header]:
            raise ConfigError(
                f"{name}:1: {lacking[0]}: is missing in the header; take additional_metadata.csv of the release of BBQ"
            )
        places = {column: header.index(column) for column in _COLUMNS}
        begins = rows.line_num + 1
        for row in rows:
            if row and len(row) != len(header):
                raise ConfigError(f"{name}:{begins}: {len(row)} columns; the header has {len(header)}")
            if row:
                yield begins, {column: row[place].strip() for column, place in places.items()}
            begins = rows.line_num + 1
    except csv.Error as fault:
        raise ConfigError(f"{name}:{begins}: not valid CSV: {fault}; take the file as it was released") from None


BBQ: Final = Format("BBQ", bbq_question, metadata=BbqMetadata)
