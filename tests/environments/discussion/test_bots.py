"""Scripted discussants: what they are given, and that they sway each other."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion.testing import POLICIES, DiscussionConversation, DiscussionEnvironment
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonObject, ReceiptKind, Reply, stable_hash
from tests.environments.discussion.table import agent, everything, talk


def opened(experiment: Experiment, count: int = 1) -> list[DiscussionConversation]:
    """The first discussion of an experiment, so many times."""
    environment, task = DiscussionEnvironment(experiment), next(iter(plan_tasks(experiment, None)))
    return [environment.open(task) for _ in range(count)]


def played(seed: int, conversation: DiscussionConversation) -> JsonObject:
    """The outcome among discussants, whom nobody asks twice."""
    while turns := conversation.turns():
        text = POLICIES["discussant"](conversation.prompt(turns[0]).view, Random(stable_hash(seed, turns[0].key)))
        assert conversation.receive(turns[0], Reply(text=text)).kind is ReceiptKind.ACT
    assert conversation.outcome is not None
    return conversation.outcome


def test_the_players_get_no_answer_and_no_label_of_the_truth() -> None:
    (conversation,) = opened(everything())
    view = repr(conversation.prompt(conversation.turns()[0]).view)

    assert "correct_answer_id=None" in view
    assert "source_metadata=None" in view


@pytest.mark.ci
def test_the_discussant_is_never_asked_again_and_can_be_swayed() -> None:
    outcomes = [played(seed, conversation) for seed, conversation in enumerate(opened(everything(), 40))]

    assert len({str(outcome["answers"]) for outcome in outcomes}) > 20
    assert {outcome["rounds"] for outcome in outcomes} >= {1, 2, 3}


@pytest.mark.ci
def test_the_discussant_heeds_identities_that_it_is_shown() -> None:
    people = [agent(name, persona=persona) for name, persona in (("ann", "nurse"), ("bob", "judge"), ("cat", "actor"))]
    ends = []
    for is_shown in (True, False):
        experiment = talk(*people, max_rounds=4, identity_reveal_config={"persona": is_shown})
        ends.append([played(seed, one)["answers"] for seed, one in enumerate(opened(experiment, 20))])

    assert ends[0] != ends[1]
