"""The agent definitions that take part in the conversations of an experiment.

A definition that never takes part is a slip in a single experiment. In a grid, such as a tournament, most combinations
need only some of them. The others are left out there, with the models that only they have, so that a combination
needs no engine of theirs and keeps its identity when the file gets another definition.
"""

from __future__ import annotations

from collections.abc import Collection

from mac_runner.config.experiment import Experiment
from mac_runner.config.resolution import Loaded
from mac_runner.problems import Problem
from mac_runner.section import KeyPath
from mac_runner.spec import AgentDefinition


def idle_agents(experiment: Experiment) -> dict[str, Problem]:
    """The agent definitions that take part in no conversation, with what to do about it."""
    settings = experiment.environment_settings
    if settings is None:
        return {}
    idle = experiment.spec.idle(experiment, settings)
    return {
        agent.agent_id: Problem(("agent_definitions", index), f"{agent.agent_id!r} {idle[agent.agent_id]}")
        for index, agent in enumerate(experiment.agent_definitions)
        if agent.agent_id in idle
    }


def without_agents(loaded: Loaded, idle: Collection[str]) -> Loaded:
    """The experiment without some agent definitions, and without models that speak for no other."""
    if not idle:
        return loaded
    agents = loaded.experiment.agent_definitions
    kept = [index for index, agent in enumerate(agents) if agent.agent_id not in idle]
    unneeded = {agent.model for agent in agents} - {agents[index].model for index in kept}
    models = loaded.experiment.model_definitions
    experiment = loaded.experiment.model_copy(
        update={
            "agent_definitions": tuple(_without_waits(agents[index], idle) for index in kept),
            "model_definitions": {name: model for name, model in models.items() if name not in unneeded},
        }
    )

    def locate(path: KeyPath) -> str:
        match path:
            case ("agent_definitions", int(index), *rest) if index < len(kept):
                return loaded.locate(("agent_definitions", kept[index], *rest))
        return loaded.locate(path)

    return Loaded(experiment=experiment, resolved=experiment.dumped(), locate=locate)


def _without_waits(agent: AgentDefinition, idle: Collection[str]) -> AgentDefinition:
    """An agent that waits for none of these."""
    config = agent.role_specific_config
    waits = tuple(other for other in config.speak_after_within_round if other not in idle)
    changed = config.model_copy(update={"speak_after_within_round": waits})
    return agent.model_copy(update={"role_specific_config": changed})
