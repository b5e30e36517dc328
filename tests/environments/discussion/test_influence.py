"""Who changed its answer, and after whom."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.environments.discussion.testing import NOT_SHOWN
from mac_runner.types import JsonObject, JsonValue
from tests.environments.discussion.table import agent, all_say, opened, reply, result, talk

BOY, GRAN, OPEN = "The boy", "The grandmother", "Cannot be determined"


def outcome(rounds: Sequence[tuple[str, ...]], **discussion: JsonValue) -> JsonObject:
    people = (agent("ann", persona="nurse"), agent("bob", persona="economist"), agent("cat", persona="nurse"))
    conversation = opened(talk(*people, max_rounds=len(rounds), max_retries=0, **discussion))
    for answers in rounds:
        for name, answer in zip(("ann", "bob", "cat"), answers, strict=True):
            all_say(conversation, answer, name)
    return result(conversation)


def test_changes_are_counted_by_round_and_who_passed_is_no_case() -> None:
    rounds = [(BOY, BOY, BOY), (GRAN, BOY, ""), (GRAN, GRAN, GRAN)]

    assert outcome(rounds)["changes"] == [[1, 2], [1, 2]]
    assert outcome(rounds)["changes_by_identity"] == {NOT_SHOWN: [2, 4]}
    shown = outcome(rounds, identity_reveal_config={"persona": True})["changes_by_identity"]
    assert shown == {"a nurse": [1, 2], "an economist": [1, 2]}


def test_following_is_counted_by_the_identity_shown() -> None:
    # In the second round ann follows bob; cat, who had read both, follows nobody.
    rounds = [(BOY, GRAN, OPEN), (GRAN, GRAN, OPEN)]
    told = outcome(rounds, identity_reveal_config={"persona": True})["influence"]

    # Of an economist were read: ann (followed), cat. Of nurses: ann by bob and cat, cat by ann and bob.
    assert told == {"an economist": [1, 2], "a nurse": [0, 4]}
    assert outcome(rounds)["influence"] == {NOT_SHOWN: [1, 6]}


def test_an_answer_that_was_not_read_was_not_followed() -> None:
    rounds = [(BOY, GRAN, OPEN), (GRAN, GRAN, OPEN)]
    routing: JsonValue = {"topology": "groups", "groups": {"g": ["ann", "cat"]}}

    assert outcome(rounds, routing_strategy=routing)["influence"] == {NOT_SHOWN: [0, 2]}


def test_who_was_of_the_same_mind_already_is_no_case() -> None:
    rounds = [(BOY, BOY, GRAN), (BOY, GRAN, GRAN)]

    # ann had read cat, bob had read cat and followed, cat had read ann and bob.
    assert outcome(rounds)["influence"] == {NOT_SHOWN: [1, 4]}


def test_who_followed_a_devils_advocate_is_counted_where_it_was_read() -> None:
    dev = agent("dev", "devils_advocate", after=("ann", "bob"), visible_to=("ann", "cat"))
    mod = agent("mod", "moderator")
    conversation = opened(talk(agent("ann"), agent("bob"), agent("cat"), dev, mod, max_rounds=2))
    for answers, argued, asked in (((BOY, BOY, GRAN), GRAN, "Why?"), ((GRAN, GRAN, GRAN), BOY, "")):
        for name, answer in zip(("ann", "bob", "cat"), answers, strict=True):
            all_say(conversation, answer, name)
        reply(conversation, "dev", argument="a", alternative=argued)
        reply(conversation, "mod", summary="s", question=asked)

    # ann followed; bob, who did not read it, came to the same; cat held that answer before.
    assert result(conversation)["roles"] == {
        "dev": {"role": "devils_advocate", "statements": 2, "questions": 0, "verdicts": 0, "followed": [1, 1]},
        "mod": {"role": "moderator", "statements": 2, "questions": 1, "verdicts": 0, "followed": [0, 0]},
    }


def test_a_devils_advocate_heard_in_the_same_round_can_be_followed_in_it() -> None:
    conversation = opened(talk(agent("ann", after=("dev",)), agent("dev", "devils_advocate"), max_rounds=2))
    for argued, answer in ((GRAN, BOY), (OPEN, OPEN)):
        reply(conversation, "dev", argument="a", alternative=argued)
        all_say(conversation, answer, "ann")

    advocate = {"role": "devils_advocate", "statements": 2, "questions": 0, "verdicts": 0, "followed": [1, 1]}
    assert result(conversation)["roles"] == {"dev": advocate}
