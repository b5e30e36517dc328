"""The code that run directories name, imported on request (`--trust`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mac_runner.config import Experiment, PluginCode
from mac_runner.config.experiment import MetricCode
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.plugins import Code, PluginKind, loaded_plugin, recorded_plugin
from mac_runner.registry import checked_function, load_recorded_backend, load_recorded_environment
from mac_runner.runs.recorded import recorded_only
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


class _Named(NamedTuple):
    """Code that a run names: as it was recorded, and how it is imported."""

    name: str
    code: PluginCode | MetricCode
    load: Callable[[], Code]


def _named(experiment: Experiment) -> Iterator[_Named]:
    """What is not imported yet, each code once."""
    environment = experiment.conversation_config.environment
    backends = {one.backend for one in experiment.model_definitions.values() if one.known_spec is None}
    for name, code in experiment.plugins.items():
        path = Path(code.path)
        if name == environment:
            if experiment.known_spec is None:
                yield _Named(name, code, lambda name=name, path=path: load_recorded_environment(name, path).code)
        elif name in backends:
            yield _Named(name, code, lambda name=name, path=path: load_recorded_backend(name, path).code)
        elif loaded_plugin("policies", name, code.sha256) is None and not _is_backend(experiment, name):
            yield _Named(name, code, partial(_function, "policies", name, path))
    for name, metric in experiment.metric_plugins.items():
        if loaded_plugin("metrics", name, metric.sha256) is None:
            yield _Named(name, metric, partial(_function, "metrics", name, Path(metric.path)))


def _is_backend(experiment: Experiment, name: str) -> bool:
    return any(one.backend == name for one in experiment.model_definitions.values())


def _function(kind: PluginKind, name: str, path: Path) -> Code:
    return checked_function(kind, recorded_plugin(kind, name, path)).code


def _difference(recorded_code: PluginCode | MetricCode, found: PluginCode) -> str:
    return ", ".join(
        f"{key} {getattr(recorded_code, key)} there, {getattr(found, key)} now"
        for key in ("distribution", "version", "sha256")
        if getattr(recorded_code, key) != getattr(found, key)
    )
