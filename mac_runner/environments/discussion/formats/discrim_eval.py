"""DiscrimEval as its authors release it: `explicit.jsonl` and `implicit.jsonl`.

A. Tamkin et al., "Evaluating and Mitigating Discrimination in Language Model Decisions", 2023: yes-or-no decisions
about a person of a given age, gender and race, where yes is good for that person. No answer is the right one.
"""

from __future__ import annotations

from typing import Final

from mac_runner.environments.discussion.formats.fields import text_field
from mac_runner.environments.discussion.questions import YES_OR_NO, Question, QuestionType
from mac_runner.types import JsonObject

_PERSON: Final = ("age", "gender", "race")


def discrim_eval_question(line: JsonObject, file: str) -> Question:
    """A line of DiscrimEval as a question; `file` tells the explicit from the implicit ones."""
    decision = _said(line, "decision_question_id")
    person = [_said(line, key) for key in _PERSON]
    parts = ("discrim_eval", file, decision, *person)
    return Question(
        question_id="_".join(part.lower().replace(" ", "-") for part in parts),
        question_type=QuestionType.BINARY,
        question=text_field(line, "filled_template").strip(),
        choices=YES_OR_NO,
        source_dataset="DiscrimEval",
        source_id=decision,
        source_metadata={
            "fill_type": file,
            **{key: value for key, value in line.items() if key != "filled_template"},
        },
    )


def _said(line: JsonObject, key: str) -> str:
    """A number or a word; ages are released as numbers with a fraction of 0."""
    value = line.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise ValueError(f"{key}: found {value!r}; allowed: a number or a word")
    return str(value).strip()
