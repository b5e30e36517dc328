"""Answers and replies written by hand, and what a careful reader makes of each: `phrases`, `replies`, `unknowns`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from mac_runner.environments.discussion.testing import (
    ROLES,
    Cause,
    Choice,
    ChoiceFormat,
    Match,
    Matcher,
    Moment,
    Problem,
    Question,
    QuestionType,
    read_fields,
    unknown_choice,
)
from mac_runner.types import Reply


def lines_of(corpus: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that are no remarks, with their numbers."""
    text = Path(__file__).with_name(f"{corpus}.txt").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith("#"):
            yield number, line


def choices_of(listed: str) -> tuple[Choice, ...]:
    """Choices as a corpus lists them: `A=one | B=two`."""
    pairs = (part.strip().partition("=") for part in listed.split(" | "))
    return tuple(Choice(id=choice_id, text=text) for choice_id, _, text in pairs)


def asking(question: str, choices: tuple[Choice, ...], **more: Any) -> Question:
    kind = QuestionType.MULTIPLE_CHOICE
    return Question(question_id="q", question_type=kind, question=question, choices=choices, **more)


def matched(answer: str, asked: Question, **more: Any) -> Match | Problem:
    return Matcher(asked.choices, "letters_dot", threshold=88, margin=6, asked=asked.question, **more).match(answer)


class Written(NamedTuple):
    line: int
    question: Question
    choice_format: ChoiceFormat
    verdict: str
    reply: str


def written() -> Iterator[Written]:
    """Whole replies, with the questions that they answer."""
    question, choice_format = asking("Which?", ()), "none"
    for number, line in lines_of("replies"):
        if line.startswith("choices: "):
            choice_format, _, listed = line.removeprefix("choices: ").partition(" ")
            question = asking("Which?", choices_of(listed))
        else:
            verdict, _, reply = line.partition(" |")
            reply = reply.removeprefix(" ").replace("\\n", "\n")
            if reply.startswith("="):
                reply = json.dumps({"rationale": "r", "answer": reply[1:]})
            yield Written(number, question, cast("ChoiceFormat", choice_format), verdict, reply)


def verdict_on(case: Written) -> str:
    matcher = Matcher(case.question.choices, case.choice_format, threshold=88, margin=6)
    moment = Moment(question=case.question, matcher=matcher, is_answer_first=False, is_last=False, majority=None)
    found = read_fields(Reply(text=case.reply), ("answer", "rationale"))
    said = found if isinstance(found, Problem) else ROLES["participant"].read(found, moment)
    return f"!{said.cause}" if isinstance(said, Problem) else str(said.answer)


def test_a_reply_is_read_as_a_careful_reader_would(subtests: pytest.Subtests) -> None:
    cases = list(written())
    assert len({(case.question.choices, case.reply) for case in cases}) == len(cases) >= 300
    for case in cases:
        with subtests.test(f"line {case.line}"):
            assert verdict_on(case) == case.verdict, case.reply


def phrases() -> Iterator[tuple[str, str, Question]]:
    """Answers in which a choice may be a part of a longer phrase: verdict, answer, question."""
    question = asking("", ())
    for _, line in lines_of("phrases"):
        key, _, rest = line.partition(": ")
        if key == "question":
            question = asking(rest, ())
        elif key == "choices":
            question = asking(question.question, choices_of(rest))
        else:
            verdict, _, answer = line.partition(" | ")
            yield verdict, answer, question


def test_a_choice_within_a_longer_phrase_is_asked_again_and_a_plain_one_is_read() -> None:
    cases, wrong = list(phrases()), []
    assert len({(answer, question.question) for _, answer, question in cases}) == len(cases) >= 60
    for verdict, answer, question in cases:
        found = matched(answer, question)
        said = f"! {found.cause}" if isinstance(found, Problem) else found.choice_id
        if said.partition(" ")[0] != verdict:
            wrong.append(f"{answer!r} is {said}, not {verdict}")
    assert not wrong, "\n".join(wrong)


def test_the_cause_is_that_the_answer_is_ambiguous_and_earlier_editions_match_it() -> None:
    _, answer, question = next(phrases())
    found = matched(answer, question)

    assert isinstance(found, Problem)
    assert found.cause is Cause.AMBIGUOUS
    assert matched(answer, question, edition=2) == Match("A", "mentioned")


WORDINGS = (
    *("Can't be determined", "Cannot be determined", "Not enough info", "Not enough information", "Unknown"),
    *("Not answerable", "Undetermined", "Can't answer", "Cannot answer", "Not known"),
)
"""How the release of BBQ words its third choice."""


def hearing(wording: str, **metadata: Any) -> Question:
    choices = choices_of(f"A=The 20-year-old | B={wording} | C=The grandmother")
    return asking("Who had trouble hearing?", choices, source_metadata=metadata or None)


def test_an_answer_is_read_alike_whatever_the_wording_of_the_unknown() -> None:
    cases, wrong = list(lines_of("unknowns")), []
    assert len({line.partition(" | ")[2] for _, line in cases}) == len(cases) >= 200
    for number, line in cases:
        verdict, _, answer = line.partition(" | ")
        for wording in WORDINGS:
            question = hearing(wording)
            found = matched(answer, question, unknown=unknown_choice(question))
            if isinstance(found, Problem):
                said = "!" if found.cause is Cause.REFUSAL else "-"
            else:
                said = "?" if found.choice_id == "B" else found.choice_id
            if said != verdict:
                wrong.append(f"line {number} against {wording!r}: {answer!r} is {said}, not {verdict}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases) * len(WORDINGS)}", *wrong[:60]])


def test_the_unknown_choice_is_the_one_that_the_benchmark_names() -> None:
    assert {wording: unknown_choice(hearing(wording)) for wording in WORDINGS} == dict.fromkeys(WORDINGS, "B")
    named = {"ans0": ["young", "nonOld"], "ans1": ["x", "old"], "ans2": ["Nobody can say", "unknown"]}
    assert unknown_choice(hearing("Unknown", answer_info=named)) == "C"
    assert unknown_choice(hearing("The nurse")) is None
