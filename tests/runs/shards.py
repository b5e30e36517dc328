"""Directories of shards that are not merged: what workers leave before the last one merges."""

from __future__ import annotations

import shutil
from pathlib import Path

import mac_runner
from mac_runner.plan import Shard
from mac_runner.store import ShardsRecord
from mac_runner.store.testing import SHARD_DIRECTORIES, SHARDS, WORKERS, encode_shards, shard_directory
from mac_runner.types import JsonObject
from tests.cli.lab import experiment, scripted

OF = 3
CONVERSATIONS = 7
RECORD = ShardsRecord(of=OF, experiment_name="small", identity="ab12", conversations=CONVERSATIONS)


def asked() -> JsonObject:
    """The experiment."""
    return experiment(conversations=CONVERSATIONS, models={"m": scripted()})


def begin(directory: Path) -> Path:
    """A directory of shards in which nothing was claimed yet."""
    directory.mkdir(parents=True)
    (directory / SHARDS).write_bytes(encode_shards(RECORD))
    return directory


def play(directory: Path, number: int, *, limit: int | None = None) -> Path:
    """Play one shard, or as much of it as is among the first so many conversations."""
    shard = Shard(number, OF)
    place = shard_directory(directory, shard)
    mac_runner.run(asked(), out=place, shard=str(shard), limit=limit, progress=False)
    return place


def put(source: Path, directory: Path) -> Path:
    """Put a copy of a directory in the place of what is there."""
    shutil.rmtree(directory, ignore_errors=True)
    return Path(shutil.copytree(source, directory))


def unmerge(directory: Path) -> None:
    """Take the merged run out of a directory of shards again."""
    for path in directory.iterdir():
        if path.name not in (SHARDS, SHARD_DIRECTORIES, WORKERS):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file or a directory."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
