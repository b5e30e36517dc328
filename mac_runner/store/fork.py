"""Forks: a run directory whose conversations begin with the replies of another run's.

A fork is a half-done run. Its journal begins with the parent's replies up to the turn of the fork, and `fork.json` has
its tasks, because no plan of an experiment has them. From then on it is a run like any other.

::

    fork.json ──▶ journal/000001.jsonl ──▶ task_manifest.json ──▶ experiment.yaml

`experiment.yaml` is what makes it a run directory, so it comes last. A directory that was cut off before that holds
nothing that was played: the same command writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mac_runner.clock import Clock, iso
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import encode_config
from mac_runner.store.layout import (
    CONFIG,
    FORK,
    MANIFEST,
    VALUE,
    Layout,
    refuse_in_grid,
    refuse_strays,
    session_of,
    visible,
)
from mac_runner.store.leases import locked
from mac_runner.store.manifest import Manifest, write_manifest
from mac_runner.store.records import encode_for_reading, encode_json, entry, objects, row_id, task_from_json, task_json
from mac_runner.store.traces import TraceLog
from mac_runner.store.transcripts import encode_transcript
from mac_runner.types import JsonObject, JsonValue, PolicyVersion, RecordedReply, Task

FORK_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRecord:
    """What `fork.json` holds: where the conversations come from, what was asked for, and the tasks.

    `parents` has a record for each conversation that was forked: `task`, `run`, `transcript_sha256`, `turn`, `kept`.
    """

    asked: JsonObject
    parents: tuple[JsonObject, ...]
    tasks: tuple[Task, ...]

    @property
    def is_off_policy(self) -> bool:
        """Whether a conversation of it has replies that its players would not have given."""
        return any(task.fork is not None and task.fork.is_off_policy for task in self.tasks)

    def plan(self) -> Plan:
        tasks = {task.index: task for task in self.tasks}
        if len(tasks) < len(self.tasks):  # Of a merge: each fork counts its tasks from 0.
            tasks = dict(enumerate(self.tasks))
        return Plan([*tasks], name_of=lambda index: tasks[index].task_id, make=lambda index, _task_id: tasks[index])

    def as_json(self) -> JsonObject:
        parents: list[JsonValue] = [*self.parents]
        tasks: list[JsonValue] = [task_json(task) for task in self.tasks]
        return {"format": FORK_FORMAT, "asked": self.asked, "parents": parents, "tasks": tasks}

    def is_same(self, other: ForkRecord) -> bool:
        """Whether both are the same fork; where the parent's directory is does not matter."""
        return encode_json(_placeless(self.as_json())) == encode_json(_placeless(other.as_json()))


def _placeless(record: JsonObject) -> JsonObject:
    parents: list[JsonValue] = [{**parent, "run": None} for parent in objects(record, "parents")]
    return {**record, "parents": parents}


class Branch(NamedTuple):
    """A task of a fork and the replies that it begins with."""

    task: Task
    replies: Sequence[RecordedReply]


def is_fork(directory: Path) -> bool:
    return Disk().exists(directory / FORK)


