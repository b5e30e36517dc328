"""A directory of shards: workers claim shards of one experiment, and the last one merges them into the directory.

`shards.json` comes first, before any shard, and is never changed. It says of how many shards, and of which experiment
the directory is. After the merge the directory has `experiment.yaml` and is a run directory like any other.

A shard is claimed by the lock on its run directory. A worker has a directory of its own in `workers/`, with the lock,
the note and the lease of a run directory, and with the events and the accounts of its engines.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk, TrialDisk
from mac_runner.store.layout import (
    CONFIG,
    EVENTS,
    LOCK,
    MANIFEST,
    MERGE_MARK,
    SHARD_DIRECTORIES,
    SHARDS,
    WORKERS,
    Layout,
)
from mac_runner.store.lock import Owner, RunLock, is_alive, last_sign_of_life, lock_on_trial, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.records import encode_json
from mac_runner.store.run_state import read_state
from mac_runner.store.session import Recorder, open_log_session
from mac_runner.structs import convert
from mac_runner.types import JsonObject

SHARDS_FORMAT: Final = 1

_OURS: Final = frozenset({SHARDS, SHARD_DIRECTORIES, WORKERS})
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.-]+")
_HOST_CHARS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsRecord:
    """The content of `shards.json`. `conversations` are those of all shards together."""

    of: int
    experiment_name: str
    identity: str
    conversations: int
    format: int = SHARDS_FORMAT

    def shards(self) -> Iterator[Shard]:
        """All shards, in their order."""
        return (Shard(number, self.of) for number in range(1, self.of + 1))


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


def is_shards(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a directory holds shards that are not merged yet."""
    disk = disk or Disk()
    return disk.exists(directory / SHARDS) and not disk.exists(directory / CONFIG)


