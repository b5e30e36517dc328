"""Choices shown in an order drawn for each discussion: labels go by the place shown, answers by the choice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from mac_runner.config import Experiment
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.testing import (
    DiscussionConversation,
    DiscussionEnvironment,
    bias_item,
    permuted,
    unknown_choice,
)
from mac_runner.plan import plan_tasks
from tests.environments.discussion.table import BUS, agent, read_by, reply, result, talk

BBQ = replace(
    BUS,
    source_metadata={
        "category": "Age",
        "context_condition": "ambig",
        "question_polarity": "neg",
        "answer_info": {"ans0": ["boy", "nonOld"], "ans1": ["grandmother", "old"], "ans2": ["pack", "unknown"]},
        "additional_metadata": {"stereotyped_groups": ["old"]},
    },
)


def panel(order: str = "permuted", **prompt: str) -> Experiment:
    asked = talk(agent("ann"), agent("bob"), max_rounds=1, prompt={"choice_order": order, **prompt})
    settings = asked.settings_as(DiscussionConfig).with_bank((BBQ,))
    conversations = asked.conversation_config.model_copy(update={"conversations": 60})
    return asked.model_copy(update={"discussion": settings, "conversation_config": conversations})


def discussions(experiment: Experiment) -> list[DiscussionConversation]:
    environment = DiscussionEnvironment(experiment)
    return [environment.open(task) for task in plan_tasks(experiment, None)]


def listed(text: str) -> list[str]:
    """The texts behind the labels A, B and C of a prompt."""
    return [line.partition(". ")[2] for line in text.splitlines() if line[:3] in ("A. ", "B. ", "C. ")]


def order_of(conversation: DiscussionConversation) -> list[str]:
    events: Any = conversation.record()["events"]
    return [*events[0]["data"]["order"]]


def test_all_agents_see_one_order_and_labels_go_by_the_place_shown() -> None:
    texts = {choice.id: choice.text for choice in BUS.choices}
    for conversation in discussions(panel()):
        order = order_of(conversation)
        assert listed(read_by(conversation, "ann")) == listed(read_by(conversation, "bob")) == [texts[c] for c in order]
        reply(conversation, "ann", answer="B", rationale="x")
        reply(conversation, "bob", answer=texts[order[0]], rationale="x")
        outcome = result(conversation)
        assert outcome["order"] == order
        assert outcome["answers"] == {"ann": [order[1]], "bob": [order[0]]}


def test_every_order_is_equally_likely() -> None:
    counts = Counter(permuted(BBQ, seed).order for seed in range(6_000))

    # Multinomial with n = 6,000 and p = 1/6: 1,000 on average, with a standard deviation of 28.9.
    assert len(counts) == 6
    assert all(abs(count - 1_000) < 5 * 28.9 for count in counts.values())


def test_the_order_is_that_of_the_seed_whatever_else_a_combination_differs_in() -> None:
    other = panel(choice_format="roman_dot", answer_order="answer_first")

    assert [order_of(one) for one in discussions(panel())] == [order_of(one) for one in discussions(other)]


def test_metadata_goes_by_the_order_of_the_file() -> None:
    shuffled = next(one for seed in range(9) if (one := permuted(BBQ, seed)).order == ("z", "x", "y"))

    assert [choice.id for choice in shuffled.shown] == ["z", "x", "y"]
    assert unknown_choice(shuffled) == "z"
    assert bias_item(shuffled) == bias_item(BBQ)
    assert (bias_item(BBQ) or {})["biased"] == "y"


def test_choices_stay_as_given_by_default() -> None:
    assert {tuple(order_of(one)) for one in discussions(panel("as_given"))} == {("x", "y", "z")}


def test_earlier_editions_record_no_order() -> None:
    experiment = panel("as_given")
    settings = experiment.settings_as(DiscussionConfig)
    earlier = experiment.model_copy(update={"discussion": settings.model_copy(update={"edition": 2}).with_bank((BBQ,))})

    conversation = discussions(earlier)[0]
    for name in ("ann", "bob"):
        reply(conversation, name, answer="B", rationale="x")

    assert "order" not in result(conversation)
    events = conversation.record()["events"]
    assert isinstance(events, list)
    assert isinstance(events[0], dict)
    assert events[0]["data"] == {"question_id": "bus_1"}
