"""The environment `discussion`: the agents of an experiment discuss its topics in turn."""

from __future__ import annotations

from mac_runner.config import Experiment
from mac_runner.environments.base import Policy
from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.policies import POLICIES
from mac_runner.environments.discussion.rules import Discussion, Participant
from mac_runner.environments.gating import gated
from mac_runner.errors import ConfigError
from mac_runner.types import Agent, Task


class DiscussionEnvironment:
    """Conversation number i is about topic i, over and over; every agent definition takes part once."""

    lineup = None

    def __init__(self, experiment: Experiment) -> None:
        if experiment.discussion is None:
            raise ConfigError("environment discussion needs a section `discussion` with `topics`")
        self._settings = experiment.discussion
        self._corrections_max = experiment.retry_config.max_retries
        self._definitions = {definition.agent_id: definition for definition in experiment.agent_definitions}

    def open(self, task: Task) -> DiscussionConversation:
        """A discussion in which nobody has spoken."""
        topics = self._settings.topics
        discussion = Discussion(
            topic=topics[task.index % len(topics)],
            rounds=self._settings.rounds,
            participants=self._participants(task),
        )
        return DiscussionConversation(discussion, corrections_max=self._corrections_max)

    def policy(self, name: str) -> Policy:
        """A scripted participant."""
        if name not in POLICIES:
            raise ConfigError(f"environment discussion has no policy {name!r}; it has {', '.join(sorted(POLICIES))}")
        return POLICIES[name]

    def _participants(self, task: Task) -> tuple[Participant, ...]:
        """The agents in the order in which they speak: that of the definitions, each behind those it waits for."""
        agents = {agent.agent_id: agent for agent in task.agents}
        hears = {agent_id: self._heard_by(agent, task) for agent_id, agent in agents.items()}
        return tuple(
            Participant(
                agent=agent_id,
                role=self._definitions[agents[agent_id].definition].role,
                model=agents[agent_id].model,
                place=place,
                hears=hears[agent_id],
            )
            for place, agent_id in enumerate(gated(agents, hears))
        )

    def _heard_by(self, agent: Agent, task: Task) -> frozenset[str]:
        waits_for = self._definitions[agent.definition].role_specific_config.speak_after_within_round
        return frozenset(other.agent_id for other in task.agents if other.definition in waits_for)
