"""From a file and flags to everything a run is made of, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mac_runner.backends import build_backend
from mac_runner.backends.base import Backend
from mac_runner.clock import Clock
from mac_runner.config import Experiment, load_experiment
from mac_runner.environments.base import Environment, Policy
from mac_runner.environments.registry import build_environment
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonObject, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for. `limit` bounds the tasks of this invocation, `concurrency` all in flight."""

    file: Path
    profile: str | None = None
    overrides: tuple[str, ...] = ()
    limit: int | None = None
    seed: int | None = None
    concurrency: int | None = None
    out: Path | None = None
    is_quiet: bool = False
    is_live: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An experiment ready to run."""

    experiment: Experiment
    resolved: JsonObject
    environment: Environment
    backends: Mapping[str, Backend]
    directory: Path
    limit: int | None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.experiment_metadata.experiment_name

    def tasks(self) -> Iterator[Task]:
        """The plan of this invocation, anew on each call."""
        return islice(plan_tasks(self.experiment, self.environment.lineup), self.limit)


def set_up(request: Request, clock: Clock) -> Setup:
    """Read, resolve and check everything. Raises ConfigError, with the place in the file where there is one."""
    loaded = load_experiment(request.file, profile=request.profile, overrides=request.overrides, seed=request.seed)
    experiment = loaded.experiment
    try:
        environment = build_environment(experiment)
        backends = {
            name: build_backend(name, definition, _policies(environment, name), clock)
            for name, definition in experiment.model_definitions.items()
        }
        next(plan_tasks(experiment, environment.lineup))
    except ConfigError as error:
        if not error.key:
            raise
        raise ConfigError(f"{loaded.locate(error.key)}: {error}") from error
    name = experiment.experiment_metadata.experiment_name
    return Setup(
        experiment=experiment,
        resolved=loaded.resolved,
        environment=environment,
        backends=backends,
        directory=request.out or Path("runs") / name,
        limit=request.limit,
    )


def _policies(environment: Environment, model: str) -> Callable[[str], Policy]:
    """The environment's scripted players by name; of an unknown one it is told where the file names it."""

    def policy_of(name: str) -> Policy:
        try:
            return environment.policy(name)
        except ConfigError as error:
            key = ("model_definitions", model, "scripted_config", "policy")
            raise ConfigError(f"{'.'.join(key)}: {error}", key=key) from error

    return policy_of
