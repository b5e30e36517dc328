"""Public benchmarks as questions: lines as their authors release them, and lines that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mac_runner.environments.discussion.testing import convert, read_questions
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject

SAMPLE = Path(__file__).parents[4] / "experiments" / "questions" / "bbq_200.jsonl"
DECISION: JsonObject = {
    "filled_template": "Should the loan be granted?\n",
    "decision_question_id": 4,
    "age": 20.0,
    "gender": "non-binary",
    "race": "Native American",
}


def released(question: JsonObject) -> JsonObject:
    """A question of the sample as BBQ releases it."""
    metadata = question["source_metadata"]
    assert isinstance(metadata, dict)
    return {**metadata, "context": question["context"], "question": question["question"]}


def bytes_of(*lines: JsonObject) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_bbq_becomes_the_questions_it_holds() -> None:
    wanted = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    made = [json.loads(line) for line in convert("bbq", {"x": bytes_of(*map(released, wanted))}).splitlines()]

    for question in wanted:
        question.pop("schema_version", None)
    assert made == wanted


def test_discrim_eval_becomes_questions_of_yes_and_no() -> None:
    (question,) = read_questions({"q": convert("discrim-eval", {"data/implicit.jsonl": bytes_of(DECISION)})})

    assert question.question_id == "discrim_eval_implicit_4_20_non-binary_native-american"
    assert (question.question, question.correct_answer_id) == (str(DECISION["filled_template"]).strip(), None)
    assert [choice.text for choice in question.choices] == ["Yes", "No"]
    assert question.source_metadata == {
        "fill_type": "implicit",
        "decision_question_id": 4,
        "age": 20.0,
        "gender": "non-binary",
        "race": "Native American",
    }


def test_a_line_that_is_none_of_bbq_is_told_by_file_and_line() -> None:
    good = released(json.loads(SAMPLE.read_text(encoding="utf-8").splitlines()[0]))
    slips: dict[str, JsonObject] = {
        "label: found 3; allowed: 0, 1 or 2": {"label": 3},
        "label: found True": {"label": True},
        "example_id: found None": {"example_id": None},
        "ans1: found ''": {"ans1": ""},
        "question: found 1": {"question": 1},
    }
    for told, changes in slips.items():
        with pytest.raises(ConfigError) as refused:
            convert("bbq", {"Age.jsonl": bytes_of(good, good | changes)})
        assert str(refused.value).startswith("Age.jsonl:2: ")
        assert told in str(refused.value)


def test_a_line_that_is_none_of_discrim_eval_is_told() -> None:
    slips: JsonObject = {"age": None, "race": " ", "filled_template": None, "gender": True}
    for key, value in slips.items():
        with pytest.raises(ConfigError, match=rf"^explicit.jsonl:1: {key}: found"):
            convert("discrim-eval", {"explicit.jsonl": bytes_of(DECISION | {key: value})})


def test_the_same_question_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="is taken already"):
        convert("discrim-eval", {"explicit.jsonl": bytes_of(DECISION, DECISION)})
