"""The workers of a run or a grid, and how far its shards are.

A worker is a process that claims shards. It has a directory of its own in `workers/`, with the lock, the note and the
lease of a run directory, and with its events and the accounts of its engines. What it holds is read off the notes in
the leases.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk
from mac_runner.store.head import worker_directories
from mac_runner.store.layout import LEASE_DIRECTORIES, WORKERS, Layout
from mac_runner.store.leases import lease_places, read_leases
from mac_runner.store.lock import Holder, Owner, RunLock, holder_of, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.run_state import RunState
from mac_runner.store.session import Recorder, open_log_session
from mac_runner.store.tail import read_state
from mac_runner.types import JsonObject

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.-]+")
_HOST_CHARS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that came. Its holder has no owner once it has left in good order."""

    name: str
    holder: Holder
    holds: tuple[Path, ...] = ()
    """The shards that it has claimed: in a grid, each in its combination."""
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

    @staticmethod
    def of_grid(parts: Sequence[ShardsStanding], workers: tuple[Worker, ...]) -> ShardsStanding | None:
        """Those of the combinations whose shards are claimed; None where there are none."""
        if not parts:
            return None
        return ShardsStanding(
            of=sum(part.of for part in parts),
            complete=sum(part.complete for part in parts),
            held=sum(part.held for part in parts),
            half_done=sum(part.half_done for part in parts),
            workers=workers,
        )


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
    for place in lease_places(disk, directory):
        if (owner := read_owner(disk, place)) is not None:
            held.setdefault(_process(owner), []).append(place.relative_to(directory / LEASE_DIRECTORIES))
    found = []
    for place in worker_directories(directory, disk=disk):
        holder = holder_of(disk, place, machine)
        holds = () if holder.owner is None else tuple(held.get(_process(holder.owner), ()))
        usage = read_state(disk, Layout(directory=place, experiment_name=place.name)).total
        found.append(Worker(name=place.name, holder=holder, holds=holds, usage=usage))
    return tuple(found)


def shards_standing(disk: Disk, machine: Machine, layout: Layout, state: RunState) -> ShardsStanding | None:
    """How far the shards of a run are, by its journal and the notes of those who hold them; None where none are."""
    record = read_leases(disk, layout)
    if record is None:
        return None
    samples, total = record.samples_per_task, record.conversations
    planned = Counter(Shard.holding(index // samples, record.of) for index in range(total))
    indexes = [ending.task_index for ending in state.endings.values() if ending.task_index < total]
    ended = Counter(Shard.holding(index // samples, record.of) for index in indexes)
    begun = {session.shard for session in state.sessions}

    def stage(shard: Shard) -> str:
        if holder_of(disk, layout.lease_directory(shard), machine).may_work:
            return "held"
        if ended[shard] == planned[shard]:
            return "complete"
        return "half done" if ended[shard] or shard in begun else "not begun"

    stages = Counter(map(stage, record.shards()))
    return ShardsStanding(
        of=record.filled,
        complete=stages["complete"],
        held=stages["held"],
        half_done=stages["half done"],
        workers=() if layout.grid else read_workers(layout.root, disk=disk, machine=machine),
    )


def _process(owner: Owner) -> Owner:
    """The process alone, which signs each directory at another time."""
    return replace(owner, started_at="", command="")
