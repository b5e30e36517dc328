"""Scripted discussants: what they are given, and that they sway each other."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion.bots import POLICIES
from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.environment import DiscussionEnvironment
from mac_runner.plan import plan_tasks
from mac_runner.types import ReceiptKind, Reply, stable_hash
from tests.environments.discussion.table import agent, everything, talk


def opened(experiment: Experiment, index: int) -> DiscussionConversation:
    return DiscussionEnvironment(experiment).open(list(plan_tasks(experiment, None))[index])


def test_the_players_get_no_answer_and_no_label_of_the_truth() -> None:
    conversation = opened(everything(), 0)
    view = repr(conversation.prompt(conversation.turns()[0]).view)

    assert "correct_answer_id=None" in view
    assert "source_metadata=None" in view


@pytest.mark.ci
def test_the_discussant_is_never_asked_again_and_can_be_swayed() -> None:
    conversations = [opened(everything(), 0) for _ in range(40)]
    for seed, conversation in enumerate(conversations):
        while turns := conversation.turns():
            text = POLICIES["discussant"](conversation.prompt(turns[0]).view, Random(stable_hash(seed, turns[0].key)))
            assert conversation.receive(turns[0], Reply(text=text)).kind is ReceiptKind.ACT

    outcomes = [conversation.outcome for conversation in conversations]
    assert len({str(outcome["answers"]) for outcome in outcomes if outcome}) > 20
    assert {outcome["rounds"] for outcome in outcomes if outcome} >= {1, 2, 3}


@pytest.mark.ci
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
