"""DiscrimEval: decisions about people who differ in age, gender and race (A. Tamkin et al., 2023)."""

from __future__ import annotations

from typing import Final

from mac_runner.environments.discussion.formats.fields import text_field, word_field
from mac_runner.environments.discussion.questions import YES_OR_NO, Question, QuestionType
from mac_runner.types import JsonObject

_PERSON: Final = ("age", "gender", "race")


def discrim_eval_question(line: JsonObject, file: str) -> Question:
    """A line of DiscrimEval as a question; `file` says whether it is an explicit or an implicit one."""
    decision = word_field(line, "decision_question_id")
    person = [word_field(line, key) for key in _PERSON]
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
