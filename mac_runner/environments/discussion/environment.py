"""The environment `discussion`: the agents of an experiment discuss its topics in turn."""

from __future__ import annotations

from mac_runner.config import Experiment
from mac_runner.environments.base import Policy
from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.policies import POLICIES
from mac_runner.environments.discussion.rules import Discussion, Participant
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
            participants=tuple(self._participant(task, agent) for agent in task.agents),
        )
        return DiscussionConversation(discussion, corrections_max=self._corrections_max)

    def policy(self, name: str) -> Policy:
        """A scripted participant."""
        if name not in POLICIES:
            raise ConfigError(f"environment discussion has no policy {name!r}; it has {', '.join(sorted(POLICIES))}")
        return POLICIES[name]

    def _participant(self, task: Task, agent: Agent) -> Participant:
        definition = self._definitions[agent.definition]
        waits_for = set(definition.role_specific_config.speak_after_within_round)
        return Participant(
            agent=agent.agent_id,
            role=definition.role,
            model=agent.model,
            seat=agent.seat,
            hears=frozenset(other.agent_id for other in task.agents if other.definition in waits_for),
        )
