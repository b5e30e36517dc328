from __future__ import annotations

import pytest

from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.discussion.testing import DiscussionConversation, DiscussionEnvironment
from mac_runner.environments.testing import SPEECH_CHARS_MAX
from mac_runner.errors import ConfigError
from mac_runner.types import FinishReason, Receipt, ReceiptKind, Reply, Task
from tests.environments.discussion.table import opened, read_by, say, shown, turn_of


def test_speakers_speak_at_once_and_the_moderator_waits(conversation: DiscussionConversation) -> None:
    turns = conversation.turns()

    assert [turn.agent for turn in turns] == ["ann", "bob", "mod"]
    assert [turn.place for turn in turns] == [0, 1, 2]
    assert [turn.after for turn in turns] == [frozenset(), frozenset(), frozenset({"ann", "bob"})]


def test_prompts_show_earlier_rounds_and_those_waited_for(conversation: DiscussionConversation) -> None:
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


def test_topics_are_taken_in_turn(plan: list[Task]) -> None:
    asked = [task.material["question"] for task in plan if task.material is not None]

    assert asked == ["bread & butter", "rain", "bread & butter"]


def test_an_empty_reply_is_corrected_then_passed_and_counted(conversation: DiscussionConversation) -> None:
    assert say(conversation, "ann", " \n\t ").kind is ReceiptKind.CORRECTION
    again = turn_of(conversation, "ann")
    assert (again.attempt, again.is_followup) == (1, True)
    assert "it was empty" in shown(conversation.prompt(again))

    assert say(conversation, "ann", "").kind is ReceiptKind.DEFAULT
    assert "ann" not in [turn.agent for turn in conversation.turns()]
    assert 'speaker="ann" passes/>' in read_by(conversation, "mod")


def test_thoughts_are_no_part_of_a_statement(experiment: Experiment) -> None:
    for reply in ("<think>secret</think>\nI agree.", "secret</think> I agree.", "<thinking>secret</thinking>I agree."):
        conversation = opened(experiment)

        assert say(conversation, "ann", reply) == Receipt(kind=ReceiptKind.ACT, detail="I agree.")
        assert "secret" not in read_by(conversation, "mod")


def test_thoughts_that_were_cut_off_are_told_apart_from_an_empty_reply(experiment: Experiment) -> None:
    causes = {FinishReason.LENGTH: "cut off inside its thoughts", FinishReason.STOP: "thoughts were never closed"}
    for finish_reason, told in causes.items():
        conversation = opened(experiment)
        reply = Reply(text="<think>first of all", finish_reason=finish_reason)
        receipt = conversation.receive(turn_of(conversation, "ann"), reply)

        assert receipt.kind is ReceiptKind.CORRECTION
        assert told in receipt.detail
        assert told in read_by(conversation, "ann")


def test_a_discussion_that_outgrew_the_engine_fails(conversation: DiscussionConversation) -> None:
    receipt = conversation.receive(conversation.turns()[0], Reply(text="", finish_reason=FinishReason.OVERFLOW))

    assert receipt.kind is ReceiptKind.FAILURE
    assert "outgrown the context" in receipt.detail


def test_it_ends_after_its_rounds_and_tells_the_outcome(conversation: DiscussionConversation) -> None:
    for text in ("hello", ""):
        for agent in ("ann", "bob", "mod"):
            assert conversation.outcome is None
            say(conversation, agent, text)
            if not text:
                say(conversation, agent, text)

    assert conversation.outcome is not None
    assert {key: conversation.outcome[key] for key in ("kind", "rounds", "ended_by", "passes")} == {
        "kind": "discussion",
        "rounds": 2,
        "ended_by": "max_rounds",
        "passes": 3,
    }
    assert conversation.turns() == ()
    assert conversation.rounds_completed == 2


def test_a_statement_is_one_visible_line_of_bounded_length(conversation: DiscussionConversation) -> None:
    said = say(conversation, "ann", "\x1b[2J\x00\ud800 hidden \u202e reversed \u200b")
    assert said.detail == "(2J hidden reversed"
    assert len(say(conversation, "bob", "word " * 10_000).detail) <= SPEECH_CHARS_MAX


def test_a_reply_of_which_nothing_is_visible_is_empty(conversation: DiscussionConversation) -> None:
    assert say(conversation, "ann", "\u200b\u3164\u2060").kind is ReceiptKind.CORRECTION


def test_unknown_policies_and_environments_are_named_with_those_there_are(experiment: Experiment) -> None:
    with pytest.raises(ConfigError, match=r"'clever'; .* clumsy, discussant"):
        DiscussionEnvironment(experiment).policy("clever")
    elsewhere = experiment.model_copy(
        update={"conversation_config": experiment.conversation_config.model_copy(update={"environment": "chess"})}
    )
    with pytest.raises(ConfigError, match=r"'chess'; .* discussion, echo"):
        build_environment(elsewhere)
    with pytest.raises(ConfigError, match="section `discussion`"):
        build_environment(experiment.model_copy(update={"discussion": None}))
    assert isinstance(build_environment(experiment), DiscussionEnvironment)
