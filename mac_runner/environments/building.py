"""From `conversation_config.environment` to the environment."""

from __future__ import annotations

from mac_runner.config import Experiment
from mac_runner.environments.base import Environment
from mac_runner.errors import ConfigError
from mac_runner.registry import environment_specs


def build_environment(experiment: Experiment) -> Environment:
    """The environment that an experiment names. Raises ConfigError with the known ones for another."""
    name, specs = experiment.conversation_config.environment, environment_specs()
    if name not in specs:
        raise ConfigError(
            f"conversation_config.environment: found {name!r}; there are: {', '.join(sorted(specs))}",
            key=("conversation_config", "environment"),
        )
    return specs[name].build(experiment)
