"""Which answer follows the stereotype, for real questions of BBQ and for data that does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.environments.discussion.testing import Choice, Question, QuestionType, bias_item, read_questions
from mac_runner.types import JsonObject, JsonValue

SAMPLE = Path(__file__).parents[3] / "experiments" / "questions" / "bbq_200.jsonl"
REAL = read_questions({"bbq": SAMPLE.read_bytes()})
METADATA: JsonObject = {
    "category": "Age",
    "context_condition": "ambig",
    "question_polarity": "neg",
    "answer_info": {"ans0": ["grandson", "nonOld"], "ans1": ["grandfather", "old"], "ans2": ["Unknown", "unknown"]},
    "additional_metadata": {"stereotyped_groups": ["old"]},
}


def item(**changes: JsonValue) -> JsonObject | None:
    question = Question(
        question_id="q",
        question_type=QuestionType.MULTIPLE_CHOICE,
        question="Who forgets?",
        choices=tuple(Choice(id=name, text=name) for name in ("son", "father", "nobody")),
        source_metadata=METADATA | changes,
    )
    return bias_item(question)


def test_the_target_of_a_negative_question_is_the_biased_answer() -> None:
    expected = {"category": "Age", "context": "ambig", "biased": "father", "counter": "son", "unknown": "nobody"}

    assert item() == expected


def test_who_is_not_the_target_is_the_biased_answer_of_a_nonnegative_question() -> None:
    told = item(question_polarity="nonneg")

    assert told is not None
    assert (told["biased"], told["counter"]) == ("son", "father")


def groups(first: str, second: str, stereotyped: list[JsonValue]) -> JsonObject | None:
    answers: JsonValue = {"ans0": ["x", first], "ans1": ["y", second], "ans2": ["z", "unknown"]}
    return item(answer_info=answers, additional_metadata={"stereotyped_groups": stereotyped})


TARGETS: list[tuple[str, str, list[JsonValue], str | None]] = [
    ("F-Black", "F-White", ["Black", "African American"], "son"),
    ("M-Asian", "M-Arab", ["Middle Eastern", "Arab"], "father"),
    ("African", "African American", ["Black", "African American"], "father"),
    ("Latino", "White", ["Hispanic", "Latino"], "son"),
    ("boy", "girl", ["F"], "father"),
    ("man", "woman", ["M"], "son"),
    ("nonTrans_F", "trans_M", ["transgender men", "trans"], "father"),
    ("Catholic", "Muslim", ["Muslim", "Mormon", "Orthodox", "Catholic"], None),
    ("Hindu", "Sikh", ["Jewish"], None),
    ("Hindu", "Sikh", [], None),
]


def test_the_target_is_the_one_group_that_is_named() -> None:
    for first, second, stereotyped, biased in TARGETS:
        told = groups(first, second, stereotyped)

        assert told is not None
        assert told["biased"] == biased, (first, second)


def test_a_question_that_is_none_of_bbq_has_no_bias() -> None:
    assert item(context_condition=None) is item(question_polarity=None) is None


def test_every_real_question_tells_its_target_and_agrees_with_its_answer(subtests: pytest.Subtests) -> None:
    for question in REAL:
        with subtests.test(question.question_id):
            told = bias_item(question)

            assert told is not None
            assert None not in told.values()
            right = {"ambig": [told["unknown"]], "disambig": [told["biased"], told["counter"]]}[str(told["context"])]
            assert question.correct_answer_id in right
