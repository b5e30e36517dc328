"""From a file and flags to everything a run is made of, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mac_runner.backends import Backend
from mac_runner.backends.factory import build_backend
from mac_runner.cli.locating import LocatedBackend, located
from mac_runner.clock import Clock
from mac_runner.config import Experiment, Grid, Loaded, ModelDefinition, load, load_experiment
from mac_runner.config.model_definition import section_key
from mac_runner.environments.base import Environment, Policy
from mac_runner.environments.building import build_environment
from mac_runner.errors import ConfigError
from mac_runner.plan import Plan, Shard, plan_of
from mac_runner.registry import backend_specs
from mac_runner.scheduler import Restoration
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What the command line asks for. `limit` bounds the tasks of this invocation, `concurrency` all in flight.

    `shard` asks for a part of the experiment only.
    """

    file: Path
    profile: str | None = None
    overrides: tuple[str, ...] = ()
    limit: int | None = None
    seed: str | None = None
    concurrency: int | None = None
    out: Path | None = None
    shard: Shard | None = None
    is_quiet: bool = False
    is_live: bool | None = None
    is_pulling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An experiment ready to run, but for its engines: all of it, or the tasks called `only`.

    `material` gives what the tasks are about, where it does not come from the experiment.
    """

    loaded: Loaded
    environment: Environment
    directory: Path
    limit: int | None
    shard: Shard | None = None
    only: frozenset[str] | None = None
    material: Callable[[str], JsonObject | None] | None = None

    @property
    def experiment(self) -> Experiment:
        """The experiment, resolved and checked."""
        return self.loaded.experiment

    @property
    def resolved(self) -> JsonObject:
        """The experiment as a run directory keeps it."""
        return self.loaded.resolved

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.experiment_metadata.experiment_name

    @property
    def tasks(self) -> Plan:
        """The plan of this invocation: of the first `limit` tasks, those of the shard."""
        tasks = self._plan()[: self.limit].part(self.shard)
        return tasks if self.only is None else tasks.among(self.only)

    def _plan(self) -> Plan:
        if (material := self.material) is None:
            return plan_of(self.experiment, self.environment.lineup)
        plan = plan_of(self.experiment.model_copy(update={"discussion": None}), self.environment.lineup)
        return plan.made_by(lambda task: replace(task, material=material(task.task_id)))

    @property
    def restoration(self) -> Restoration:
        """What makes its transcripts again from recorded replies."""
        return Restoration(
            self.environment,
            environment_name=self.experiment.conversation_config.environment,
            experiment_name=self.name,
            models=list(self.experiment.model_definitions),
        )

    def backends(self, clock: Clock, say: Callable[[str], None], *, is_pulling: bool = False) -> dict[str, Backend]:
        """The engines, checked but not started; `is_pulling` lets them fetch models. Raises ConfigError.

        They are built late because building one may load its whole package: a run with nothing left to do needs none.
        """
        return {
            name: self.backend(name, definition, clock, say, is_pulling=is_pulling)
            for name, definition in self.experiment.model_definitions.items()
        }

    def backend(
        self,
        name: str,
        definition: ModelDefinition,
        clock: Clock,
        say: Callable[[str], None],
        *,
        is_pulling: bool = False,
    ) -> Backend:
        """The engine of model `name`, defined by the experiment or a variant of what it says. Raises ConfigError."""
        with located(self.loaded, ("model_definitions", name)):
            backend = build_backend(
                name,
                definition,
                agents=self.experiment.agent_definitions,
                policy_of=lambda policy: self.policy(name, policy),
                clock=clock,
                say=say,
                can_pull=is_pulling,
            )
        return LocatedBackend(backend, self.loaded, name)

    def policy(self, model: str, name: str) -> Policy:
        """The environment's scripted player called `name`; of an unknown one it is told where the file names it."""
        key = section_key(self.experiment.model_definitions[model].backend)
        with located(self.loaded, ("model_definitions", model, key, "policy")):
            return self.environment.policy(name)


def read_file(invocation: Invocation) -> Loaded | Grid:
    """What the file asks for with the flags: one experiment, or a grid of them. Raises ConfigError, also for a flag
    that would do nothing.
    """
    asked = load(invocation.file, profile=invocation.profile, overrides=invocation.overrides, seed=invocation.seed)
    if invocation.is_pulling:
        parts = [part.loaded for part in asked.combinations] if isinstance(asked, Grid) else [asked]
        _check_pulling(invocation.file, [part.experiment for part in parts])
    return asked


def _check_pulling(file: Path, experiments: Sequence[Experiment]) -> None:
    """Refuse `--pull` where no model of any of the experiments pulls. Raises ConfigError."""
    found = {definition.backend for experiment in experiments for definition in experiment.model_definitions.values()}
    pulling = {name for name, spec in backend_specs().items() if spec.can_pull}
    if pulling.isdisjoint(found):
        raise ConfigError(
            f"--pull: found only the backends {', '.join(sorted(found))} in {file} with the profile "
            f"{experiments[0].profile!r}, and only {', '.join(sorted(pulling))} pulls models; leave the flag out, or "
            "choose another --profile"
        )


def set_up(invocation: Invocation, loaded: Loaded | None = None) -> Setup:
    """Check everything about the one experiment of a file, which is read unless it is `loaded` already.

    Raises ConfigError, with the place in the file where there is one.
    """
    loaded = loaded or load_experiment(
        invocation.file, profile=invocation.profile, overrides=invocation.overrides, seed=invocation.seed
    )
    with located(loaded):
        environment = build_environment(loaded.experiment)
        next(plan_of(loaded.experiment, environment.lineup)())
    name = loaded.experiment.experiment_metadata.experiment_name
    return Setup(
        loaded=loaded,
        environment=environment,
        directory=directory_of(invocation, name),
        limit=invocation.limit,
        shard=invocation.shard,
    )


def directory_of(invocation: Invocation, name: str) -> Path:
    """The directory of the experiment or the grid called `name`: where the flags say, or one by its name and shard."""
    shard = invocation.shard
    named = name if shard is None else f"{name}.shard-{shard.number}-of-{shard.of}"
    return invocation.out or Path("runs") / named
