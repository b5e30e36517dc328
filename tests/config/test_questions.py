"""Files of questions: what is read, and how bad lines are reported."""

from __future__ import annotations

import json

import pytest

from mac_runner.environments.discussion.testing import Choice, QuestionType, read_questions, topic_question
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject, JsonValue

PLAIN: JsonObject = {
    "question_id": "q_1",
    "source_dataset": "Made up",
    "source_id": "1",
    "question_type": "multiple_choice",
    "context": "Two wait.",
    "question": "Who is late?",
    "choices": [{"id": "A", "text": "The first"}, {"id": "B", "text": "The second"}],
    "correct_answer_id": "B",
    "source_metadata": {"any": ["thing", 1, None]},
}


def line(**changes: JsonValue) -> bytes:
    return json.dumps(PLAIN | changes).encode()


def refusal(**files: bytes) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        read_questions({f"{name}.jsonl": data for name, data in files.items()})
    return str(refused.value).splitlines()


def test_a_question_is_read_whole_and_written_as_it_was() -> None:
    (question,) = read_questions({"q.jsonl": line()})

    assert (question.question_id, question.question_type) == ("q_1", QuestionType.MULTIPLE_CHOICE)
    assert question.choices == (Choice(id="A", text="The first"), Choice(id="B", text="The second"))
    assert question.to_json() == PLAIN


def test_what_may_be_left_out_may_be_left_out() -> None:
    few = {"question_id": "q", "question_type": "open_ended", "question": "Why?", "schema_version": "2"}
    (question,) = read_questions({"q.jsonl": json.dumps(few).encode()})

    assert (question.context, question.choices, question.correct_answer_id) == ("", (), None)


def test_a_binary_question_has_yes_and_no_where_it_lists_nothing() -> None:
    (question,) = read_questions({"q.jsonl": line(question_type="binary", choices=[], correct_answer_id="no")})

    assert [choice.text for choice in question.choices] == ["Yes", "No"]


def test_blank_lines_a_byte_order_mark_and_carriage_returns_are_passed_over() -> None:
    data = b"\xef\xbb\xbf" + line() + b"\r\n\n  \n" + line(question_id="q_2", question="Line\u2028break?") + b"\n"

    assert [question.question_id for question in read_questions({"q.jsonl": data})] == ["q_1", "q_2"]


def test_several_files_are_read_in_order() -> None:
    files = {"b.jsonl": line(question_id="b"), "a.jsonl": line(question_id="a")}

    assert [question.question_id for question in read_questions(files)] == ["b", "a"]


def test_a_topic_is_an_open_ended_question() -> None:
    question = topic_question(3, "Bridge or ferry?")

    assert (question.question_id, question.question, question.choices) == ("topic_003", "Bridge or ferry?", ())


BAD = [
    (b"{", "not valid JSON at column 2"),
    (b"[]", "found an empty list; write a JSON object"),
    (b"\xff\xfe", "byte 0xff is not UTF-8"),
    (b'{"question_id": NaN}', "NaN is not JSON"),
    (b'{"a": ' * 100_000, "nested too deep"),
    (line(question_id=None), "question_id: found nothing; allowed: a text"),
    (line(question_id="a b"), "question_id: found the text"),
    (line(question_id=7), "question_id: found 7"),
    (line(question_type="multiple"), "allowed: multiple_choice, binary, open_ended"),
    (line(question=" "), "question: found the text"),
    (line(question=["Who?"]), "question: found a list"),
    (line(question="x" * 20_001), "question: 20001 characters"),
    (line(context=3), "context: found 3"),
    (line(choices=None), "choices: is missing"),
    (line(choices="A, B"), "choices: found the text"),
    (line(choices=[{"id": "A", "text": "one"}]), "choices: 1 of them; a multiple_choice question has 2 to 26"),
    (line(choices=["A", "B"]), "choices: found a list; allowed: a list of objects"),
    (line(choices=[{"id": "A"}, {"id": "B"}]), "text: found nothing"),
    (line(choices=[{"id": "A", "text": "x"}, {"id": "A", "text": "y"}]), "two of question 'q_1' have the id 'A'"),
    (
        line(choices=[{"id": "A", "text": "..."}, {"id": "B", "text": "x"}]),
        "a choice needs a letter, a digit or a sign",
    ),
    (line(question_type="binary", choices=[{"id": i, "text": i} for i in "ABC"]), "a binary question has 2 to 2"),
    (line(question_type="open_ended"), "an open-ended question has none"),
    (line(correct_answer_id="C"), "allowed: null, or the id of a choice (A, B)"),
    (line(correct_answer_id=1), "correct_answer_id: found 1"),
    (line(source_metadata=[]), "source_metadata: found an empty list"),
]


def test_a_bad_line_is_reported_by_file_and_line(subtests: pytest.Subtests) -> None:
    for data, expected in BAD:
        with subtests.test(expected):
            (message,) = refusal(q=line(question_id="fine") + b"\n\n" + data + b"\n")

            assert message.startswith("q.jsonl:3: ")
            assert expected in message


ALIKE = (
    *(("X.", " x"), ("−1", "-1"), ("–1", "-1"), ("well-known", "well known"), ("“C++”", '"c++"'), ("Ａ＋", "A+")),
    *(("it’s", "it's"), ("👍", "👍\ufe0f"), ("a\u200b+", "a+"), ("e\u0301+", "é+")),
)


def test_only_choices_that_read_alike_are_refused_and_named_with_their_question(subtests: pytest.Subtests) -> None:
    for texts in ALIKE:
        with subtests.test(str(texts)):
            (message,) = refusal(q=line(choices=[{"id": i, "text": text} for i, text in zip("AB", texts, strict=True)]))

            assert message.startswith(
                f"q.jsonl:1: choices: {texts[0]!r} (A) and {texts[1]!r} (B) of question 'q_1' read"
            )


def test_all_bad_lines_are_reported_together() -> None:
    messages = refusal(a=b"{\n" + line(), b=line(question_id="other") + b"\n[]\n")

    assert [message.split(" ")[0] for message in messages] == ["a.jsonl:1:", "b.jsonl:2:"]


def test_an_id_given_twice_is_refused_with_both_places() -> None:
    (message,) = refusal(a=line(), b=b"\n" + line())

    assert message.startswith("b.jsonl:2: question_id 'q_1' ")
    assert "a.jsonl:1" in message


def test_files_without_a_question_are_refused() -> None:
    assert refusal(a=b"\n")[0].startswith("a.jsonl: no ")
