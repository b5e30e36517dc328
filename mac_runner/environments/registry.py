"""From `conversation_config.environment` to the environment."""

from __future__ import annotations

from collections.abc import Callable

from mac_runner.config import Experiment
from mac_runner.environments.base import Environment
from mac_runner.errors import ConfigError


def build_environment(experiment: Experiment) -> Environment:
    """The environment an experiment names. Raises ConfigError naming those there are."""
    name = experiment.conversation_config.environment
    build = _ENVIRONMENTS.get(name)
    if build is None:
        known = ", ".join(sorted(_ENVIRONMENTS))
        raise ConfigError(
            f"conversation_config.environment: found {name!r}; there are: {known}",
            key=("conversation_config", "environment"),
        )
    return build(experiment)


# Each environment is imported when it is asked for: a run needs one of them.


def _discussion(experiment: Experiment) -> Environment:
    from mac_runner.environments.discussion import DiscussionEnvironment

    return DiscussionEnvironment(experiment)


def _echo(experiment: Experiment) -> Environment:
    from mac_runner.environments.echo import EchoEnvironment

    return EchoEnvironment(experiment)


def _town_of_salem(experiment: Experiment) -> Environment:
    from mac_runner.environments.town_of_salem.environment import TownOfSalem

    return TownOfSalem(experiment)


_ENVIRONMENTS: dict[str, Callable[[Experiment], Environment]] = {
    "discussion": _discussion,
    "echo": _echo,
    "town_of_salem": _town_of_salem,
}
