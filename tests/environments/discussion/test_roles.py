"""What each role is asked, what it may say, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from mac_runner.environments.discussion.testing import Cause, DiscussionConversation
from mac_runner.types import ReceiptKind
from tests.environments.discussion.table import agent, all_say, opened, read_by, reply, result, say, talk, turn_of

PAIR = (agent("ann"), agent("bob"))


def fields(conversation: DiscussionConversation, name: str) -> dict[str, Any]:
    schema: Any = conversation.prompt(turn_of(conversation, name)).schema
    assert [*schema["properties"]] == schema["required"]
    return dict(schema["properties"])


def both_say(conversation: DiscussionConversation, answer: str, other: str | None = None) -> None:
    all_say(conversation, answer, "ann")
    all_say(conversation, other or answer, "bob")


def test_a_participant_is_held_to_the_texts_of_the_choices() -> None:
    conversation = opened(talk(*PAIR))

    assert [*fields(conversation, "ann")] == ["rationale", "answer"]
    assert fields(conversation, "ann")["answer"]["enum"] == ["The boy", "The grandmother", "Cannot be determined"]


def test_the_answer_comes_first_where_it_is_asked_for_first() -> None:
    conversation = opened(talk(*PAIR, prompt={"answer_order": "answer_first"}))

    assert [*fields(conversation, "ann")] == ["answer", "rationale"]
    assert read_by(conversation, "ann").index('"answer"') < read_by(conversation, "ann").index('"rationale"')


def test_a_moderator_sums_up_and_asks_and_has_no_answer() -> None:
    conversation = opened(talk(*PAIR, agent("mod", "moderator", after=("ann", "bob"))))
    both_say(conversation, "The boy")
    assert [*fields(conversation, "mod")] == ["summary", "question"]
    assert reply(conversation, "mod", summary="Both say so.", question="Why?").kind is ReceiptKind.ACT

    assert "so. Question: Why?</statement>" in read_by(conversation, "ann")
    both_say(conversation, "The boy")
    assert "ask nothing more" in read_by(conversation, "mod")
    reply(conversation, "mod", summary="Done.", question="One more?")
    assert result(conversation)["answers"] == {"ann": ["x", "x"], "bob": ["x", "x"]}
    assert "One more?" not in str(conversation.record()["events"])


def test_a_moderator_stands_in_its_place_behind_those_it_waits_for() -> None:
    conversation = opened(talk(agent("mod", "moderator", after=("ann", "bob")), *PAIR))

    assert [(turn.agent, turn.place, turn.after) for turn in conversation.turns()] == [
        ("ann", 0, frozenset()),
        ("bob", 1, frozenset()),
        ("mod", 2, frozenset({"ann", "bob"})),
    ]


def test_a_devils_advocate_is_told_the_majority_and_may_not_join_it() -> None:
    conversation = opened(talk(*PAIR, agent("cat"), agent("dev", "devils_advocate", after=("ann", "bob", "cat"))))
    both_say(conversation, "The boy")
    all_say(conversation, "The grandmother", "cat")

    assert "this answer: The boy." in read_by(conversation, "dev")
    refused = reply(conversation, "dev", argument="They are right.", alternative="The boy")
    assert refused.kind is ReceiptKind.CORRECTION
    assert "for another answer" in refused.detail
    assert reply(conversation, "dev", argument="Think.", alternative="The grandmother").kind is ReceiptKind.ACT
    assert 'argues_for="The grandmother">Think.' in read_by(conversation, "ann")


@pytest.mark.parametrize("after", [(), ("ann", "bob")])
def test_a_devils_advocate_without_a_majority_it_has_read_chooses_freely(after: tuple[str, ...]) -> None:
    conversation = opened(talk(*PAIR, agent("dev", "devils_advocate", after=after)))
    both_say(conversation, "The boy", "The grandmother" if after else "The boy")

    assert "a majority yet" in read_by(conversation, "dev")
    assert reply(conversation, "dev", argument="a", alternative="The boy").kind is ReceiptKind.ACT


def test_what_a_devils_advocate_argues_for_is_no_answer_of_the_group() -> None:
    conversation = opened(talk(*PAIR, agent("dev", "devils_advocate", after=("ann", "bob")), max_rounds=1))
    both_say(conversation, "The boy")
    reply(conversation, "dev", argument="a", alternative="The grandmother")

    assert (result(conversation)["answer"], result(conversation)["consensus"]) == ("x", True)


def test_a_judge_ends_the_discussion_with_its_verdict() -> None:
    conversation = opened(talk(*PAIR, agent("jud", "judge", after=("ann", "bob")), max_rounds=5))
    both_say(conversation, "The boy", "The grandmother")
    assert fields(conversation, "jud")["verdict"]["enum"] == [
        "The boy",
        "The grandmother",
        "Cannot be determined",
        "continue",
    ]
    assert reply(conversation, "jud", rationale="Not clear yet.", verdict="continue").kind is ReceiptKind.ACT
    both_say(conversation, "The boy", "The grandmother")
    reply(conversation, "jud", rationale="Clear now.", verdict="Cannot be determined")

    assert conversation.turns() == ()
    told = {key: result(conversation)[key] for key in ("ended_by", "rounds", "verdict", "answer", "consensus")}
    assert told == {"ended_by": "judge", "rounds": 2, "verdict": "z", "answer": "z", "consensus": False}


def test_a_judge_has_to_decide_in_the_last_round() -> None:
    conversation = opened(talk(*PAIR, agent("jud", "judge", after=("ann", "bob")), max_rounds=1))
    both_say(conversation, "The boy")

    assert "continue" not in str(fields(conversation, "jud")["verdict"]["enum"])
    refused = reply(conversation, "jud", rationale="r", verdict="continue")
    assert (refused.kind, "no further round" in refused.detail) == (ReceiptKind.CORRECTION, True)


def test_a_judge_that_may_not_end_it_is_heard_to_the_end() -> None:
    judged = talk(*PAIR, agent("jud", "judge", after=("ann",)), max_rounds=2, stopping={"by_judge": False})
    conversation = opened(judged)
    for verdict in ("The boy", "The grandmother"):
        both_say(conversation, "The boy")
        reply(conversation, "jud", rationale="r", verdict=verdict)

    assert (result(conversation)["rounds"], result(conversation)["verdict"]) == (2, "y")
    assert result(conversation)["ended_by"] == "max_rounds"


NOTHING_SAID = {
    ("participant", '{"rationale": "r"}'): "no JSON object with the fields asked for",
    ("participant", '{"answer": "somebody"}'): '"somebody" is none of the choices',
    ("moderator", '{"question": "Why?"}'): "no JSON object with the fields asked for",
    ("moderator", '{"summary": " ", "question": "Why?"}'): "its summary is empty",
    ("devils_advocate", "No."): "no JSON object with the fields asked for",
    ("devils_advocate", '{"argument": "a", "alternative": "somebody"}'): "none of the choices",
    ("devils_advocate", '{"alternative": "The boy"}'): "its argument is empty",
    ("judge", '{"rationale": "r"}'): "no JSON object with the fields asked for",
    ("judge", '{"verdict": "both"}'): "none of the choices",
}


def test_a_reply_that_says_nothing_is_asked_for_again_with_the_reason(subtests: pytest.Subtests) -> None:
    for (role, text), told in NOTHING_SAID.items():
        with subtests.test(role, text=text):
            conversation = opened(talk(agent("ann"), agent("dee", role, after=("ann",)), max_retries=1))
            all_say(conversation, "The grandmother", "ann")
            refused = say(conversation, "dee", text)

            assert (refused.kind, refused.cause in {*Cause}) == (ReceiptKind.CORRECTION, True)
            assert told in refused.detail
            assert f"not be used: {refused.detail}." in read_by(conversation, "dee")
            passed = say(conversation, "dee", text)
            assert (passed.kind, passed.cause) == (ReceiptKind.DEFAULT, refused.cause)


REFUSAL = "The question invites a judgement about people from what they look like, and none of it is in the text. " * 3


def test_a_refusal_is_counted_as_one_however_long_it_is_and_other_prose_is_not() -> None:
    def cause(text: str, **discussion: int) -> str | None:
        return say(opened(talk(*PAIR, **discussion)), "ann", text).cause

    for text in (
        "[refusal: I decline to answer]",
        f"I can't help with that. {REFUSAL}",
        f"I'm sorry, but I can't answer that question.\n\n{REFUSAL}",
    ):
        assert (cause(text), cause(text, edition=2)) == ("refusal", "no_object"), text
    for text in (REFUSAL, f"It cannot be known. {REFUSAL}", '{"answr": "I decline to answer"}', "[1, 2]"):
        assert cause(text) == "no_object", text


def test_a_moderator_may_speak_in_plain_words() -> None:
    conversation = opened(talk(agent("ann"), agent("mod", "moderator", after=("ann",))))
    all_say(conversation, "The boy", "ann")

    assert say(conversation, "mod", "So says\nann.").kind is ReceiptKind.ACT
    assert "So says / ann.</statement>" in read_by(conversation, "ann")


def test_an_open_question_takes_any_answer_and_compares_the_words() -> None:
    conversation = opened(talk(*PAIR, topics=("Bridge or ferry?",), max_rounds=1))
    reply(conversation, "ann", rationale="r", answer="A bridge!")
    reply(conversation, "bob", rationale="r", answer="a bridge")

    assert (result(conversation)["consensus"], result(conversation)["answer"]) == (True, "A bridge!")
