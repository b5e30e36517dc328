"""The code that run directories name, imported on request (`--trust`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mac_runner.config import PluginCode
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.registry import load_recorded_environment
from mac_runner.runs.recorded import recorded_only
from mac_runner.store import has_run, is_grid, read_grid, read_run


def trust(directories: Iterable[Path]) -> None:
    """Import the code of the environments of runs and grids.

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
    name = experiment.conversation_config.environment
    if (code := experiment.plugins.get(name)) is None or experiment.known_spec is not None:
        return
    try:
        found = load_recorded_environment(name, Path(code.path))
    except ConfigError as fault:
        raise RunDirectoryError(f"{directory}: the code that the run was played with is not here: {fault}") from fault
    now = found.code
    differing = _difference(code, PluginCode(distribution=now.distribution, version=now.version, sha256=now.sha256))
    if differing:
        raise RunDirectoryError(
            f"{directory}: the code {name} at {now.path} is not what the run was played with: {differing}; put that "
            "code back, or leave --trust out"
        )


def _difference(recorded_code: PluginCode, found: PluginCode) -> str:
    return ", ".join(
        f"{key} {getattr(recorded_code, key)} there, {getattr(found, key)} now"
        for key in ("distribution", "version", "sha256")
        if getattr(recorded_code, key) != getattr(found, key)
    )
