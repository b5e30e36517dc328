"""What a session finds when it begins, and what it puts right before it goes on.

Nothing here depends on how the last session ended; it looks at what stands on the disk and derives the rest:

- temporary files of a killed process are removed;
- what the last session wrote and never synced is synced now, before anything is built on it;
- a transcript that was published while its `done` frame was lost is adopted: the first publication stands;
- one that cannot be read, or has another digest than its row of the index, is set aside in `damaged/`, and its
  conversation is written anew;
- a conversation whose transcript is gone is no longer done;
- an index that is not exactly what the journal says is written anew.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.store import journal
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.frames import lines
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.manifest import Manifest, decode_manifest
from mac_runner.store.publishing import read_published
from mac_runner.store.records import entry
from mac_runner.store.retrying import Attempts, remove_superseded
from mac_runner.store.session import index_line, settle, write_index
from mac_runner.store.transcripts import with_attempts
from mac_runner.types import JsonObject, JsonValue, RecordedReply


@dataclass(slots=True, kw_only=True)
class Repairs:
    """What was put right, for the event log."""

    temporaries_removed: int = 0
    adopted: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    is_index_rewritten: bool = False
    is_manifest_unreadable: bool = False

    def as_json(self) -> JsonObject | None:
        """The fields of the event; None when there was nothing to do."""
        record: JsonObject = {
            "temporaries_removed": self.temporaries_removed,
            "adopted": [*self.adopted],
            "set_aside": [*self.set_aside],
            "missing": [*self.missing],
            "index_rewritten": self.is_index_rewritten,
            "manifest_unreadable": self.is_manifest_unreadable,
        }
        return record if any(record.values()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Where the run stands: what is planned and done, how many tasks of this plan are left, the replies they have.

    `deaths` tells, of the tasks that are left, how often an engine died on each turn; `attempts` are those that failed
    and were tried again.
    """

    manifest: Manifest
    left: int
    replies: dict[str, list[RecordedReply]]
    attempts: Attempts
    deaths: dict[str, Counter[str]]


class _Ended(NamedTuple):
    """A task that is done: its place in the plan, its status, and the digest of its line in the index."""

    place: int
    status: str
    row_digest: int


def prepare(disk: Disk, layout: Layout, repairs: Repairs) -> None:
    """Make the directories, sweep them, and make durable whatever the last session left unsynced."""
    for directory in (layout.journal, layout.transcripts):
        disk.make_directory(directory)
    for directory in (layout.directory, layout.journal, layout.transcripts, layout.attempts):
        repairs.temporaries_removed += disk.sweep(directory)
    for session in journal.sessions(disk, layout)[-1:]:
        disk.sync_file(layout.segment(session))
    disk.sync_directory(layout.journal)
    disk.sync_directory(layout.transcripts)


def recover(disk: Disk, layout: Layout, tasks: Plan, *, log: OpenFile, repairs: Repairs) -> Recovered:
    """Find out where the run stands and put right what is not. Adopted transcripts are noted in `log`."""
    attempts = journal.attempts(disk, layout)
    ended = ended_tasks(disk, layout)
    remove_superseded(disk, layout, attempts, attempts.keys() - ended.keys())
    orphans = _part_with_missing(disk, layout, ended, repairs)
    seeds = {task.task_id: task.seed for task in tasks.those(orphans.__contains__)} if orphans else {}
    adopted = [
        with_attempts(row, attempts.get(entry(row, "task_id", str), ()))
        for row in _adopt(disk, layout, sorted(orphans), seeds, repairs)
    ]
    if adopted:
        disk.append(log, b"".join(map(journal.done_frame, adopted)))
        disk.sync(log)
        ended.update((task_id, ended_of(row)) for task_id, row in zip(repairs.adopted, adopted, strict=True))
    manifest = _manifest(disk, layout, tasks, ended, repairs)
    _repair_index(disk, layout, ended, manifest, repairs)
    del ended
    left = sum(1 for task_id, _ in tasks.ids() if not manifest.is_done(task_id))
    replies = journal.replies(disk, layout, lambda task_id: not manifest.is_done(task_id))
    return Recovered(
        manifest=manifest,
        left=left,
        replies=replies,
        deaths=journal.deaths(disk, layout),
        attempts=attempts,
    )


