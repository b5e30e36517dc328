"""The workers of a directory of shards, and how far its shards are.

A worker is a process that claims shards. It has a directory of its own in `workers/`, with the lock, the note and the
lease of a run directory, and with the events and the accounts of its engines. What it holds is read off the notes in
the shards.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.store.disk import Disk
from mac_runner.store.layout import EVENTS, MANIFEST, SHARDS, WORKERS, Layout
from mac_runner.store.lock import Owner, RunLock, holder_of, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import decode_manifest
from mac_runner.store.run_state import read_state
from mac_runner.store.session import Recorder, open_log_session
from mac_runner.store.shards import is_merged, read_shards, shard_directory, worker_directories
from mac_runner.types import JsonObject

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.-]+")
_HOST_CHARS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that came. `is_alive` is None where this machine cannot know."""

    name: str
    owner: Owner | None
    """Who it is; None once it has left in good order."""
    is_alive: bool | None
    last_sign_of_life: str | None
    holds: tuple[Path, ...] = ()
    """The shards that it has claimed, relative to the directory."""
    usage: JsonObject = field(default_factory=dict)
    """What it and its engines used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsStanding:
    """How far the shards of a directory are, or of all combinations of a grid, and who works on them."""

    of: int
    complete: int
    held: int
    """Claimed by a worker that is alive, as far as known."""
    half_done: int
    """Begun, and free to be claimed."""
    workers: tuple[Worker, ...]

    @property
    def not_begun(self) -> int:
        """How many are not claimed yet."""
        return self.of - self.complete - self.held - self.half_done


def open_worker(directory: Path, *, clock: Clock, disk: Disk | None = None, machine: Machine | None = None) -> Recorder:
    """A directory for this process in a directory of shards: its note, signs of life, events and accounts."""
    disk, machine = disk or Disk(), machine or Machine()
    disk.make_directory(directory / WORKERS)  # It stays: another worker may be about to make its own place in it.
    place = _new_place(disk, directory / WORKERS, machine)
    lock = RunLock(disk, place, clock=clock, machine=machine, is_guarded=True)
    return Recorder(open_log_session(disk, Layout(directory=place, experiment_name=place.name), clock, lock), lock)


def _new_place(disk: Disk, workers: Path, machine: Machine) -> Path:
    """A name that no other process has: machine and process, and a number where one process comes twice."""
    pid = os.getpid()
    host = _NOT_IN_NAMES.sub("-", machine.host)[:_HOST_CHARS].lstrip(".-") or "host"
    name = f"{host}-{machine.identity}-{pid}-{machine.process_start(pid) or 0}"
    names = chain((name,), (f"{name}-{number}" for number in count(2)))
    return next(place for each in names if not disk.exists(place := workers / each))


def worker_events(directory: Path, *, disk: Disk | None = None) -> tuple[Path, ...]:
    """The event logs of all workers that came."""
    disk = disk or Disk()
    logs = (place / EVENTS for place in worker_directories(directory, disk=disk))
    return tuple(log for log in logs if disk.is_file(log))


def read_workers(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> tuple[Worker, ...]:
    """The workers that came to a directory of shards, or to a grid of such, by name."""
    disk, machine = disk or Disk(), machine or Machine()
    held: dict[Owner, list[Path]] = {}
    for place in chain.from_iterable(_places(disk, top) for top in _tops(disk, directory)):
        if (owner := read_owner(disk, place)) is not None:
            held.setdefault(_process(owner), []).append(place.relative_to(directory))
    return tuple(_worker(disk, machine, place, held) for place in worker_directories(directory, disk=disk))


def read_shards_standing(
    directory: Path, *, disk: Disk | None = None, machine: Machine | None = None
) -> ShardsStanding | None:
    """How far the shards of a directory are; None where there are none, or all are merged."""
    disk, machine = disk or Disk(), machine or Machine()
    tops = _tops(disk, directory)
    if all(is_merged(top, disk=disk) for top in tops):
        return None
    stages = Counter[str]()
    for top in tops:
        places = _places(disk, top)
        stages["of"] += len(places)
        stages += Counter(filter(None, (_stage(disk, machine, place) for place in places)))
    workers = read_workers(directory, disk=disk, machine=machine)
    return ShardsStanding(
        of=stages["of"],
        complete=stages["complete"],
        held=stages["held"],
        half_done=stages["half done"],
        workers=workers,
    )


def _stage(disk: Disk, machine: Machine, place: Path) -> str | None:
    """Where a shard is; None for one that has not begun."""
    holder = holder_of(disk, place, machine)
    if holder.owner is not None and holder.is_alive is not False:
        return "held"
    path = place / MANIFEST
    if not disk.exists(path):
        return None
    statuses = decode_manifest(disk.chunks(path), str(path)).statuses.values()
    return "half done" if "pending" in statuses else "complete"


def _worker(disk: Disk, machine: Machine, place: Path, held: Mapping[Owner, Sequence[Path]]) -> Worker:
    holder = holder_of(disk, place, machine)
    return Worker(
        name=place.name,
        owner=holder.owner,
        is_alive=holder.is_alive,
        last_sign_of_life=holder.last_sign_of_life,
        holds=() if holder.owner is None else tuple(held.get(_process(holder.owner), ())),
        usage=read_state(disk, Layout(directory=place, experiment_name=place.name)).total,
    )


def _process(owner: Owner) -> Owner:
    """The process alone, which signs each directory at another time."""
    return replace(owner, started_at="", command="")


def _tops(disk: Disk, directory: Path) -> list[Path]:
    """The directories of shards: the one given, or those in a grid."""
    if disk.exists(directory / SHARDS):
        return [directory]
    return [path for name in disk.names(directory) if disk.exists((path := directory / name) / SHARDS)]


def _places(disk: Disk, top: Path) -> list[Path]:
    """The directories of all shards that have conversations."""
    record = read_shards(top, disk=disk)
    shards = [] if record is None else [*record.shards()][: record.filled]
    return [shard_directory(top, shard) for shard in shards]
