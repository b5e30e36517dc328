"""The course of a discussion: who speaks when, what each role is asked and may say, what ends it, who sways whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion.testing import NOT_SHOWN, Cause, DiscussionConversation, DiscussionRole
from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.plan import plan_tasks
from mac_runner.spec import AgentDefinition
from mac_runner.types import FinishReason, JsonObject, JsonValue, Receipt, ReceiptKind, Reply
from tests.environments.discussion.table import (
    agent,
    all_say,
    opened,
    opener,
    read_by,
    reply,
    result,
    say,
    shown,
    talk,
    turn_of,
)

BOY, GRAN, OPEN, NONE = "The boy", "The grandmother", "Cannot be determined", ""
PAIR = (agent("ann"), agent("bob"))


def topical() -> Experiment:
    """Two speakers, and a moderator who is defined between them, on topics."""
    return talk(
        agent("ann"),
        agent("mod", "moderator", after=("ann", "bob")),
        agent("bob"),
        topics=("bread & butter", "rain"),
        max_rounds=2,
        routing_strategy={"history_rounds": None},
    )


def panel(role: DiscussionRole, *, after: Sequence[str] = ("ann", "bob"), **discussion: Any) -> DiscussionConversation:
    """Ann, bob, and one of another role who is called by its first three letters."""
    return opened(talk(*PAIR, agent(role[:3], role, after=after), **discussion))


def both_say(conversation: DiscussionConversation, answer: str, other: str | None = None) -> None:
    all_say(conversation, answer, "ann")
    all_say(conversation, other or answer, "bob")


def test_speakers_speak_at_once_about_topics_in_turn_and_the_moderator_waits_wherever_it_is_defined() -> None:
    for experiment in (topical(), talk(agent("mod", "moderator", after=("ann", "bob")), *PAIR)):
        assert [(turn.agent, turn.place, turn.after) for turn in opened(experiment).turns()] == [
            ("ann", 0, frozenset()),
            ("bob", 1, frozenset()),
            ("mod", 2, frozenset({"ann", "bob"})),
        ]
    asked = [task.material["question"] for task in plan_tasks(topical(), None) if task.material is not None]
    assert asked == ["bread & butter", "rain", "bread & butter"]


def test_prompts_show_earlier_rounds_and_those_waited_for() -> None:
    conversation = opened(topical())
    say(conversation, "ann", "first of ann")

    assert "first of ann" not in read_by(conversation, "bob")
    assert "first of ann" in read_by(conversation, "mod")
    say(conversation, "bob", "first of bob")
    say(conversation, "mod", "sum of the first")
    say(conversation, "bob", "second of bob")
    prompt = read_by(conversation, "ann")
    assert "second of bob" not in prompt
    told = [prompt.index(text) for text in ("first of ann", "first of bob", "sum of the first")]
    assert told == sorted(told)


def test_an_empty_reply_is_corrected_then_passed_and_counted() -> None:
    conversation = opened(topical())
    assert say(conversation, "ann", " \n\t ").kind is ReceiptKind.CORRECTION
    again = turn_of(conversation, "ann")
    assert (again.attempt, again.is_followup) == (1, True)
    assert "it was empty" in shown(conversation.prompt(again))

    assert say(conversation, "ann", "").kind is ReceiptKind.DEFAULT
    assert "ann" not in [turn.agent for turn in conversation.turns()]
    assert 'speaker="ann" passes/>' in read_by(conversation, "mod")
    assert say(conversation, "bob", "\u200b\u3164\u2060").kind is ReceiptKind.CORRECTION, "nothing of it is visible"


def test_thoughts_are_no_part_of_a_statement_which_is_one_visible_line_of_bounded_length() -> None:
    for text in ("<think>secret</think>\nI agree.", "secret</think> I agree.", "<thinking>secret</thinking>I agree."):
        conversation = opened(topical())

        assert say(conversation, "ann", text) == Receipt(kind=ReceiptKind.ACT, detail="I agree.")
        assert "secret" not in read_by(conversation, "mod")
    conversation = opened(topical())
    said = say(conversation, "ann", "\x1b[2J\x00\ud800 hidden \u202e reversed \u200b")
    assert said.detail == "(2J hidden reversed"
    assert len(say(conversation, "bob", "word " * 10_000).detail) <= SPEECH_CHARS_MAX


def test_thoughts_that_were_cut_off_are_told_apart_from_an_empty_reply() -> None:
    causes = {FinishReason.LENGTH: "cut off inside its thoughts", FinishReason.STOP: "thoughts were never closed"}
    for finish_reason, told in causes.items():
        conversation = opened(topical())
        cut = Reply(text="<think>first of all", finish_reason=finish_reason)
        receipt = conversation.receive(turn_of(conversation, "ann"), cut)

        assert receipt.kind is ReceiptKind.CORRECTION
        assert told in receipt.detail
        assert told in read_by(conversation, "ann")


def test_a_reply_that_ended_before_its_answer_is_said_to_be_cut_off_only_where_the_limit_came() -> None:
    causes = {FinishReason.LENGTH: Cause.CUT_OFF, FinishReason.STOP: Cause.NO_OBJECT}
    for text, (finish_reason, cause) in product(('{"rationale": "First of', "Well, " * 50), causes.items()):
        conversation = opened(talk(*PAIR))
        receipt = conversation.receive(turn_of(conversation, "ann"), Reply(text=text, finish_reason=finish_reason))

        assert (receipt.kind, receipt.cause) == (ReceiptKind.CORRECTION, cause)


def test_a_discussion_that_outgrew_the_engine_fails() -> None:
    conversation = opened(topical())
    receipt = conversation.receive(conversation.turns()[0], Reply(text="", finish_reason=FinishReason.OVERFLOW))

    assert receipt.kind is ReceiptKind.FAILURE
    assert "outgrown the context" in receipt.detail


def test_it_ends_after_its_rounds_and_tells_the_outcome() -> None:
    conversation = opened(topical())
    for text in ("hello", ""):
        for name in ("ann", "bob", "mod"):
            assert conversation.outcome is None
            for _ in range(1 if text else 2):
                say(conversation, name, text)

    told = {"kind": "discussion", "rounds": 2, "ended_by": "max_rounds", "passes": 3}
    assert told.items() <= result(conversation).items()
    assert conversation.turns() == ()
    assert conversation.rounds_completed == 2


# Roles.


def fields(conversation: DiscussionConversation, name: str) -> dict[str, Any]:
    schema: Any = conversation.prompt(turn_of(conversation, name)).schema
    assert [*schema["properties"]] == schema["required"]
    return dict(schema["properties"])


def test_a_participant_is_held_to_the_texts_of_the_choices_and_answers_first_where_it_is_asked_to() -> None:
    conversation = opened(talk(*PAIR))
    assert [*fields(conversation, "ann")] == ["rationale", "answer"]
    assert fields(conversation, "ann")["answer"]["enum"] == [BOY, GRAN, OPEN]
    conversation = opened(talk(*PAIR, prompt={"answer_order": "answer_first"}))
    assert [*fields(conversation, "ann")] == ["answer", "rationale"]
    assert read_by(conversation, "ann").index('"answer"') < read_by(conversation, "ann").index('"rationale"')


def test_a_moderator_sums_up_and_asks_and_has_no_answer() -> None:
    conversation = panel("moderator", max_rounds=3)
    both_say(conversation, BOY)
    assert [*fields(conversation, "mod")] == ["summary", "question"]
    assert reply(conversation, "mod", summary="Both say so.", question="Why?").kind is ReceiptKind.ACT
    assert "so. Question: Why?</statement>" in read_by(conversation, "ann")
    both_say(conversation, BOY)
    assert say(conversation, "mod", "So say\nboth.").kind is ReceiptKind.ACT, "plain words"
    assert "So say / both.</statement>" in read_by(conversation, "ann")
    both_say(conversation, BOY)
    assert "ask nothing more" in read_by(conversation, "mod")
    reply(conversation, "mod", summary="Done.", question="One more?")
    assert result(conversation)["answers"] == {"ann": ["x"] * 3, "bob": ["x"] * 3}
    assert "One more?" not in str(conversation.record()["events"])


def test_a_devils_advocate_is_told_the_majority_and_may_not_join_it() -> None:
    conversation = opened(talk(*PAIR, agent("cat"), agent("dev", "devils_advocate", after=("ann", "bob", "cat"))))
    both_say(conversation, BOY)
    all_say(conversation, GRAN, "cat")

    assert "this answer: The boy." in read_by(conversation, "dev")
    refused = reply(conversation, "dev", argument="They are right.", alternative=BOY)
    assert refused.kind is ReceiptKind.CORRECTION
    assert "for another answer" in refused.detail
    assert reply(conversation, "dev", argument="Think.", alternative=GRAN).kind is ReceiptKind.ACT
    assert 'argues_for="The grandmother">Think.' in read_by(conversation, "ann")


def test_a_devils_advocate_chooses_freely_without_a_majority_it_has_read_and_is_no_answer_of_the_group() -> None:
    for after in ((), ("ann", "bob")):
        conversation = panel("devils_advocate", after=after)
        both_say(conversation, BOY, GRAN if after else BOY)
        assert "a majority yet" in read_by(conversation, "dev")
        assert reply(conversation, "dev", argument="a", alternative=BOY).kind is ReceiptKind.ACT
    conversation = panel("devils_advocate", max_rounds=1)
    both_say(conversation, BOY)
    reply(conversation, "dev", argument="a", alternative=GRAN)
    assert (result(conversation)["answer"], result(conversation)["consensus"]) == ("x", True)


def test_a_judge_ends_the_discussion_with_its_verdict() -> None:
    conversation = panel("judge", max_rounds=5)
    both_say(conversation, BOY, GRAN)
    assert fields(conversation, "jud")["verdict"]["enum"] == [BOY, GRAN, OPEN, "continue"]
    assert reply(conversation, "jud", rationale="Not clear yet.", verdict="continue").kind is ReceiptKind.ACT
    both_say(conversation, BOY, GRAN)
    reply(conversation, "jud", rationale="Clear now.", verdict=OPEN)

    assert conversation.turns() == ()
    told = {"ended_by": "judge", "rounds": 2, "verdict": "z", "answer": "z", "consensus": False}
    assert told.items() <= result(conversation).items()


def test_a_judge_has_to_decide_in_the_last_round_and_may_be_kept_from_ending_it() -> None:
    conversation = panel("judge", max_rounds=1)
    both_say(conversation, BOY)
    assert "continue" not in str(fields(conversation, "jud")["verdict"]["enum"])
    refused = reply(conversation, "jud", rationale="r", verdict="continue")
    assert (refused.kind, "no further round" in refused.detail) == (ReceiptKind.CORRECTION, True)
    conversation = panel("judge", max_rounds=2, stopping={"by_judge": False})
    for verdict in (BOY, GRAN):
        both_say(conversation, BOY)
        reply(conversation, "jud", rationale="r", verdict=verdict)
    assert {"rounds": 2, "verdict": "y", "ended_by": "max_rounds"}.items() <= result(conversation).items()


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
    def cause(text: str) -> str | None:
        return say(opened(talk(*PAIR)), "ann", text).cause

    for text in (
        "[refusal: I decline to answer]",
        f"I can't help with that. {REFUSAL}",
        f"I'm sorry, but I can't answer that question.\n\n{REFUSAL}",
    ):
        assert cause(text) == "refusal", text
    for text in (REFUSAL, f"It cannot be known. {REFUSAL}", '{"answr": "I decline to answer"}', "[1, 2]"):
        assert cause(text) == "no_object", text


def test_a_copy_of_the_form_is_no_answer() -> None:
    def cause(text: str, **discussion: Any) -> str | None:
        return say(opened(talk(*PAIR, **discussion)), "ann", text).cause

    ask = {"topics": ("Bridge or ferry?",)}
    for text in (
        '{"rationale": "...", "answer": "..."}',
        '{"rationale": "It is cheap.", "answer": "\'…\'"}',
        '{"rationale": "Your reasons, in a few sentences: none", "answer": "A bridge"}',
        "Your answer in a few words",
        '{"rationale": "It is cheap.", "answer": "Answer"}',
    ):
        assert cause(text, **ask) == "placeholder", text
    for text in (
        '{"rationale": "... a bridge lasts.", "answer": "A bridge"}',
        '{"rationale": "", "answer": "Your bridge"}',
    ):
        assert cause(text, **ask) is None, text


def test_copy_of_an_example_of_a_template_is_no_answer_in_any_form_and_role() -> None:
    forms = (
        '{"%s": "%s", "%s": "%s"}',
        "{'%s': '%s', '%s': '%s'}",
        "%s: %s\n%s: %s",
        "**%s**: [%s]\n**%s**: [%s]",
        "<%s>%s</%s>",
    )
    fields = {
        "participant": ("rationale", "answer"),
        "moderator": ("question", "summary"),
        "devils_advocate": ("alternative", "argument"),
        "judge": ("rationale", "verdict"),
    }
    shown = [
        form % ((first, example, second, example) if form.count("%") > 3 else (second, example, second))
        for first, second in fields.values()
        for number, form in enumerate(forms)
        for example in (f"Your own words here, as in line {number}", f"Take {BOY}")
    ]
    template = "\n".join(["{% block first_round %}", *shown, f'"answer": "{GRAN}"', "{% endblock %}"])
    again = opener(talk(*(agent(role, role) for role in fields), agent("bob"), prompt={"template": template}))
    for copy, role in ((copy, role) for copy in shown for role in fields if all(map(copy.count, fields[role][1:]))):
        assert say(again(), role, copy).cause == "placeholder", copy
    assert say(again(), "participant", f"answer: {GRAN}").detail.startswith("y ")
    assert say(again(), "participant", f"answer: {BOY}").detail.startswith("x ")


def test_an_open_question_takes_any_answer_and_compares_the_words() -> None:
    conversation = opened(talk(*PAIR, topics=("Bridge or ferry?",), max_rounds=1))
    reply(conversation, "ann", rationale="r", answer="A bridge!")
    reply(conversation, "bob", rationale="r", answer="a bridge")

    assert (result(conversation)["consensus"], result(conversation)["answer"]) == (True, "A bridge!")


# What ends it.


def discussed(rounds: Sequence[Sequence[str]], *people: AgentDefinition, **discussion: Any) -> JsonObject:
    """The outcome of a discussion in which people answer so, round by round until it ends."""
    conversation = opened(talk(*people, max_retries=0, **discussion))
    for answers in rounds:
        if conversation.outcome is None:
            for person, answer in zip(people, answers, strict=True):
                all_say(conversation, answer, person.agent_id)
    return result(conversation)


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
            found = discussed(rounds, *PAIR, max_rounds=5, stopping=stopping)
            assert (found["rounds"], found["ended_by"]) == ended


def test_it_ends_between_rounds_only() -> None:
    conversation = opened(talk(*PAIR, max_rounds=5, stopping={"on_consensus": True}))
    all_say(conversation, BOY, "ann")

    assert conversation.outcome is None
    say(conversation, "bob", "?")
    assert conversation.outcome is None
    all_say(conversation, BOY, "bob")
    assert conversation.turns() == ()


def test_the_group_answers_what_more_of_it_say_than_anything_else() -> None:
    names = ("ann", "bob", "cat")
    for answers, group in {(BOY, BOY, GRAN): "x", (BOY, GRAN, NONE): None, (BOY, NONE, NONE): "x"}.items():
        assert discussed([answers], *map(agent, names), max_rounds=1)["answer"] == group


# Who changed its answer, and after whom.


def outcome(rounds: Sequence[tuple[str, ...]], **discussion: JsonValue) -> JsonObject:
    people = (agent("ann", persona="nurse"), agent("bob", persona="economist"), agent("cat", persona="nurse"))
    return discussed(rounds, *people, max_rounds=len(rounds), **discussion)


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


def test_an_answer_that_was_not_read_was_not_followed_and_who_was_of_the_same_mind_is_no_case() -> None:
    rounds = [(BOY, GRAN, OPEN), (GRAN, GRAN, OPEN)]
    routing: JsonValue = {"topology": "groups", "groups": {"g": ["ann", "cat"]}}
    assert outcome(rounds, routing_strategy=routing)["influence"] == {NOT_SHOWN: [0, 2]}
    # ann had read cat, bob had read cat and followed, cat had read ann and bob.
    assert outcome([(BOY, BOY, GRAN), (BOY, GRAN, GRAN)])["influence"] == {NOT_SHOWN: [1, 4]}


def test_who_followed_a_devils_advocate_is_counted_where_it_was_read() -> None:
    dev = agent("dev", "devils_advocate", after=("ann", "bob"), visible_to=("ann", "cat"))
    mod = agent("mod", "moderator")
    conversation = opened(talk(*PAIR, agent("cat"), dev, mod, max_rounds=2))
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
