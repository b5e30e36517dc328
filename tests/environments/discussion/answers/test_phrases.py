"""Answers in which a choice may be a part of a longer phrase, and what a careful reader makes of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mac_runner.environments.discussion.questions import Choice
from mac_runner.environments.discussion.reading.answers import Cause, Problem
from mac_runner.environments.discussion.reading.matching import Match, Matcher

CORPUS = Path(__file__).with_name("phrases.txt")


def corpus() -> Iterator[tuple[str, str, str, tuple[Choice, ...]]]:
    """Verdict, answer, question, choices."""
    question = ""
    choices: tuple[Choice, ...] = ()
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(": ")
        if key == "question":
            question = rest
        elif key == "choices":
            parts = (part.partition("=") for part in rest.split(" | "))
            choices = tuple(Choice(id=choice_id.strip(), text=text) for choice_id, _, text in parts)
        elif line and not line.startswith("#"):
            verdict, _, answer = line.partition(" | ")
            yield verdict, answer, question, choices


def read(answer: str, question: str, choices: tuple[Choice, ...], *, edition: int = 3) -> Match | Problem:
    matcher = Matcher(choices, "letters_dot", threshold=88, margin=6, edition=edition, asked=question)
    return matcher.match(answer)


def test_there_are_sixty_different_ones() -> None:
    assert len({(answer, question) for _, answer, question, _ in corpus()}) == len(list(corpus())) >= 60


def test_a_choice_within_a_longer_phrase_is_asked_again_and_a_plain_one_is_read() -> None:
    wrong = []
    for verdict, answer, question, choices in corpus():
        found = read(answer, question, choices)
        said = f"! {found.cause}" if isinstance(found, Problem) else found.choice_id
        if said.partition(" ")[0] != verdict:
            wrong.append(f"{answer!r} is {said}, not {verdict}")
    assert not wrong, "\n".join(wrong)


def test_the_cause_is_that_the_answer_is_ambiguous_and_earlier_editions_match_it() -> None:
    _, answer, question, choices = next(corpus())

    found = read(answer, question, choices)

    assert isinstance(found, Problem)
    assert found.cause is Cause.AMBIGUOUS
    assert read(answer, question, choices, edition=2) == Match("A", "mentioned")
