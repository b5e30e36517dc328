"""A directory of shards: workers claim shards of one experiment, and the last one merges them into the directory.

`shards.json` comes first, before any shard, and is never changed. It says of how many shards, and of which experiment
the directory is. After the merge the directory has `experiment.yaml` and is a run directory like any other.

A shard is claimed by the lock on its run directory. A worker has a directory of its own in `workers/`, with the lock,
the note and the lease of a run directory, and with the events and the accounts of its engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk
from mac_runner.store.layout import CONFIG, MANIFEST, SHARD_DIRECTORIES, SHARDS, WORKERS
from mac_runner.store.lock import Owner, is_alive, last_sign_of_life, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.records import encode_json
from mac_runner.structs import convert

SHARDS_FORMAT: Final = 1


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


def is_shards(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a directory holds shards that are not merged yet."""
    disk = disk or Disk()
    return disk.exists(directory / SHARDS) and not disk.exists(directory / CONFIG)


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


def read_workers(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> tuple[Worker, ...]:
    """The workers that came to a directory of shards, or to a grid of such, by name."""
    disk, machine = disk or Disk(), machine or Machine()
    places = [directory / WORKERS / name for name in disk.names(directory / WORKERS)]
    return tuple(_worker(disk, machine, place) for place in places if disk.is_directory(place))


def _worker(disk: Disk, machine: Machine, place: Path) -> Worker:
    owner = read_owner(disk, place)
    return Worker(
        name=place.name,
        owner=owner,
        is_alive=None if owner is None else is_alive(owner, machine),
        last_sign_of_life=last_sign_of_life(disk, place),
    )
