from __future__ import annotations

from random import Random

import pytest

from mac_runner.backends.testing import ScriptedConfig
from mac_runner.config import AgentDefinition, ConversationConfig, Experiment, ExperimentMetadata
from mac_runner.environments import Conversation, build_environment
from mac_runner.environments.testing import EchoConfig, gated
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.types import RecordedReply, Reply
from tests.backends.building import defined


def experiment(echo: EchoConfig | None = EchoConfig(rounds=2)) -> Experiment:  # noqa: B008 - it is frozen
    return Experiment.model_validate(
        {
            "experiment_metadata": ExperimentMetadata(experiment_name="numbers"),
            "model_definitions": {"m": defined(ScriptedConfig(policy="echo"))},
            "agent_definitions": tuple(AgentDefinition(agent_id=name, role="r", model="m") for name in ("a", "b", "c")),
            "conversation_config": ConversationConfig(environment="echo", conversations=2),
            "echo": echo,
        }
    )


def fresh() -> Conversation:
    return build_environment(experiment()).open(next(plan_tasks(experiment(), None)))


def answer_round(conversation: Conversation, order: tuple[int, ...], text: str | None = None) -> list[RecordedReply]:
    """Answer all open turns in an order; as the scripted player does where no text is given."""
    policy, given = build_environment(experiment()).policy("echo"), []
    turns = conversation.turns()
    for turn in (turns[place] for place in order):
        prompt = conversation.prompt(turn)
        reply = Reply(text=policy(prompt.view, Random(0)) if text is None else text)
        given.append(RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=reply))
        conversation.receive(turn, reply)
    return given


def test_echo_asks_all_agents_at_once_and_ends_after_its_rounds() -> None:
    conversation = fresh()

    for number in range(2):
        assert [(turn.round, turn.agent, turn.after) for turn in conversation.turns()] == [
            (number, agent, frozenset()) for agent in ("a", "b", "c")
        ]
        assert conversation.rounds_completed == number
        assert conversation.outcome is None
        answer_round(conversation, (0, 1, 2))
    assert conversation.turns() == ()
    assert conversation.outcome == {"kind": "echo", "rounds": 2, "echoed": 6}


def test_echo_takes_any_reply_and_counts_the_right_ones() -> None:
    conversation = fresh()
    answer_round(conversation, (0, 1, 2), "I'd rather not")
    answer_round(conversation, (0, 1, 2))

    assert conversation.outcome == {"kind": "echo", "rounds": 2, "echoed": 3}


def test_numbers_differ_from_turn_to_turn_and_from_task_to_task() -> None:
    environment = build_environment(experiment())
    prompts = {
        conversation.prompt(turn).sha256
        for conversation in map(environment.open, plan_tasks(experiment(), None))
        for turn in conversation.turns()
    }

    assert len(prompts) == 6


def test_settings_that_are_missing_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="section `echo`"):
        build_environment(experiment(echo=None))
    with pytest.raises(ConfigError, match=r"'parrot'; .* echo"):
        build_environment(experiment()).policy("parrot")


def test_gated_moves_only_those_who_wait_behind_those_they_wait_for() -> None:
    assert gated([3, 1, 2], {}) == [3, 1, 2]
    waiting = gated(["mod", "ann", "bob", "judge"], {"mod": {"ann", "bob"}, "judge": {"mod"}})
    assert waiting == ["ann", "bob", "mod", "judge"]
    assert gated(["mod", "ann"], {"mod": {"bob"}}) == ["mod", "ann"]
    with pytest.raises(ValueError, match="for each other"):
        gated(["a", "b"], {"a": {"b"}, "b": {"a"}})
