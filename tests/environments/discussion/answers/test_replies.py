"""Three hundred replies written by hand, and what a careful reader makes of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from mac_runner.environments.discussion.questions import Choice, Question, QuestionType
from mac_runner.environments.discussion.reading.answers import Problem, read_fields
from mac_runner.environments.discussion.reading.matching import Matcher
from mac_runner.environments.discussion.roles import ROLES, Moment
from mac_runner.environments.discussion.settings import ChoiceFormat
from mac_runner.types import Reply

CORPUS = Path(__file__).with_name("replies.txt")


class Written(NamedTuple):
    line: int
    question: Question
    choice_format: ChoiceFormat
    verdict: str
    reply: str


def written() -> Iterator[Written]:
    question, choice_format = None, "none"
    for number, line in enumerate(CORPUS.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("choices: "):
            choice_format, _, listed = line.removeprefix("choices: ").partition(" ")
            pairs = (part.strip().partition("=") for part in listed.split(" | "))
            choices = tuple(Choice(id=choice_id, text=text) for choice_id, _, text in pairs)
            question = Question(
                question_id="q", question_type=QuestionType.MULTIPLE_CHOICE, question="Which?", choices=choices
            )
        elif line and not line.startswith("#"):
            verdict, _, reply = line.partition(" |")
            reply = reply.removeprefix(" ").replace("\\n", "\n")
            if reply.startswith("="):
                reply = json.dumps({"rationale": "r", "answer": reply[1:]})
            assert question is not None
            yield Written(number, question, cast("ChoiceFormat", choice_format), verdict, reply)


def verdict_on(case: Written) -> str:
    matcher = Matcher(case.question.choices, case.choice_format, threshold=88, margin=6)
    moment = Moment(question=case.question, matcher=matcher, is_answer_first=False, is_last=False, majority=None)
    found = read_fields(Reply(text=case.reply), ("answer", "rationale"))
    said = found if isinstance(found, Problem) else ROLES["participant"].read(found, moment)
    return f"!{said.cause}" if isinstance(said, Problem) else str(said.answer)


ALL = list(written())


def test_there_are_three_hundred_different_ones() -> None:
    assert len({(case.question.choices, case.reply) for case in ALL}) == len(ALL) >= 300


def test_a_reply_is_read_as_a_careful_reader_would(subtests: pytest.Subtests) -> None:
    for case in ALL:
        with subtests.test(f"line {case.line}"):
            assert verdict_on(case) == case.verdict, case.reply
