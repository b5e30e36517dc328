"""The experiment of a run directory, as it was resolved when it ran: what needs no file any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mac_runner.cli.setup import Setup
from mac_runner.config import Loaded, recorded
from mac_runner.environments.building import build_environment
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.registry import environment_specs
from mac_runner.store import RunContents
from mac_runner.store.layout import CONFIG
from mac_runner.types import JsonObject


def recorded_experiment(contents: RunContents) -> Loaded:
    """The experiment that a run was made of. Raises RunDirectoryError when this version cannot play it."""
    path = contents.layout.directory / CONFIG
    conversation = contents.resolved.get("conversation_config")
    name = conversation.get("environment") if isinstance(conversation, dict) else None
    if isinstance(name, str) and name not in environment_specs():
        raise RunDirectoryError(
            f"{path}: the run is of the environment {name!r}, which is not installed here (there are: "
            f"{', '.join(sorted(environment_specs()))}); install the package that has it"
        )
    try:
        experiment = recorded(contents.resolved, str(path))
        build_environment(experiment)
    except ConfigError as fault:
        raise RunDirectoryError(
            f"{path} holds no experiment that this version can play; put back the file that the run wrote:\n{fault}"
        ) from None
    if (name := experiment.experiment_metadata.experiment_name) != contents.experiment_name:
        raise RunDirectoryError(
            f"{path} names the experiment {name!r}, and {contents.layout.manifest.name} beside it "
            f"{contents.experiment_name!r}; put back the files that the run wrote"
        )
    return Loaded(experiment=experiment, resolved=contents.resolved, locate=lambda _key: str(path))


def recorded_setup(
    contents: RunContents,
    *,
    material: Callable[[str], JsonObject | None] | None = None,
    only: frozenset[str] | None = None,
) -> Setup:
    """The run as it is recorded: all that was ever planned in it, or the tasks called `only`.

    The questions of a discussion whose files are not at hand are those that `material` gives for a task; unless told
    otherwise, those that its transcripts hold, damaged ones too.
    """
    loaded = recorded_experiment(contents)
    # What was planned once stays planned, however few are asked for by now.
    planned = max(contents.planned().values(), default=0) + 1
    conversations = loaded.experiment.conversation_config.model_copy(update={"conversations": planned})
    experiment = loaded.experiment.model_copy(update={"conversation_config": conversations})
    return Setup(
        loaded=replace(loaded, experiment=experiment),
        environment=build_environment(experiment),
        directory=contents.layout.directory,
        limit=None,
        shard=contents.shard,
        only=only,
        material=(material or contents.recorded_material) if has_question_files(loaded) else None,
    )


def has_question_files(loaded: Loaded) -> bool:
    """Whether the tasks of an experiment need files that its run directory does not hold."""
    spec = environment_specs()[loaded.experiment.conversation_config.environment]
    return loaded.experiment.settings is not None and spec.needs_files(loaded.experiment.settings)


def recorded_plan(contents: RunContents) -> Plan:
    """What was ever planned in a run. Raises RunDirectoryError when this version cannot play it."""
    return recorded_setup(contents).tasks
