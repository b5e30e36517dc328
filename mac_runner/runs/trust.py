"""The code that run directories name, imported on request (`--trust`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mac_runner.config import Experiment, MetricCode, PluginCode
from mac_runner.config.experiment import SETTINGS
from mac_runner.config.validation import own_settings
from mac_runner.errors import ConfigError, RunDirectoryError, UntrustedCodeError
from mac_runner.plugins import Code, PluginKind, loaded_plugin, recorded_plugin
from mac_runner.problems import dotted
from mac_runner.registry import checked_function, load_recorded_backend, load_recorded_environment
from mac_runner.runs.recorded import recorded_only
from mac_runner.section import Opener
from mac_runner.store import has_run, is_grid, read_grid, read_run


def trust(directories: Iterable[Path]) -> None:
    """Import the code that runs and grids name.

    Raises RunDirectoryError where it is not here any more, or is not the code that the run was played with.
    """
    for directory in directories:
        grid = read_grid(directory) if is_grid(directory) else None
        if grid is None:
            _trust(directory)
            continue
        for entry in grid.entries:
            if has_run(directory / entry.slug):
                _trust(directory / entry.slug)


def refuse_unloaded(experiment: Experiment, directory: Path) -> None:
    """Raises UntrustedCodeError where code is not imported that the experiment needs to be played."""
    if names := [named.name for named in _named(experiment)]:
        raise UntrustedCodeError(
            f"{directory}: the run is played by the code {', '.join(names)}, which is imported only if you say so: add "
            "--trust if you trust that code"
        )


def _trust(directory: Path) -> None:
    experiment = recorded_only(read_run(directory))
    for named in _named(experiment):
        try:
            now = named.load()
        except ConfigError as fault:
            raise RunDirectoryError(
                f"{directory}: the code that the run was played with is not here: {fault}"
            ) from fault
        code = PluginCode(distribution=now.distribution, version=now.version, sha256=now.sha256)
        if differing := _difference(named.code, code):
            raise RunDirectoryError(
                f"{directory}: the code {named.name} at {now.path} is not what the run was played with: {differing}; "
                "put that code back, or leave --trust out"
            )
    for path, text in own_settings(experiment, Opener(Path(), {})):
        if path[0] == SETTINGS:  # What is played again needs the files of its environment, and none of its engines.
            raise RunDirectoryError(
                f"{directory}: the file that the run was played with is not here: {dotted(path)}: {text}, or leave "
                "--trust out"
            )


class _Named(NamedTuple):
    """Code that a run names: as it was recorded, and how it is imported."""

    name: str
    code: PluginCode | MetricCode
    load: Callable[[], Code]


def _named(experiment: Experiment) -> Iterator[_Named]:
    """What is not imported yet, each code once."""
    environment = experiment.conversation_config.environment
    backends = {one.backend: one.known_spec for one in experiment.model_definitions.values()}
    shaped = {} if experiment.rewards is None else experiment.rewards.shaped
    for name, code in experiment.plugins.items():
        load: Callable[[str, Path], Code] = partial(_function, "policies")
        is_loaded = loaded_plugin("policies", name, code.sha256) is not None
        if name == environment:
            load, is_loaded = _environment, experiment.known_spec is not None
        elif name in backends:
            load, is_loaded = _backend, backends[name] is not None
        elif name in shaped.values():
            load, is_loaded = partial(_function, "rewards"), loaded_plugin("rewards", name, code.sha256) is not None
        if not is_loaded:
            yield _Named(name, code, partial(load, name, Path(code.path)))
    for name, metric in experiment.metric_plugins.items():
        if loaded_plugin("metrics", name, metric.sha256) is None:
            yield _Named(name, metric, partial(_function, "metrics", name, Path(metric.path)))


def _environment(name: str, path: Path) -> Code:
    return load_recorded_environment(name, path).code


def _backend(name: str, path: Path) -> Code:
    return load_recorded_backend(name, path).code


def _function(kind: PluginKind, name: str, path: Path) -> Code:
    return checked_function(kind, recorded_plugin(kind, name, path)).code


def _difference(recorded_code: PluginCode | MetricCode, found: PluginCode) -> str:
    return ", ".join(
        f"{key} {getattr(recorded_code, key)} there, {getattr(found, key)} now"
        for key in ("distribution", "version", "sha256")
        if getattr(recorded_code, key) != getattr(found, key)
    )
