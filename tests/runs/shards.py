"""Directories of shards, made without workers: shards played one by one, and the record beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import mac_runner
from mac_runner.clock import SystemClock
from mac_runner.plan import Shard
from mac_runner.runs.recorded import recorded_plan
from mac_runner.runs.summary import summary_of
from mac_runner.store import ShardsRecord, merge_runs, shard_directories
from mac_runner.store.shards import encode_shards, shard_directory
from tests.cli.lab import experiment, scripted

OF = 3
CONVERSATIONS = 7
RECORD = ShardsRecord(of=OF, experiment_name="small", identity="ab12", conversations=CONVERSATIONS)


def begin(directory: Path) -> Path:
    """A directory of shards in which nothing was claimed yet."""
    directory.mkdir(parents=True)
    (directory / "shards.json").write_bytes(encode_shards(RECORD))
    return directory


def play(directory: Path, number: int, *, limit: int | None = None) -> Path:
    """Play one shard, or so many of its conversations."""
    shard = Shard(number, OF)
    asked = experiment(conversations=CONVERSATIONS, models={"m": scripted()})
    place = shard_directory(directory, shard)
    mac_runner.run(asked, out=place, shard=str(shard), limit=limit, progress=False)
    return place


def merge(directory: Path) -> None:
    """Make a directory of shards the run that they are together, as the last worker does."""
    shards = directory.rename(directory.with_name("unmerged"))
    merge_runs(directory, shard_directories(shards), summarise=summary_of, plan=recorded_plan, clock=SystemClock())
    shutil.copytree(shards, directory, dirs_exist_ok=True)
