"""Seats at which generators are played."""

from __future__ import annotations

from mac_runner.environments import Conversation
from mac_runner.types import Agent, Sampling, Task


def task_of(*names: str, seed: int = 5) -> Task:
    """A conversation of agents with these names."""
    agents = tuple(
        Agent(agent_id=name, definition="p", model="m", seat=place, slot=place, sampling=Sampling())
        for place, name in enumerate(names)
    )
    return Task(index=0, task_id="t-000000", seed=seed, agents=agents)


def prompted(conversation: Conversation) -> str:
    """The last message that the agent whose turn is open would be sent."""
    return conversation.prompt(conversation.turns()[0]).messages[-1].content
