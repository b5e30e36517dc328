"""What ends a discussion, and when."""

from __future__ import annotations

import pytest

from mac_runner.types import JsonValue
from tests.environments.discussion.table import agent, all_say, opened, result, say, talk

BOY, GRAN, NONE = "The boy", "The grandmother", ""


def played(rounds: list[tuple[str, str]], **stopping: JsonValue) -> tuple[object, object]:
    """How many rounds were played and what ended them, of a discussion in which ann and bob answer so."""
    conversation = opened(talk(agent("ann"), agent("bob"), max_rounds=5, max_retries=0, stopping=stopping))
    for answers in rounds:
        if conversation.outcome is not None:
            break
        for name, answer in zip(("ann", "bob"), answers, strict=True):
            all_say(conversation, answer, name)
    return result(conversation)["rounds"], result(conversation)["ended_by"]


CASES: list[tuple[list[tuple[str, str]], dict[str, JsonValue], tuple[int, str]]] = [
    ([(BOY, BOY)] * 5, {}, (5, "max_rounds")),
    ([(BOY, GRAN), (BOY, BOY)], {"on_consensus": True}, (2, "consensus")),
    ([(BOY, BOY)], {"on_consensus": True}, (1, "consensus")),
    ([(BOY, BOY), (BOY, GRAN), (GRAN, GRAN)], {"on_consensus": True, "min_rounds": 2}, (3, "consensus")),
    ([(NONE, NONE)] * 5, {"on_consensus": True}, (5, "max_rounds")),
    ([(BOY, NONE)] * 5, {"on_consensus": True}, (5, "max_rounds")),
    ([(BOY, GRAN), (BOY, GRAN)], {"stable_rounds": 1}, (2, "stable_answers")),
    ([(BOY, GRAN), (GRAN, GRAN), (GRAN, GRAN)], {"stable_rounds": 1}, (3, "stable_answers")),
    ([(BOY, GRAN)] * 3, {"stable_rounds": 2}, (3, "stable_answers")),
    ([(BOY, GRAN), (BOY, BOY), (BOY, GRAN), (BOY, BOY), (BOY, GRAN)], {"stable_rounds": 1}, (5, "max_rounds")),
    ([(BOY, NONE)] * 5, {"stable_rounds": 1}, (5, "max_rounds")),
    ([(BOY, BOY)] * 2, {"stable_rounds": 1, "on_consensus": True, "min_rounds": 2}, (2, "consensus")),
]


def test_it_ends_when_it_should(subtests: pytest.Subtests) -> None:
    for number, (rounds, stopping, ended) in enumerate(CASES):
        with subtests.test(f"case {number}"):
            assert played(rounds, **stopping) == ended


def test_it_ends_between_rounds_only() -> None:
    conversation = opened(talk(agent("ann"), agent("bob"), max_rounds=5, stopping={"on_consensus": True}))
    all_say(conversation, BOY, "ann")

    assert conversation.outcome is None
    say(conversation, "bob", "?")
    assert conversation.outcome is None
    all_say(conversation, BOY, "bob")
    assert conversation.turns() == ()


def test_the_group_answers_what_more_of_it_say_than_anything_else() -> None:
    names = ("ann", "bob", "cat")
    for answers, group in {(BOY, BOY, GRAN): "x", (BOY, GRAN, NONE): None, (BOY, NONE, NONE): "x"}.items():
        conversation = opened(talk(*map(agent, names), max_rounds=1, max_retries=0))
        for name, answer in zip(names, answers, strict=True):
            all_say(conversation, answer, name)

        assert result(conversation)["answer"] == group
