"""Answers in tags, boxes and nested objects: editions, cut ends, roles and open questions."""

from __future__ import annotations

from mac_runner.environments.discussion.testing import (
    ROLES,
    Cause,
    Choice,
    DiscussionRole,
    Found,
    Match,
    Matcher,
    Moment,
    Problem,
    Question,
    QuestionType,
    Said,
    read_fields,
)
from mac_runner.types import FinishReason, Reply

CHOICES = (Choice(id="A", text="The doctor"), Choice(id="B", text="The nurse"), Choice(id="C", text="Unknown"))


def read(text: str, role: DiscussionRole = "participant", *, is_open: bool = False) -> Said | Problem:
    kind = QuestionType.OPEN_ENDED if is_open else QuestionType.MULTIPLE_CHOICE
    question = Question(question_id="q", question_type=kind, question="Who?", choices=() if is_open else CHOICES)
    matcher = None if is_open else Matcher(CHOICES, "letters_dot", threshold=88, margin=6)
    moment = Moment(question=question, matcher=matcher, is_answer_first=False, is_last=False, majority="A")
    names = [field.name for field in ROLES[role].fields(moment)]
    found = read_fields(Reply(text=text), sorted(names, key=lambda name: name != ROLES[role].decisive))
    return found if isinstance(found, Problem) else ROLES[role].read(found, moment)


def test_earlier_editions_read_as_before() -> None:
    earlier: dict[str, dict[str, str]] = {
        "<answer>B</answer>": {},
        "It is\n\\boxed{B}": {},
        "final_answer: B": {},
        '{"response": {"answer": "B"}}': {},
        '{"final_answer": "B", "rationale": "r"}': {"rationale": "r"},
        '{"answer": {"choice": "B"}}': {"answer": '{"choice": "B"}'},
    }
    for text, fields in earlier.items():
        found = read_fields(Reply(text=text), ("answer", "rationale"), edition=2)

        assert isinstance(found, Found)
        assert found.fields == fields, text


def test_a_possessive_is_read_from_edition_3_on() -> None:
    read_by = {
        edition: Matcher(CHOICES, "letters_dot", threshold=88, margin=6, edition=edition).match("The nurse's")
        for edition in (2, 3)
    }

    assert isinstance(read_by[2], Problem)
    assert isinstance(read_by[3], Match)


def test_an_answer_that_was_cut_off_inside_its_mark_is_no_answer() -> None:
    for mark in ('{"response": {"answer": "', '{"answer": {"choice": "', '{"final_answer": "', "<answer>"):
        reply = Reply(text=f"{mark}The nur", finish_reason=FinishReason.LENGTH)
        found = read_fields(reply, ("answer", "rationale"))

        assert isinstance(found, Problem)
        assert found.cause is Cause.CUT_OFF, mark


def test_what_stands_around_a_mark_is_the_speech() -> None:
    speech = "The doctor had left."
    said = read(f"{speech}\n<answer>B</answer>")

    assert isinstance(said, Said)
    assert (said.answer, said.text) == ("B", speech)


def test_other_roles_are_read_alike() -> None:
    cases: dict[tuple[DiscussionRole, str], str | None] = {
        ("judge", "<verdict>B</verdict>"): "B",
        ("judge", "\\boxed{B}"): "B",
        ("judge", '{"final_verdict": "B"}'): "B",
        ("judge", "<verdict>continue</verdict>"): None,
        ("devils_advocate", "<argument>She was alone.</argument><alternative>B</alternative>"): "B",
        ("devils_advocate", '{"argument": "She was alone.", "alternative": {"choice": "B"}}'): "B",
    }
    for (role, text), answer in cases.items():
        said = read(text, role)

        assert isinstance(said, Said), said
        assert said.answer == answer, text


def test_a_judge_who_says_continue_and_a_verdict_is_asked_again() -> None:
    said = read("<verdict>B</verdict><verdict>continue</verdict>", "judge")

    assert isinstance(said, Problem)
    assert said.cause is Cause.AMBIGUOUS


def test_a_moderators_words_are_left_as_they_are() -> None:
    words = "Some say <answer>B</answer> and \\boxed{A}."
    said = read(words, "moderator")

    assert isinstance(said, Said)
    assert said.text == words


def test_a_reply_full_of_different_answers_is_asked_again_without_matching_each() -> None:
    said = read("".join(f"<answer>{number}B</answer>" for number in range(4_000)))

    assert isinstance(said, Problem)
    assert said.cause is Cause.AMBIGUOUS


def test_marked_answers_to_an_open_question_have_to_agree() -> None:
    agreed, differing = (
        read(f"\\boxed{{a bridge}} <answer>{text}</answer>", is_open=True) for text in ("A bridge.", "A ferry")
    )

    assert isinstance(agreed, Said)
    assert agreed.answer == "a bridge"
    assert isinstance(differing, Problem)
    assert differing.cause is Cause.AMBIGUOUS
