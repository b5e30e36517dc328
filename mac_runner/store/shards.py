"""A directory of shards: workers claim shards of one experiment, and the last one merges them into the directory.

`shards.json` comes first, before any shard, and is never changed. It says of how many shards, and of which experiment
the directory is. After the merge the directory has `experiment.yaml` and is a run directory like any other.

A shard is claimed by the lock on its run directory. `workers` has what the processes leave that claim shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk
from mac_runner.store.layout import (
    CONFIG,
    LOCK,
    MANIFEST,
    MERGE_MARK,
    SHARD_DIRECTORIES,
    SHARDS,
    WORKERS,
)
from mac_runner.store.records import encode_json, foreign_format
from mac_runner.structs import convert

SHARDS_FORMAT: Final = 2

_OURS: Final = frozenset({SHARDS, SHARD_DIRECTORIES, WORKERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsRecord:
    """The content of `shards.json`. `conversations` are those of all shards together.

    Each deal has `samples_per_task` of them, which are in one shard.
    """

    of: int
    experiment_name: str
    identity: str
    conversations: int
    format: int = SHARDS_FORMAT
    samples_per_task: int = 1

    @property
    def filled(self) -> int:
        """How many shards have conversations: the first ones."""
        return min(self.of, -(-self.conversations // self.samples_per_task))

    def shards(self) -> Iterator[Shard]:
        """All shards, in their order."""
        return (Shard(number, self.of) for number in range(1, self.of + 1))


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
        if found.format != SHARDS_FORMAT:
            raise RunDirectoryError(f"{path}: {foreign_format('format', found.format, SHARDS_FORMAT)}")
        if found.of < 1 or found.samples_per_task < 1:
            raise ValueError("it should have at least one shard and one sample")
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault
    return found


def encode_shards(record: ShardsRecord) -> bytes:
    """The file `shards.json`."""
    values = asdict(record)
    if record.samples_per_task == 1:
        del values["samples_per_task"]
    return encode_json(values) + b"\n"


def shard_directory(directory: Path, shard: Shard) -> Path:
    """The run directory of a shard."""
    return directory / SHARD_DIRECTORIES / f"{shard.number:0{len(str(shard.of))}}-of-{shard.of}"


def shard_directories(directory: Path, *, disk: Disk | None = None) -> tuple[Path, ...]:
    """The run directories of the shards that have begun, in the order of the shards."""
    disk = disk or Disk()
    record = read_shards(directory, disk=disk)
    every = () if record is None else (shard_directory(directory, shard) for shard in record.shards())
    return tuple(path for path in every if disk.exists(path / MANIFEST))


def worker_directories(directory: Path, *, disk: Disk | None = None) -> list[Path]:
    """What the workers of a directory of shards, or of a grid of such, left; what systems put beside it is left out."""
    disk = disk or Disk()
    named = (directory / WORKERS / name for name in disk.names(directory / WORKERS) if not name.startswith("."))
    return [place for place in named if disk.is_directory(place)]


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
