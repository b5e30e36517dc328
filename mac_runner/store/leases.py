"""Leases: several workers play one run, each of them the shards that it has claimed.

`leases.json` says into how many shards the run is cut, and of which experiment it is. A worker claims a shard by the
lock on its directory in `leases/`, and plays it as a session of the run: with a journal segment of its own, and with
the one `transcripts/` of all. What is derived from the journal (index, manifest, summary) is left to a process that has
the whole run. So there is nothing to merge: the worker that finds all conversations ended opens the run as any process
does, which writes the rest and ends the leases.

A process that has the whole run and workers keep each other out: each leaves its note first, and then looks for that of
the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.plan import Plan, Shard, task_name
from mac_runner.store.disk import Disk
from mac_runner.store.identity import Invocation, changes, encode_config, is_untouched, read_shard
from mac_runner.store.layout import EVENTS, GRID, LEASE_DIRECTORIES, LEASES, LOCK, WORKERS, Layout, visible
from mac_runner.store.lock import Holder, RunLock, most_alive
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import read_manifest, write_manifest
from mac_runner.store.records import encode_json, foreign_format
from mac_runner.store.run_state import RunState, read_state
from mac_runner.structs import convert

LEASES_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRecord:
    """The content of `leases.json`. `conversations` are those of all shards together.

    Each deal has `samples_per_task` of them, which are in one shard.
    """

    of: int
    experiment_name: str
    identity: str
    conversations: int
    samples_per_task: int = 1
    format: int = LEASES_FORMAT

    @property
    def filled(self) -> int:
        """How many shards have conversations: the first ones."""
        return min(self.of, -(-self.conversations // self.samples_per_task))

    def shards(self) -> Iterator[Shard]:
        return (Shard(number, self.of) for number in range(1, self.filled + 1))


def read_leases(disk: Disk, layout: Layout) -> LeasesRecord | None:
    """The record of a run whose shards workers claim; None for any other. Raises RunDirectoryError."""
    path = layout.leases
    if not disk.exists(path):
        return None
    data = b"".join(disk.chunks(path))
    if not data and not disk.exists(path):  # The run has ended meanwhile.
        return None
    try:
        found = convert(json.loads(data), LeasesRecord)
        if found.format != LEASES_FORMAT:
            raise RunDirectoryError(f"{path}: {foreign_format('format', found.format, LEASES_FORMAT)}")
        if found.of < 1 or found.samples_per_task < 1:
            raise ValueError("it should have at least one shard and one sample")
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(
            f"{path} cannot be read: {fault}; remove it once no worker is left: the next one writes it again"
        ) from fault
    return found


def encode_leases(record: LeasesRecord) -> bytes:
    return encode_json(asdict(record)) + b"\n"


def begin_leases(disk: Disk, record: LeasesRecord, asked: Invocation, *, at: str) -> None:
    """Have a run whose shards can be claimed, begun here or before; several processes may do so at once.

    Raises what `check_leases` raises.
    """
    layout = asked.layout
    check_leases(disk, record, asked)
    for path, data in ((layout.leases, encode_leases(record)), (layout.config, encode_config(asked.resolved))):
        disk.make_directory(path.parent)
        if not disk.exists(path):
            disk.publish_once(path, data)
            disk.sync_directory(path.parent)
    if layout.is_whole:
        _plan(disk, layout, asked.tasks, at)
    check_leases(disk, record, asked)


def _plan(disk: Disk, layout: Layout, tasks: Plan, at: str) -> None:
    """Have all tasks in the manifest. How they ended is written there by who has the whole run."""
    known = read_manifest(disk, layout) if disk.exists(layout.manifest) else None
    planned = {} if known is None else known.planned
    if known is not None and all(task_id in planned for task_id, _ in tasks.ids()):
        return
    manifest = read_state(disk, layout).manifest(layout.experiment_name, {**planned, **dict(tasks.ids())})
    write_manifest(disk, layout, manifest, updated_at=at)


def check_leases(disk: Disk, record: LeasesRecord, asked: Invocation) -> None:
    """Raises IdentityError when the directory is of another experiment, or cut into another number of shards.

    Raises RunDirectoryError when it holds something else. Changes nothing.
    """
    layout, directory = asked.layout, asked.layout.directory
    if (found := read_leases(disk, layout)) is not None:
        _check_same(directory, found, record)
    if is_untouched(disk, layout):
        return
    if changed := changes(disk, layout, asked.resolved).identity:
        raise IdentityError(
            f"{directory} was begun with another experiment ({changed[0].path} is one difference), of which nothing "
            "was played; run it once without --shard, or choose another directory with --out"
        )
    if (shard := read_shard(disk, layout.root)) is not None:
        raise IdentityError(
            f"{directory} holds shard {shard} of the experiment, and workers share a whole one; choose another "
            "directory with --out"
        )


def _check_same(directory: Path, found: LeasesRecord, record: LeasesRecord) -> None:
    if found.of != record.of:
        raise IdentityError(
            f"{directory} is split into {found.of} shards, and {record.of} were asked for; "
            f"use --shard auto/{found.of}, or give this run a directory of its own with --out DIR"
        )
    if (found.experiment_name, found.identity) != (record.experiment_name, record.identity):
        raise IdentityError(
            f"{directory} belongs to another experiment, {found.experiment_name} with the identity {found.identity}, "
            f"and this one is {record.experiment_name} with {record.identity}; set the values back, or give this run a "
            "directory of its own with --out DIR"
        )
    if found.conversations != record.conversations:
        raise IdentityError(
            f"{directory} is for {found.conversations} conversations, and {record.conversations} were asked for; all "
            "workers ask for the same. Once all have ended, the same command plays more"
        )


def make_claimable(disk: Disk, place: Path) -> None:
    """Make the place of a shard's lock, and the lock file, which stay when a claim is withdrawn.

    Otherwise a process that withdraws would remove what another one is about to lock.
    """
    disk.make_directory(place)
    if not disk.exists(place / LOCK):
        disk.close(disk.open_append(place / LOCK))


def end_leases(disk: Disk, layout: Layout) -> None:
    """All has ended: nothing is left to claim. The lock files stay, which a late worker may be about to lock."""
    disk.remove(layout.leases)


def rivals(disk: Disk, layout: Layout) -> list[Path]:
    """Where those leave notes whom a process here keeps out and is kept out by, besides the holders of its own lock.

    A worker stands against who has the whole run or grid, and the one that has it against the workers: also once the
    leases have ended, since a worker may be late.
    """
    return [layout.root] if layout.lease is not None else [*lease_places(disk, layout.root)]


@contextmanager
def locked(disk: Disk, directory: Path, clock: Clock | None = None) -> Iterator[None]:
    """Hold the lock on a directory, and keep workers out of it.

    Raises RunLockedError naming the owner when another process holds it, or a worker one of its shards.
    """
    lock = RunLock(disk, directory, clock=clock, rivals=lambda: lease_places(disk, directory))
    try:
        yield
        lock.sign_off()
    finally:
        lock.release()


def has_leases(disk: Disk, root: Path) -> bool:
    in_grid = (name.endswith(".json") for name in disk.names(root / LEASE_DIRECTORIES))
    return disk.exists(root / LEASES) or any(in_grid)


def lease_places(disk: Disk, root: Path) -> Iterator[Path]:
    """The places of all leases that there are or were in a directory."""
    for place in directories_in(disk, root / LEASE_DIRECTORIES):
        yield from directories_in(disk, place) if disk.exists(root / GRID) else (place,)


def directories_in(disk: Disk, directory: Path) -> list[Path]:
    """The directories in a directory, but for those that systems make."""
    return [place for name in visible(disk, directory) if disk.is_directory(place := directory / name)]


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


def event_logs(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """The event logs of a run or a grid: its own, and those of the workers that came."""
    disk = disk or Disk()
    root = Layout.at(disk, directory).root
    logs = (place / EVENTS for place in worker_directories(disk, root))
    return [root / EVENTS, *filter(disk.is_file, logs)]


def worker_directories(disk: Disk, directory: Path) -> list[Path]:
    """What the workers of a run or a grid left; what systems put beside it is left out."""
    return directories_in(disk, directory / WORKERS)


def places_of_work(disk: Disk, directory: Path) -> list[Path]:
    """Where those leave notes who work on a run or a grid: in it, and while shards are claimed, also below it."""
    root = Layout.at(disk, directory).root
    if not has_leases(disk, root):
        return [root]
    return [root, *worker_directories(disk, root), *lease_places(disk, root)]


def at_work(disk: Disk, directory: Path, machine: Machine) -> Holder:
    """Who works on a run or a grid; of several one that is alive."""
    return most_alive(disk, places_of_work(disk, directory), machine)
