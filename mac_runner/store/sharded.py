"""What says what a run is: its experiment, its plan and its paths; of a directory of shards, those of all shards.

A directory of shards is read as the run that its merge will be. `read_head` gives its readers a `ShardedLayout`, which
finds the files of a conversation in its shard, and numbers the sessions of all shards as sessions of one journal. So
they need not know shards. Once the directory is merged, it is a run directory, and its shards are not read any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mac_runner.config import differences
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard, index_of, task_name
from mac_runner.results import section
from mac_runner.store.disk import Disk
from mac_runner.store.identity import read_config
from mac_runner.store.layout import CONFIG, EVENTS, MANIFEST, SESSIONS_PER_SHARD, Layout
from mac_runner.store.manifest import read_manifest
from mac_runner.store.shards import (
    is_shards,
    read_shards,
    shard_directories,
    shard_directory,
    worker_directories,
)
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedLayout(Layout):
    """The paths of a directory of `of` shards, in `begun` of which there is something.

    Each deal has `samples` tasks, and all of them are in one shard.
    """

    of: int
    begun: tuple[int, ...]
    samples: int
    _shards: Mapping[int, Layout] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Layout.__post_init__(self)
        layouts = {
            number: Layout(
                directory=shard_directory(self.directory, Shard(number, self.of)), experiment_name=self.experiment_name
            )
            for number in self.begun
        }
        object.__setattr__(self, "_shards", layouts)

    @property
    def parts(self) -> tuple[Layout, ...]:
        """The run directories of the shards that have begun."""
        return tuple(self._shards.values())

    @property
    def journals(self) -> Mapping[int, Path]:
        """Each journal, by the number that its sessions are counted from."""
        return {number * SESSIONS_PER_SHARD: shard.journal for number, shard in self._shards.items()}

    def part(self, task_id: str) -> Layout:
        """The shard of a task."""
        index = index_of(task_id)
        return self if index is None else self._shards.get(Shard.holding(index // self.samples, self.of).number, self)

    def source(self, session: int) -> str | None:
        """The name of the shard of a session, as a merge notes it."""
        return self._shards[session // SESSIONS_PER_SHARD].directory.name

    def attempt(self, task_id: str, number: int) -> Path:
        """The transcript of the `number`-th attempt at a task, from 1."""
        return Layout.attempt(self.part(task_id), task_id, number)

    def transcript(self, task_id: str) -> Path:
        """The transcript of one task."""
        return Layout.transcript(self.part(task_id), task_id)

    def segment(self, session: int) -> Path:
        """The journal segment of one session."""
        number, own = divmod(session, SESSIONS_PER_SHARD)
        return self._shards[number].segment(own)


class RunHead(NamedTuple):
    """What says what a run is. `planned` are its tasks with their indexes, and `ended` those that the manifest says."""

    layout: Layout
    resolved: JsonObject
    planned: Mapping[str, int]
    ended: frozenset[str]


def event_logs(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """The event logs of a run; of shards those of all shards and all workers."""
    places = worker_directories(directory, disk=disk)
    parts = run_directories(directory, disk=disk)
    return [place / EVENTS for place in (*parts, *(places if parts != (directory,) else ()))]


def head_files(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """The files that say what a run is; some may not be there yet."""
    return [path / name for path in run_directories(directory, disk=disk) for name in (CONFIG, MANIFEST)]


def run_directories(directory: Path, *, disk: Disk | None = None) -> tuple[Path, ...]:
    """The directory itself, or the run directories of its shards that have begun, where those are not merged yet."""
    return shard_directories(directory, disk=disk) if is_shards(directory, disk=disk) else (directory,)


def places_of_work(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """Where those leave notes who work on a run or a grid: in it, and while shards are claimed, also below it."""
    disk = disk or Disk()
    places = [directory]
    if not disk.exists(directory / CONFIG):
        places += worker_directories(directory, disk=disk)
    if is_shards(directory, disk=disk):
        places += shard_directories(directory, disk=disk)
    return places


def has_run(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a run was begun in a directory."""
    disk = disk or Disk()
    return any(disk.exists(path / MANIFEST) for path in run_directories(directory, disk=disk))


def read_head(directory: Path, *, disk: Disk | None = None) -> RunHead:
    """What says what the run in a directory is. Raises RunDirectoryError when there is none."""
    disk = disk or Disk()
    if is_shards(directory, disk=disk):
        return _head_of_shards(directory, disk)
    resolved = read_config(disk, directory)
    if not disk.exists(directory / MANIFEST):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    layout = Layout(directory=directory, experiment_name=_name_in(resolved, directory))
    found = read_manifest(disk, layout)
    ended = frozenset(task_id for task_id in found.planned if found.statuses[task_id] in ("finished", "failed"))
    return RunHead(layout, resolved, found.planned, ended)


def _name_in(resolved: JsonObject, directory: Path) -> str:
    name = section(resolved, "experiment_metadata").get("experiment_name")
    if not isinstance(name, str):
        raise RunDirectoryError(f"{directory / CONFIG} names no experiment; put back the file that the run wrote")
    return name


def _head_of_shards(directory: Path, disk: Disk) -> RunHead:
    record = read_shards(directory, disk=disk)
    parts = shard_directories(directory, disk=disk)
    if record is None or not parts:
        raise RunDirectoryError(f"{directory} holds shards, and none has begun; start a worker by the same command")
    heads = [read_head(path, disk=disk) for path in parts]
    _check_experiment(heads)
    name = record.experiment_name
    layout = ShardedLayout(
        directory=directory,
        experiment_name=name,
        of=record.of,
        begun=tuple(shard.number for shard in record.shards() if shard_directory(directory, shard) in parts),
        samples=record.samples_per_task,
    )
    planned = {task_name(name, index): index for index in range(record.conversations)}
    planned |= {task_id: index for head in heads for task_id, index in head.planned.items()}
    return RunHead(layout, heads[0].resolved, planned, frozenset[str]().union(*(head.ended for head in heads)))


def _check_experiment(heads: list[RunHead]) -> None:
    """Raises RunDirectoryError where two shards are of different experiments."""
    for head in heads[1:]:
        if head.resolved != heads[0].resolved and differences(heads[0].resolved, head.resolved).identity:
            raise RunDirectoryError(
                f"{heads[0].layout.directory} and {head.layout.directory} are of different experiments; move the "
                "shards of one of them to another directory"
            )
