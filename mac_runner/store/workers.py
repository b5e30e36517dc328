"""The workers of a run or a grid, and how far its shards are.

A worker is a process that claims shards. It has a directory of its own in `workers/`, with the lock, the note and the
lease of a run directory, and with its events and the accounts of its engines. What it holds is read off the notes in
the leases.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk
from mac_runner.store.head import worker_directories
from mac_runner.store.layout import CONFIG, WORKERS, Layout, lease_directory
from mac_runner.store.leases import LeasesRecord, read_leases
from mac_runner.store.lock import Owner, RunLock, holder_of, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.run_state import read_state
from mac_runner.store.session import Recorder, open_log_session
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
    """The leases of the shards that it has claimed, relative to the directory."""
    usage: JsonObject = field(default_factory=dict)
    """What it and its engines used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsStanding:
    """How far the shards of a run are, or of all combinations of a grid, and who works on them."""

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
    """A place for this process in the directory of a run or a grid: its note, signs of life, events and accounts."""
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


def read_workers(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> tuple[Worker, ...]:
    """The workers that came to a run or to a grid, by name."""
    disk, machine = disk or Disk(), machine or Machine()
    held: dict[Owner, list[Path]] = {}
    for top, record in _leased(disk, directory):
        for shard in record.shards():
            place = lease_directory(top, shard)
            if (owner := read_owner(disk, place)) is not None:
                held.setdefault(_process(owner), []).append(place.relative_to(directory))
    return tuple(_worker(disk, machine, place, held) for place in worker_directories(directory, disk=disk))


def read_shards_standing(
    directory: Path, *, disk: Disk | None = None, machine: Machine | None = None
) -> ShardsStanding | None:
    """How far the shards of a run or a grid are; None where none are claimed."""
    disk, machine = disk or Disk(), machine or Machine()
    leased = _leased(disk, directory)
    if not leased:
        return None
    stages = Counter[str]()
    for top, record in leased:
        stages["of"] += record.filled
        stages += Counter(filter(None, _stages(disk, machine, top, record)))
    workers = read_workers(directory, disk=disk, machine=machine)
    return ShardsStanding(
        of=stages["of"],
        complete=stages["complete"],
        held=stages["held"],
        half_done=stages["half done"],
        workers=workers,
    )


def _stages(disk: Disk, machine: Machine, top: Path, record: LeasesRecord) -> Iterator[str | None]:
    """Where each shard is; None for one that has not begun."""
    state = read_state(disk, Layout(directory=top, experiment_name=record.experiment_name))
    samples = record.samples_per_task
    planned = Counter(Shard.holding(index // samples, record.of) for index in range(record.conversations))
    indexes = [ending.task_index for ending in state.endings.values() if ending.task_index < record.conversations]
    ended = Counter(Shard.holding(index // samples, record.of) for index in indexes)
    begun = {session.shard for session in state.sessions}
    for shard in record.shards():
        holder = holder_of(disk, lease_directory(top, shard), machine)
        if holder.owner is not None and holder.is_alive is not False:
            yield "held"
        elif ended[shard] == planned[shard]:
            yield "complete"
        else:
            yield "half done" if ended[shard] or shard in begun else None


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


def _leased(disk: Disk, directory: Path) -> list[tuple[Path, LeasesRecord]]:
    """The runs whose shards are claimed: the one given, or those in a grid."""
    tops = [directory] if disk.exists(directory / CONFIG) else [directory / name for name in disk.names(directory)]
    return [(top, record) for top in tops if (record := read_leases(top, disk=disk)) is not None]
