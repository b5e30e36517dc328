"""What says what a run is: its experiment, its plan and its paths; and where those leave notes who work on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import task_name
from mac_runner.results import section
from mac_runner.store.disk import Disk
from mac_runner.store.identity import read_config
from mac_runner.store.layout import EVENTS, WORKERS, Layout
from mac_runner.store.leases import directories_in, has_leases, lease_places, read_leases
from mac_runner.store.manifest import ended_in, read_manifest
from mac_runner.store.run_state import RunState
from mac_runner.types import JsonObject


def has_run(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a run was begun in a directory."""
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    return disk.exists(layout.config) and (layout.grid is not None or disk.exists(layout.manifest))


def read_head(directory: Path, *, disk: Disk | None = None) -> tuple[Layout, JsonObject]:
    """The layout of the run in a directory and its experiment. Raises RunDirectoryError when there is none."""
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    resolved = read_config(disk, layout)
    if not has_run(directory, disk=disk):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    name = section(resolved, "experiment_metadata").get("experiment_name")
    if not isinstance(name, str):
        raise RunDirectoryError(f"{layout.config} names no experiment; put back the file that the run wrote")
    return replace(layout, experiment_name=name), resolved


def layout_of(directory: Path, *, disk: Disk | None = None) -> Layout:
    """The layout of a run or a grid, whose name counts where the directory is shared: that of a combination."""
    disk = disk or Disk()
    layout = Layout.at(disk, directory)
    return layout if layout.grid is None else read_head(directory, disk=disk)[0]


def read_planned(disk: Disk, layout: Layout, state: RunState) -> dict[str, int]:
    """The tasks of a run by its manifest; of a combination, as its sessions planned them, and its shards.

    The sessions are those of `state`, which has read the journal.
    """
    if layout.grid is None:
        return read_manifest(disk, layout).planned
    leases = read_leases(disk, layout)
    indexes = set(range(0 if leases is None else leases.conversations))
    for session in state.sessions:
        for first, last, step in session.planned:
            indexes.update(range(first, last + 1, step))
    return {task_name(layout.experiment_name, index): index for index in sorted(indexes)}


def ended_by_manifest(disk: Disk, layout: Layout) -> frozenset[str]:
    """The tasks of a run that have ended by its manifest. That of a grid is searched whole for each combination."""
    if layout.grid is not None:
        return frozenset(ended_in(disk, layout))
    found = read_manifest(disk, layout).statuses
    return frozenset(task_id for task_id, status in found.items() if status in ("finished", "failed"))


def event_logs(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """The event logs of a run or a grid: its own, and those of the workers that came."""
    disk = disk or Disk()
    root = Layout.at(disk, directory).root
    logs = (place / EVENTS for place in worker_directories(root, disk=disk))
    return [root / EVENTS, *filter(disk.is_file, logs)]


def worker_directories(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """What the workers of a run or a grid left; what systems put beside it is left out."""
    return directories_in(disk or Disk(), directory / WORKERS)


def places_of_work(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """Where those leave notes who work on a run or a grid: in it, and while shards are claimed, also below it."""
    disk = disk or Disk()
    root = Layout.at(disk, directory).root
    if not has_leases(disk, root):
        return [root]
    return [root, *worker_directories(root, disk=disk), *lease_places(disk, root)]