def ended_tasks(disk: Disk, layout: Layout) -> dict[str, _Ended]:
    """The tasks that the journal says are done."""
    ended: dict[str, _Ended] = {}
    for mark in journal.marks(disk, layout):
        if mark["kind"] == "done":
            ended[entry(mark, "id", str)] = ended_of(entry(mark, "row", dict))
        elif mark["kind"] == "retry":
            ended.pop(entry(mark, "id", str), None)
    return ended


def ended_of(row: JsonObject) -> _Ended:
    """What is kept in memory of a row."""
    return _Ended(entry(row, "index", int), entry(row, "status", str), _digest(index_line(row).rstrip(b"\n")))


def is_index_exact(disk: Disk, layout: Layout, ended: Mapping[str, _Ended]) -> bool:
    """Whether the index has the line of each ended task once, and no other, in whatever order."""
    count, total = 0, 0
    for line in lines(disk.chunks(layout.index)):
        count, total = count + 1, total + (_digest(line.data) if line.is_ended else 0)
    # No two sets of lines have the same sum of digests, but by an accident rarer than any other.
    return (count, total) == (len(ended), sum(end.row_digest for end in ended.values()))


def _part_with_missing(disk: Disk, layout: Layout, ended: dict[str, _Ended], repairs: Repairs) -> set[str]:
    """Take out of `ended` the tasks whose transcripts are gone; the transcripts that no task in it has."""
    missing, orphans = set(ended), set[str]()
    for name in disk.names(layout.transcripts):
        task_id = task_id_of(name)
        if task_id in ended:
            missing.discard(task_id)
        elif task_id is not None:
            orphans.add(task_id)
    repairs.missing += sorted(missing)
    for task_id in repairs.missing:
        del ended[task_id]
    return orphans


def _manifest(disk: Disk, layout: Layout, tasks: Plan, ended: Mapping[str, _Ended], repairs: Repairs) -> Manifest:
    """Everything that is planned now or was before, and how far it is."""
    planned: dict[str, int] = {}
    if disk.exists(layout.manifest):
        try:
            planned = decode_manifest(disk.chunks(layout.manifest), str(layout.manifest)).planned
        except RunDirectoryError:
            repairs.is_manifest_unreadable = True
    planned.update(tasks.ids())
    planned.update((task_id, end.place) for task_id, end in ended.items())
    manifest = Manifest(layout.experiment_name, planned)
    for task_id, end in ended.items():
        settle(manifest, task_id, end.status)
    return manifest


def _adopt(
    disk: Disk, layout: Layout, orphans: Sequence[str], seeds: dict[str, int], repairs: Repairs
) -> Iterator[JsonObject]:
    digests = _digests(disk, layout) if orphans else {}
    for task_id in orphans:
        try:
            published = read_published(disk, layout, task_id)
            seed = entry(entry(published.transcript, "task", dict), "seed", int)
            if seed != seeds.get(task_id, seed):
                raise ValueError(f"its seed is {seed}, not {seeds[task_id]}")
            if digests.get(task_id, published.row["sha256"]) != published.row["sha256"]:
                raise ValueError("its digest is not the one in the index")
            repairs.adopted.append(task_id)
            yield published.row
        except ValueError:
            _set_aside(disk, layout, task_id)
            repairs.set_aside.append(task_id)


def _digests(disk: Disk, layout: Layout) -> dict[str, JsonValue]:
    """The digests of transcripts as far as the index tells of them; a line that cannot be read tells nothing."""
    found: dict[str, JsonValue] = {}
    for line in lines(disk.chunks(layout.index)):
        with suppress(ValueError, RecursionError):
            row = json.loads(line.data)
            if not isinstance(row, dict):
                raise ValueError("a row is an object")
            found[entry(row, "task_id", str)] = entry(row, "sha256", str)
    return found


def _set_aside(disk: Disk, layout: Layout, task_id: str) -> None:
    disk.make_directory(layout.damaged)
    place, n = layout.damaged / f"{task_id}.json", 1
    while disk.exists(place):
        place, n = layout.damaged / f"{task_id}.{n}.json", n + 1
    disk.rename(layout.transcript(task_id), place)


def _repair_index(
    disk: Disk, layout: Layout, ended: Mapping[str, _Ended], manifest: Manifest, repairs: Repairs
) -> None:
    if not is_index_exact(disk, layout, ended):
        write_index(disk, layout, manifest)
        repairs.is_index_rewritten = True


def _digest(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=16).digest())
