"""What a session finds when it begins, and what it puts right before it goes on.

Nothing here depends on how the last session ended; it looks at what stands on the disk and derives the rest:

- temporary files of a killed process are removed;
- what the last session wrote and never synced is synced now, before anything is built on it;
- a transcript that was published while its `done` frame was lost is adopted: the first publication stands;
- one that cannot be read, or is not what its row acknowledges, is set aside in `damaged/`;
- a conversation whose transcript is gone or was set aside is restored: its recorded replies make the very bytes that
  its row acknowledges; where they do not, it is no longer done;
- an index that is not exactly what the journal says is written anew.

Names, kinds and sizes of transcripts are compared each time, digests only where a check is thorough: that reads them
all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.store import journal
from mac_runner.store.adoption import adoptable, claimed_rows
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.frames import lines
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.manifest import Manifest, decode_manifest
from mac_runner.store.publishing import read_acknowledged, set_aside
from mac_runner.store.records import entry
from mac_runner.store.retrying import Attempts, remove_superseded
from mac_runner.store.session import index_line, settle, write_index
from mac_runner.store.transcripts import encode_transcript, index_row, with_attempts
from mac_runner.types import JsonObject, RecordedReply, Task

_NAMED_MAX = 20

Restore: TypeAlias = Callable[[Task, Sequence[RecordedReply], JsonObject], JsonObject | None]
"""The transcript that a task and its recorded replies make, ended as its row says; None where they make none."""


@dataclass(slots=True, kw_only=True)
class Repairs:
    """What was put right. `restored` are transcripts written again, byte for byte; `reopened` are to be played again.

    `attempts_restored` and `attempts_lost` are transcripts of failed attempts, by name.
    """

    temporaries_removed: int = 0
    adopted: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    reopened: list[str] = field(default_factory=list)
    attempts_restored: list[str] = field(default_factory=list)
    attempts_lost: list[str] = field(default_factory=list)
    is_index_rewritten: bool = False
    is_manifest_unreadable: bool = False

    def as_json(self) -> JsonObject | None:
        """The fields of the event; None when there was nothing to do."""
        record: JsonObject = {
            "temporaries_removed": self.temporaries_removed,
            "adopted": [*self.adopted],
            "set_aside": [*self.set_aside],
            "missing": [*self.missing],
            "restored": [*self.restored],
            "reopened": [*self.reopened],
            "attempts_restored": [*self.attempts_restored],
            "attempts_lost": [*self.attempts_lost],
            "index_rewritten": self.is_index_rewritten,
            "manifest_unreadable": self.is_manifest_unreadable,
        }
        return record if any(record.values()) else None

    def in_words(self) -> list[str]:
        """A line for each kind of thing that a user should know."""
        told = (
            (self.adopted, "taken over, though the journal does not acknowledge it"),
            (self.set_aside, "damaged, its transcript set aside in damaged/"),
            (self.missing, "its transcript was gone"),
            (self.restored, "its transcript is written again from the journal, byte for byte"),
            (self.attempts_restored, "written again from the journal, byte for byte"),
            (self.attempts_lost, "damaged or gone, and the journal does not have its replies"),
            (self.reopened, "open again: its replies in the journal, or its question, are not all there"),
        )
        return [f"{_names(names)}: {what}" for names, what in told if names]


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
    """A task that is done: its place in the plan, its status, its size, and the digest of its line in the index."""

    place: int
    status: str
    size_bytes: int
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


def recover(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    *,
    log: OpenFile,
    repairs: Repairs,
    restore: Restore | None = None,
    is_thorough: bool = False,
) -> Recovered:
    """Find out where the run stands and put right what is not. What the journal did not acknowledge goes to `log`."""
    attempts = journal.attempts(disk, layout)
    ended = ended_tasks(disk, layout)
    open_again = attempts.keys() - ended.keys()
    remove_superseded(disk, layout, attempts, open_again)
    claims = {} if is_index_exact(disk, layout, ended) else claimed_rows(disk, layout, ended.__contains__)
    unsound, orphans = _unsound(disk, layout, ended, repairs, is_thorough=is_thorough)
    rows = _adopt(disk, layout, tasks, orphans, claims, attempts, repairs)
    if restore is not None:
        lost = {task_id: row for task_id, row in claims.items() if task_id not in {*repairs.adopted, *open_again}}
        rows_of_ended = journal.rows(disk, layout) if unsound else ()
        lost |= {task_id: row for row in rows_of_ended if (task_id := _task_id(row)) in unsound}
        rows += _restore(disk, layout, tasks, lost, attempts, restore, repairs, is_known=ended.__contains__)
        if is_thorough:
            _restore_attempts(disk, layout, tasks, attempts, restore, repairs)
    if rows:
        disk.append(log, b"".join(map(journal.done_frame, rows)))
        disk.sync(log)
        ended.update((_task_id(row), ended_of(row)) for row in rows)
    for task_id in unsound - {*repairs.restored}:
        del ended[task_id]
    manifest = _manifest(disk, layout, tasks, ended, repairs)
    repairs.reopened += filter(manifest.is_pending, sorted((unsound | claims.keys()) - open_again))
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


def is_sound(disk: Disk, layout: Layout) -> bool:
    """Whether a thorough check finds nothing to put right; reads every transcript."""
    ended = ended_tasks(disk, layout)
    attempts = journal.attempts(disk, layout)
    names = set(filter(None, map(task_id_of, disk.names(layout.transcripts))))
    return (
        names == ended.keys()
        and is_index_exact(disk, layout, ended)
        and all(_is_whole(disk, layout, row) for row in journal.rows(disk, layout))
        and not any(_attempt_flaws(disk, layout, attempts))
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
    return _Ended(
        place=entry(row, "index", int),
        status=entry(row, "status", str),
        size_bytes=entry(row, "size_bytes", int),
        row_digest=_digest(index_line(row).rstrip(b"\n")),
    )


def is_index_exact(disk: Disk, layout: Layout, ended: Mapping[str, _Ended]) -> bool:
    """Whether the index has the line of each ended task once, and no other, in whatever order."""
    count, total = 0, 0
    for line in lines(disk.chunks(layout.index)):
        count, total = count + 1, total + (_digest(line.data) if line.is_ended else 0)
    # No two sets of lines have the same sum of digests, but by an accident rarer than any other.
    return (count, total) == (len(ended), sum(end.row_digest for end in ended.values()))


def _unsound(
    disk: Disk, layout: Layout, ended: Mapping[str, _Ended], repairs: Repairs, *, is_thorough: bool
) -> tuple[set[str], set[str]]:
    """The ended tasks whose transcripts are gone, or set aside now; and those of transcripts that no ended task has."""
    missing, damaged, orphans = set(ended), set[str](), set[str]()
    for name, size_bytes in disk.sizes(layout.transcripts).items():
        if (task_id := task_id_of(name)) is None:
            continue
        missing.discard(task_id)
        if task_id not in ended:
            orphans.add(task_id)
        elif size_bytes != ended[task_id].size_bytes:
            damaged.add(task_id)
    if is_thorough:
        rows = (row for row in journal.rows(disk, layout) if _task_id(row) not in missing | damaged)
        damaged |= {_task_id(row) for row in rows if not _is_whole(disk, layout, row)}
    for task_id in sorted(damaged):
        set_aside(disk, layout, layout.transcript(task_id))
    repairs.missing += sorted(missing)
    repairs.set_aside += sorted(damaged)
    return missing | damaged, orphans


def _adopt(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    orphans: Collection[str],
    claims: Mapping[str, JsonObject],
    attempts: Attempts,
    repairs: Repairs,
) -> list[JsonObject]:
    """Take over the transcripts that can be, and set the others aside; the rows of the former."""
    rows: list[JsonObject] = []
    seeds = {task.task_id: task.seed for task in tasks.those(orphans.__contains__)} if orphans else {}
    found = adoptable(disk, layout, sorted(orphans), claims=claims, seeds=seeds, attempts=attempts)
    for task_id, row in found:
        if isinstance(row, str):
            set_aside(disk, layout, layout.transcript(task_id))
            repairs.set_aside.append(task_id)
        else:
            repairs.adopted.append(task_id)
            rows.append(row)
    return rows


def _restore(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    lost: Mapping[str, JsonObject],
    attempts: Attempts,
    restore: Restore,
    repairs: Repairs,
    *,
    is_known: Callable[[str], bool],
) -> list[JsonObject]:
    """Write the transcripts again whose replies make what their rows acknowledge; the rows the journal lacks."""
    rows: list[JsonObject] = []
    if not lost:
        return rows
    replies = journal.replies(disk, layout, lost.__contains__)
    for task in tasks.those(lost.__contains__):
        transcript = restore(task, replies.pop(task.task_id, []), lost[task.task_id])
        data = b"" if transcript is None else encode_transcript(transcript)
        if transcript is None or _sha256(data) != lost[task.task_id]["sha256"]:
            continue
        disk.publish_once(layout.transcript(task.task_id), data)
        repairs.restored.append(task.task_id)
        if not is_known(task.task_id):
            rows.append(with_attempts(index_row(transcript, data), attempts.get(task.task_id, ())))
    disk.sync_directory(layout.transcripts)
    return rows


def _restore_attempts(
    disk: Disk, layout: Layout, tasks: Plan, attempts: Attempts, restore: Restore, repairs: Repairs
) -> None:
    """Write the transcripts of failed attempts again that are not what was acknowledged; the rest stays as it is."""
    flaws = list(_attempt_flaws(disk, layout, attempts))
    wanted = {task_id for task_id, _ in flaws}
    if not wanted:
        return
    replies = journal.replies_of_attempts(disk, layout, wanted)
    known = {task.task_id: task for task in tasks.those(wanted.__contains__)}
    disk.make_directory(layout.attempts)
    for task_id, number in flaws:
        path, row = layout.attempt(task_id, number), attempts[task_id][number - 1]
        transcript = restore(known[task_id], replies[task_id][number - 1], row) if task_id in known else None
        data = b"" if transcript is None else encode_transcript(transcript)
        if _sha256(data) != row["sha256"]:
            repairs.attempts_lost.append(path.name)
            continue
        if disk.exists(path):
            set_aside(disk, layout, path)
        disk.publish_once(path, data)
        repairs.attempts_restored.append(path.name)
    disk.sync_directory(layout.attempts)


def _attempt_flaws(disk: Disk, layout: Layout, attempts: Attempts) -> Iterator[tuple[str, int]]:
    """The failed attempts, by task and number, whose transcripts are not what was acknowledged."""
    for task_id, failed in attempts.items():
        for number, row in enumerate(failed, start=1):
            if not _is_acknowledged(disk, layout.attempt(task_id, number), row):
                yield task_id, number


def _is_whole(disk: Disk, layout: Layout, row: JsonObject) -> bool:
    return _is_acknowledged(disk, layout.transcript(_task_id(row)), row)


def _is_acknowledged(disk: Disk, path: Path, row: JsonObject) -> bool:
    try:
        read_acknowledged(disk, path, row)
    except ValueError:
        return False
    return True


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


def _repair_index(
    disk: Disk, layout: Layout, ended: Mapping[str, _Ended], manifest: Manifest, repairs: Repairs
) -> None:
    if not is_index_exact(disk, layout, ended):
        write_index(disk, layout, manifest)
        repairs.is_index_rewritten = True


def _digest(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=16).digest())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _task_id(row: JsonObject) -> str:
    return entry(row, "task_id", str)


def _names(names: Sequence[str]) -> str:
    """Some names in a line; of very many the first."""
    hidden = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {hidden} more" if hidden > 0 else "")
