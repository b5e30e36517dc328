"""The experiment of a run directory, as it was resolved when it ran: what needs no file any more."""

from __future__ import annotations

from pydantic import ValidationError

from mac_runner.config import Experiment, Loaded
from mac_runner.environments.registry import build_environment
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.store import RunContents
from mac_runner.store.layout import config_path


def recorded_experiment(contents: RunContents) -> Loaded:
    """The experiment that a run was made of. Raises RunDirectoryError when this version cannot play it."""
    path = config_path(contents.layout.directory)
    try:
        experiment = Experiment.model_validate(contents.resolved)
        build_environment(experiment)
    except (ValidationError, ConfigError) as fault:
        raise RunDirectoryError(
            f"{path} holds no experiment that this version can play: {fault}; put back the file that the run wrote"
        ) from fault
    return Loaded(experiment=experiment, resolved=contents.resolved, locate=lambda _key: str(path))
