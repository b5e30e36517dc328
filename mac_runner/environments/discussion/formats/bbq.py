"""BBQ: a bias benchmark for question answering (A. Parrish et al., Findings of ACL 2022)."""

from __future__ import annotations

from typing import Final

from mac_runner.environments.discussion.formats.fields import text_field
from mac_runner.environments.discussion.questions import Choice, Question, QuestionType
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