def read_fork(disk: Disk, directory: Path) -> ForkRecord | None:
    """What a fork holds; None for a run that is none. Raises RunDirectoryError when it cannot be read."""
    path = directory / FORK
    if not disk.exists(path):
        return None
    try:
        record = json.loads(disk.read(path))
        if not isinstance(record, dict) or record.get("format") != FORK_FORMAT:
            raise ValueError(f"it should be an object with format {FORK_FORMAT}")
        tasks = tuple(task_from_json(task) for task in objects(record, "tasks"))
        return ForkRecord(asked=entry(record, "asked", dict), parents=tuple(objects(record, "parents")), tasks=tasks)
    except (ValueError, RecursionError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the fork wrote") from fault


def write_fork(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    record: ForkRecord,
    branches: Iterable[Branch],
    policies: Mapping[str, Sequence[PolicyVersion]] | None = None,
    clock: Clock,
    disk: Disk | None = None,
) -> bool:
    """Make `directory` the fork; whether it was not there yet. Its journal names the `policies` before all replies.

    Raises IdentityError when it holds another fork, RunDirectoryError when it holds anything else, RunLockedError when
    another process is at work there, and StoreError when it cannot be written.
    """
    disk = disk or Disk()
    if _is_there(disk, directory, record):
        return False
    disk.make_directory(directory)
    with locked(disk, directory, clock):
        if _is_there(disk, directory, record):
            return False
        frames = _frames(branches, policies or {}, iso(clock.utc_now()))
        _write(disk, Layout(directory=directory, experiment_name=experiment_name), resolved, record, frames, clock)
    return True


def write_value(directory: Path, value: JsonObject) -> None:
    """Write what a turn was worth beside the fork that says so."""
    Disk().write_atomic(directory / VALUE, [encode_for_reading(value)])


def _is_there(disk: Disk, directory: Path, record: ForkRecord) -> bool:
    """Whether the directory is this fork already; one that was cut off is not."""
    found = read_fork(disk, directory)
    if disk.exists(directory / CONFIG):
        if found is None:
            raise RunDirectoryError(f"{directory} holds a run that is not a fork; name another directory with --out")
        if not found.is_same(record):
            raise IdentityError(
                f"{directory} holds another fork: {_in_words(found)}; this one is {_in_words(record)}; go on with "
                f"that one by `mac-run fork {directory}`, or name another directory with --out"
            )
        return True
    refuse_in_grid(disk, directory)
    refuse_strays(directory, _strays(disk, directory, is_fork=found is not None), CONFIG, "a fork")
    return False


def _in_words(record: ForkRecord) -> str:
    return f"{len(record.tasks)} conversations, {encode_json(record.asked).decode('ascii'):.300}"


def _strays(disk: Disk, directory: Path, *, is_fork: bool) -> Iterator[str]:
    """What lies in a directory and is not part of a fork that was cut off."""
    known = {FORK, MANIFEST, "journal"} if is_fork else set[str]()
    yield from (name for name in visible(disk, directory) if name not in known)
    segments = visible(disk, directory / "journal")
    yield from (f"journal/{name}" for name in segments if session_of(name) != 1)


def _write(
    disk: Disk, layout: Layout, resolved: JsonObject, record: ForkRecord, frames: Iterable[bytes], clock: Clock
) -> None:
    disk.write_atomic(layout.directory / FORK, [encode_transcript(record.as_json())])
    disk.make_directory(layout.journal)
    disk.write_atomic(layout.segment(1), frames)
    manifest = Manifest(layout.experiment_name, {task.task_id: task.index for task in record.tasks})
    write_manifest(disk, layout, manifest, updated_at=iso(clock.utc_now()))
    disk.write_atomic(layout.config, [encode_config(resolved)])


def _frames(
    branches: Iterable[Branch], policies: Mapping[str, Sequence[PolicyVersion]], started_at: str
) -> Iterator[bytes]:
    yield journal.session_frame(1, started_at=started_at, engines={})
    yield from (journal.policy_frame(model, each) for model, versions in policies.items() for each in versions)
    for task, replies in branches:
        log = TraceLog()
        yield b"".join(journal.reply_frame(task.task_id, n, recorded, log) for n, recorded in enumerate(replies))


def merged_fork(records: Sequence[tuple[Path, ForkRecord | None]]) -> ForkRecord | None:
    """The record of a merge of forks; None where none of the runs is one. Raises RunDirectoryError for a mixture."""
    forks = [record for _, record in records if record is not None]
    if not forks:
        return None
    if plain := [path for path, record in records if record is None]:
        raise RunDirectoryError(
            f"{plain[0]} is not a fork, and others of these are: their conversations cannot be counted together; merge "
            "forks with forks"
        )
    if len(forks) == 1:
        return forks[0]
    asked: list[JsonValue] = [record.asked for record in forks]
    return ForkRecord(
        asked={"merged": asked},
        parents=tuple(parent for record in forks for parent in record.parents),
        tasks=tuple(task for record in forks for task in record.tasks),
    )


def fork_summary(record: ForkRecord, rows: Iterable[JsonObject]) -> JsonObject:
    """What the summary of a fork says of it: the conversations by arm, and whether they are off-policy."""
    arms: dict[str, JsonObject] = {}
    ended: Mapping[str, JsonObject] = {row_id(row): row for row in rows}
    for task in record.tasks:
        if task.fork is not None:
            arm = arms.setdefault(task.fork.arm, {"planned": 0, "ended": 0, "off_policy": False})
            arm["planned"] = entry(arm, "planned", int) + 1
            arm["ended"] = entry(arm, "ended", int) + (task.task_id in ended)
            arm["off_policy"] = bool(arm["off_policy"]) or task.fork.is_off_policy
    return {"of": len(record.parents), "arms": {**arms}, "off_policy": record.is_off_policy}