def is_merged(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether the shards of a directory are merged, to the end."""
    disk = disk or Disk()
    return all(disk.exists(directory / name) for name in (SHARDS, CONFIG)) and not disk.exists(directory / MERGE_MARK)


def read_shards(directory: Path, *, disk: Disk | None = None) -> ShardsRecord | None:
    """The record of a directory of shards, merged or not; None for any other. Raises RunDirectoryError."""
    disk, path = disk or Disk(), directory / SHARDS
    if not disk.exists(path):
        return None
    try:
        found = convert(json.loads(disk.read(path)), ShardsRecord)
        if found.format != SHARDS_FORMAT or found.of < 1:
            raise ValueError(f"it should have format {SHARDS_FORMAT} and at least one shard")
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault
    return found


def encode_shards(record: ShardsRecord) -> bytes:
    """The file `shards.json`."""
    return encode_json(asdict(record)) + b"\n"


def shard_directory(directory: Path, shard: Shard) -> Path:
    """The run directory of a shard."""
    return directory / SHARD_DIRECTORIES / f"{shard.number:0{len(str(shard.of))}}-of-{shard.of}"


def shard_directories(directory: Path, *, disk: Disk | None = None) -> tuple[Path, ...]:
    """The run directories of the shards that have begun, in the order of the shards."""
    disk = disk or Disk()
    record = read_shards(directory, disk=disk)
    every = () if record is None else (shard_directory(directory, shard) for shard in record.shards())
    return tuple(path for path in every if disk.exists(path / MANIFEST))


def begin_shards(directory: Path, record: ShardsRecord, *, disk: Disk | None = None) -> None:
    """Make a directory of shards, or join the one there; several processes may do so at once.

    Raises IdentityError when it is of another experiment or another number of shards, RunDirectoryError when it holds
    something else.
    """
    disk = disk or Disk()
    check_shards(directory, record, disk=disk)
    disk.make_directory(directory)
    disk.publish_once(directory / SHARDS, encode_shards(record))
    disk.sync_directory(directory)
    check_shards(directory, record, disk=disk)


def check_shards(directory: Path, record: ShardsRecord, *, disk: Disk | None = None) -> None:
    """Raises what `begin_shards` raises, and changes nothing."""
    disk = disk or Disk()
    found = read_shards(directory, disk=disk)
    if found is not None:
        _check_same(directory, found, record)
    elif disk.exists(directory / CONFIG):
        raise RunDirectoryError(
            f"{directory} is the run directory of one process, and no place for shards; go on with it without --shard, "
            "or choose another directory with --out"
        )
    elif strays := [name for name in disk.names(directory) if not name.startswith(".") and name not in _OURS]:
        raise RunDirectoryError(
            f"{directory} holds {strays[0]!r} and no {SHARDS}, so it is not a directory of shards; choose an empty or "
            "a new one with --out"
        )


def _check_same(directory: Path, found: ShardsRecord, record: ShardsRecord) -> None:
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
            "workers ask for the same. Once it is merged, `mac-run FILE --out DIR` plays more"
        )


def make_claimable(directory: Path, *, disk: Disk | None = None) -> None:
    """Make the directory of a shard and its lock file, which stay when a claim is withdrawn.

    Otherwise a process that withdraws would remove what another one is about to lock.
    """
    disk = disk or Disk()
    disk.make_directory(directory)
    if not disk.exists(directory / LOCK):
        disk.close(disk.open_append(directory / LOCK))


def open_worker(directory: Path, *, clock: Clock, disk: Disk | None = None, machine: Machine | None = None) -> Recorder:
    """A directory for this process in a directory of shards: its note, signs of life, events and accounts."""
    disk, machine = disk or Disk(), machine or Machine()
    disk.make_directory(directory / WORKERS)  # It stays: another worker may be about to make its own place in it.
    trial = TrialDisk(disk)
    place = _new_place(trial, directory / WORKERS, machine)
    lock = lock_on_trial(trial, place, lambda: RunLock(trial, place, clock=clock, machine=machine, is_guarded=True))
    try:
        layout = Layout(directory=place, experiment_name=place.name)
        return Recorder(open_log_session(trial, layout, clock, lock), lock)
    except BaseException:
        lock.back_out(trial)
        raise


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
    logs = (directory / WORKERS / name / EVENTS for name in disk.names(directory / WORKERS))
    return tuple(log for log in logs if disk.is_file(log))


def read_workers(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> tuple[Worker, ...]:
    """The workers that came to a directory of shards, or to a grid of such, by name."""
    disk, machine = disk or Disk(), machine or Machine()
    held: dict[Owner, list[Path]] = {}
    for place in _shard_places(disk, directory):
        if (owner := read_owner(disk, place)) is not None:
            held.setdefault(_process(owner), []).append(place.relative_to(directory))
    places = [directory / WORKERS / name for name in disk.names(directory / WORKERS)]
    return tuple(_worker(disk, machine, place, held) for place in places if disk.is_directory(place))


def _worker(disk: Disk, machine: Machine, place: Path, held: Mapping[Owner, Sequence[Path]]) -> Worker:
    owner = read_owner(disk, place)
    return Worker(
        name=place.name,
        owner=owner,
        is_alive=None if owner is None else is_alive(owner, machine),
        last_sign_of_life=last_sign_of_life(disk, place),
        holds=() if owner is None else tuple(held.get(_process(owner), ())),
        usage=read_state(disk, Layout(directory=place, experiment_name=place.name)).usage,
    )


def _process(owner: Owner) -> Owner:
    """The process alone, which signs each directory at another time."""
    return replace(owner, started_at="", command="")


def _shard_places(disk: Disk, directory: Path) -> Iterator[Path]:
    """The directories of all shards, of a directory of shards or of a grid of such."""
    tops = [directory, *(directory / name for name in disk.names(directory) if name not in _OURS)]
    for top in filter(disk.is_directory, tops):
        yield from (top / SHARD_DIRECTORIES / name for name in disk.names(top / SHARD_DIRECTORIES))
