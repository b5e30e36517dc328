"""Discussions rebuilt from their replies: with every role, clumsy players, any order, and a kill at any moment."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.base import Conversation
from mac_runner.environments.discussion.bots import POLICIES
from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.environment import DiscussionEnvironment
from mac_runner.environments.replay import replay
from mac_runner.plan import plan_tasks
from mac_runner.types import ReceiptKind, RecordedReply, Reply, Turn, stable_hash
from tests.environments.discussion.table import agent, talk

TEMPLATE = "{% block system %}{{ identity }} {{ rounds }}{% endblock %}"


def everything(**prompt: str) -> Experiment:
    return talk(
        agent("ann", persona="economist", demographics={"age": "elderly"}),
        agent("bob", visible_to=["ann"]),
        agent("cat", if_as_human=True),
        agent("dev", "devils_advocate", after=("ann", "bob")),
        agent("mod", "moderator", after=("ann", "bob", "cat", "dev")),
        agent("jud", "judge", after=("ann", "bob", "cat")),
        max_rounds=4,
        routing_strategy={"history_rounds": None, "channels": {"duo": ["ann", "jud"]}},
        identity_reveal_config={"persona": True, "presence_mode": "as_declared"},
        stopping={"on_consensus": True, "stable_rounds": 2},
        prompt=dict(prompt),
        max_retries=2,
    )


def opened(experiment: Experiment, index: int) -> DiscussionConversation:
    return DiscussionEnvironment(experiment).open(list(plan_tasks(experiment, None))[index])


def play(conversation: Conversation, order: Random, seed: int) -> list[RecordedReply]:
    """Play to the end in a random order; what a player says depends on the turn alone."""
    replies: list[RecordedReply] = []
    while turns := conversation.turns():
        waiting = {turn.agent for turn in turns}
        turn: Turn = order.choice([turn for turn in turns if not turn.after & waiting])
        prompt = conversation.prompt(turn)
        text = POLICIES["clumsy"](prompt.view, Random(stable_hash(seed, turn.key)))
        conversation.receive(turn, Reply(text=text))
        replies.append(RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=Reply(text=text)))
    return replies


@pytest.mark.parametrize("seed", range(12))
def test_a_discussion_is_the_same_in_any_order_and_from_any_moment(seed: int) -> None:
    experiment = everything(template=TEMPLATE) if seed % 2 else everything()
    played = opened(experiment, seed % 3)
    replies = play(played, Random(seed), seed)
    other = opened(experiment, seed % 3)
    play(other, Random(-seed - 1), seed)
    rebuilt = opened(experiment, seed % 3)
    found = replay(rebuilt, replies, check_prompts=True)
    resumed = opened(experiment, seed % 3)
    replay(resumed, replies[: seed * len(replies) // 12])
    play(resumed, Random(seed), seed)

    assert found.changed_prompts == ()
    assert played.outcome is not None
    for again in (other, rebuilt, resumed):
        assert again.fingerprint() == played.fingerprint()
        assert (again.record(), again.outcome) == (played.record(), played.outcome)


def test_the_players_get_no_answer_and_no_label_of_the_truth() -> None:
    conversation = opened(everything(), 0)
    view = repr(conversation.prompt(conversation.turns()[0]).view)

    assert "correct_answer_id=None" in view
    assert "source_metadata=None" in view


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_player_plays_every_role_to_the_end(policy: str) -> None:
    for seed in range(5):
        conversation = opened(everything(), seed % 3)
        while turns := conversation.turns():
            view = conversation.prompt(turns[0]).view
            receipt = conversation.receive(turns[0], Reply(text=POLICIES[policy](view, Random(seed))))
            assert receipt.detail
        assert conversation.outcome is not None


def test_the_discussant_is_never_asked_again_and_can_be_swayed() -> None:
    conversations = [opened(everything(), 0) for _ in range(40)]
    for seed, conversation in enumerate(conversations):
        while turns := conversation.turns():
            text = POLICIES["discussant"](conversation.prompt(turns[0]).view, Random(stable_hash(seed, turns[0].key)))
            assert conversation.receive(turns[0], Reply(text=text)).kind is ReceiptKind.ACT

    outcomes = [conversation.outcome for conversation in conversations]
    assert len({str(outcome["answers"]) for outcome in outcomes if outcome}) > 20
    assert {outcome["rounds"] for outcome in outcomes if outcome} >= {1, 2, 3}


def test_the_discussant_heeds_identities_that_it_is_shown() -> None:
    people = [agent(name, persona=persona) for name, persona in (("ann", "nurse"), ("bob", "judge"), ("cat", "actor"))]
    ends: list[list[str]] = []
    for is_shown in (True, False):
        experiment = talk(*people, max_rounds=4, identity_reveal_config={"persona": is_shown})
        ends.append([])
        for seed in range(40):
            conversation = opened(experiment, 0)
            while turns := conversation.turns():
                view = conversation.prompt(turns[0]).view
                text = POLICIES["discussant"](view, Random(stable_hash(seed, turns[0].key)))
                assert conversation.receive(turns[0], Reply(text=text)).kind is ReceiptKind.ACT
            assert conversation.outcome is not None
            ends[-1].append(str(conversation.outcome["answers"]))

    assert ends[0] != ends[1]
