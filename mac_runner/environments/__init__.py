"""Kinds of conversation behind one contract (`base`), each in a package that `mac_runner.registry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.errors import ConfigError
from mac_runner.registry import environment_specs

if TYPE_CHECKING:
    from mac_runner.config import Experiment
    from mac_runner.environments.base import Environment


def build_environment(experiment: Experiment) -> Environment:
    """The environment that an experiment names. Raises ConfigError with the known ones for another name."""
    name, specs = experiment.conversation_config.environment, environment_specs()
    if name not in specs:
        raise ConfigError(
            f"conversation_config.environment: found {name!r}; there are: {', '.join(sorted(specs))}",
            key=("conversation_config", "environment"),
        )
    return specs[name].build(experiment)
