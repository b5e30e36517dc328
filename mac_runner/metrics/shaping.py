"""Shaped rewards of an ended conversation: a number for each agent, and an error for each function that has none.

A shaped reward is code of a user, like a metric. What it raises or returns wrongly costs its own values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from mac_runner.errors import ConversationError, MacRunnerError, ShortageError, boundary
from mac_runner.metrics.ended import EndedConversation, ended_conversation
from mac_runner.metrics.measuring import plain_number, words_of
from mac_runner.plugins import Plugin, plain_function
from mac_runner.types import JsonObject

SHAPE: Final = "a reward is a function `reward(conversation)` that returns a number for each agent, by its name"

Reward: TypeAlias = Callable[[EndedConversation], object]


def own_reward(plugin: Plugin) -> Reward:
    """The function that an experiment names. Raises ConfigError for an object that is none."""
    return plain_function(plugin, 1, SHAPE)


def shaped(rewards: Mapping[str, Reward], transcript: JsonObject) -> JsonObject:
    """What a transcript keeps of its shaped rewards: `shaped_rewards`, and `reward_errors` where there are any.

    Nothing where there are none, or the conversation failed: it has no result to reward.
    """
    if not rewards or transcript["status"] != "finished":
        return {}
    values: JsonObject = {}
    errors: JsonObject = {}
    conversation = ended_conversation(transcript)
    for name, reward in rewards.items():
        try:
            with boundary(ConversationError, name):
                values[name] = _by_agent(conversation, reward(conversation.copied()))
        except ShortageError:
            raise
        except MacRunnerError as fault:
            errors[name] = words_of(fault)
    return {"shaped_rewards": values, **({"reward_errors": errors} if errors else {})}


def _by_agent(conversation: EndedConversation, found: object) -> JsonObject:
    agents = [agent.name for agent in conversation.agents]
    if not isinstance(found, Mapping):
        raise TypeError(f"it returned {type(found).__name__}; return a number for each agent, by its name")
    if strays := [name for name in found if name not in agents]:
        raise ValueError(
            f"it returned a value for {strays[0]!r}, which is not an agent; there are: {', '.join(agents)}"
        )
    if missing := [name for name in agents if name not in found]:
        raise ValueError(f"it returned no value for {missing[0]!r}; return a number for each agent")
    return {name: plain_number(name, found[name]) for name in agents}
