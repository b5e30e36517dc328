"""What says what a run is: its experiment, its plan and its paths; and where those leave notes who work on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import RunDirectoryError
from mac_runner.results import section
from mac_runner.store.disk import Disk
from mac_runner.store.identity import read_config
from mac_runner.store.layout import CONFIG, EVENTS, LEASE_DIRECTORIES, LEASES, MANIFEST, WORKERS, Layout
from mac_runner.store.manifest import read_manifest
from mac_runner.types import JsonObject


class RunHead(NamedTuple):
    """What says what a run is. `planned` are its tasks with their indexes, and `ended` those that the manifest says."""

    layout: Layout
    resolved: JsonObject
    planned: Mapping[str, int]
    ended: frozenset[str]


def has_run(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a run was begun in a directory."""
    return (disk or Disk()).exists(directory / MANIFEST)


def read_head(directory: Path, *, disk: Disk | None = None) -> RunHead:
    """What says what the run in a directory is. Raises RunDirectoryError when there is none."""
    disk = disk or Disk()
    resolved = read_config(disk, directory)
    if not disk.exists(directory / MANIFEST):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    name = section(resolved, "experiment_metadata").get("experiment_name")
    if not isinstance(name, str):
        raise RunDirectoryError(f"{directory / CONFIG} names no experiment; put back the file that the run wrote")
    layout = Layout(directory=directory, experiment_name=name)
    found = read_manifest(disk, layout)
    ended = frozenset(task_id for task_id in found.planned if found.statuses[task_id] in ("finished", "failed"))
    return RunHead(layout, resolved, found.planned, ended)


def event_logs(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """The event logs of a run or a grid: its own, and those of the workers that came."""
    disk = disk or Disk()
    logs = (place / EVENTS for place in worker_directories(directory, disk=disk))
    return [directory / EVENTS, *filter(disk.is_file, logs)]


def worker_directories(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """What the workers of a run or a grid left; what systems put beside it is left out."""
    return directories_in(disk or Disk(), directory / WORKERS)


def places_of_work(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """Where those leave notes who work on a run or a grid: in it, and while shards are claimed, also below it."""
    disk = disk or Disk()
    if disk.exists(directory / CONFIG) and not disk.exists(directory / LEASES):
        return [directory]
    return [directory, *worker_directories(directory, disk=disk), *directories_in(disk, directory / LEASE_DIRECTORIES)]


def directories_in(disk: Disk, directory: Path) -> list[Path]:
    """The directories in a directory, but for those that systems make."""
    named = (directory / name for name in disk.names(directory) if not name.startswith("."))
    return [place for place in named if disk.is_directory(place)]
