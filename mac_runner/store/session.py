"""What one session writes, and in which order: the committer behind the writer thread.

::

    replies ──▶ journal, sync ──▶ transcripts, sync ──▶ `done` frames, sync ──▶ index rows ──▶ acknowledged

Each arrow is a promise: whatever instant the machine stops at, what stands to the right of it never stands without
what stands to the left. The index, the manifest and the events come after the last sync because they can be derived
again or are worth no sync.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeAlias, TypeVar

from mac_runner import limits
from mac_runner.clock import Clock, iso
from mac_runner.errors import StoreError
from mac_runner.store import journal
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.eventlog import event_line
from mac_runner.store.frames import encode_json
from mac_runner.store.layout import Layout
from mac_runner.store.manifest import Manifest
from mac_runner.store.publishing import Publication, publish
from mac_runner.store.records import entry
from mac_runner.store.repetition import EVENT_WORK_REPEATED, Repetition
from mac_runner.store.retrying import Attempts
from mac_runner.store.space import Need, telling_the_need
from mac_runner.store.transcripts import with_attempts
from mac_runner.store.trial import TrialDisk
from mac_runner.types import JsonObject, RecordedReply


@dataclass(frozen=True, slots=True)
class ReplyItem:
    """The `n`-th reply of a task."""

    task_id: str
    n: int
    recorded: RecordedReply


@dataclass(frozen=True, slots=True)
class DeathItem:
    """An engine died while it worked on a turn of a task."""

    task_id: str
    turn_key: str


@dataclass(frozen=True, slots=True)
class TranscriptItem:
    """An ended conversation."""

    task_id: str
    transcript: JsonObject


@dataclass(frozen=True, slots=True)
class EventItem:
    """Something that happened."""

    name: str
    moment: datetime
    elapsed_s: float
    fields: JsonObject


@dataclass(frozen=True, slots=True)
class AccountingItem:
    """What the session has used up so far."""

    elapsed_s: float
    accounting: JsonObject


@dataclass(frozen=True, slots=True)
class SummaryItem:
    """The results in numbers."""

    summary: JsonObject


_LINES_PER_WRITE = 1_000

Item: TypeAlias = ReplyItem | DeathItem | TranscriptItem | EventItem | AccountingItem | SummaryItem
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFiles:
    """The files a session appends to."""

    log: OpenFile
    index: OpenFile
    events: OpenFile
    is_events_torn: bool = False


class Session:
    """One session on the disk; `commit`, `finish` and `close` belong to the writer thread.

    Nothing is appended to what was there before the first commit: until then the whole start can be withdrawn.
    """

    def __init__(
        self,
        *,
        disk: TrialDisk,
        layout: Layout,
        clock: Clock,
        manifest: Manifest,
        number: int,
        files: SessionFiles,
        need: Need,
        attempts: Attempts,
        show_life: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.layout = layout
        self.clock = clock
        self._manifest = manifest
        self._number = number
        self._files = files
        self._left = need.conversations
        self._need_at_start = need
        self._published_bytes = 0
        self._attempts = attempts
        self._started_s = clock.monotonic_s()
        self._manifest_at_s = self._started_s
        self._manifest_done = manifest.counts.done
        self._accounting: JsonObject = {}
        self._repetition = Repetition()
        self._is_summed_up = False
        self._show_life = show_life
        self._opening: list[EventItem] = []
        self._is_settled = False
        self.is_withdrawn = False
        """Set before it is finished: nothing is written any more."""
        self.written = 0
        """How many conversations of this session are acknowledged."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the session began."""
        return self.clock.monotonic_s() - self._started_s

    @property
    def pulse(self) -> int:
        """Grows whenever the disk has got something done."""
        return self.disk.pulse

    def commit(self, items: Sequence[Item]) -> None:
        """Write a batch, in the order drawn above."""
        with telling_the_need(self._need):
            self._commit(items)

    def note(self, name: str, fields: JsonObject) -> None:
        """Note an event of the start, which is logged once the start is settled. Before the writer begins."""
        self._opening.append(EventItem(name, self.clock.utc_now(), self.elapsed_s, fields))

    def _settle(self) -> None:
        """Let the start stand: something has come of it."""
        if not self._is_settled:
            self._is_settled = True
            self.disk.settle()
            if self._files.is_events_torn:
                self.disk.append(self._files.events, b"\n")
            self._log_events(self._opening)

    def _commit(self, items: Sequence[Item]) -> None:
        if items:
            self._settle()
        self._log_frames(self._frames(items))
        self._publish(_of(items, TranscriptItem))
        self._log_events(_of(items, EventItem))
        summaries = _of(items, SummaryItem)
        for item in summaries[-1:]:
            write_summary(self.disk, self.layout, item.summary)
        if items:  # The last batch of a run is empty when its summary was written before it.
            self._is_summed_up = bool(summaries)
        if self._is_manifest_due():
            self._write_manifest()
        self._show_life()

    def idle(self) -> None:
        """Show that this process lives, which is not only told by what it writes."""
        self._show_life()

    def finish(self) -> None:
        """Account for the session, bring index and manifest into their final form."""
        if self.is_withdrawn:
            return
        self._settle()
        # Where the last thing written was a summary, the account it was made of stands: they must not tell two times.
        if not self._is_summed_up:
            self._log_frames([self._checkpoint(self.elapsed_s)])
        if self.written >= self._left:
            write_index(self.disk, self.layout, self._manifest)
        self._write_manifest()

    def close(self) -> None:
        """Close the files."""
        with ExitStack() as closing:
            for file in (self._files.log, self._files.index, self._files.events):
                closing.callback(self.disk.close, file)

    def _frames(self, items: Sequence[Item]) -> list[bytes]:
        frames: list[bytes] = []
        for reply in _of(items, ReplyItem):
            frames.append(journal.reply_frame(reply.task_id, reply.n, reply.recorded))
            self._repetition.recorded(reply.task_id, reply.recorded)
        frames += [journal.death_frame(item.task_id, item.turn_key) for item in _of(items, DeathItem)]
        for item in _of(items, AccountingItem)[-1:]:
            self._accounting = item.accounting
            frames.append(self._checkpoint(item.elapsed_s))
        return frames

    def _checkpoint(self, elapsed_s: float) -> bytes:
        accounting = {**self._accounting, **self._repetition.as_json()}
        return journal.checkpoint_frame(self._number, elapsed_s=elapsed_s, accounting=accounting)

    def _log_frames(self, frames: Sequence[bytes]) -> None:
        if frames:
            self.disk.append(self._files.log, b"".join(frames))
            self.disk.sync(self._files.log)

    def _log_events(self, items: Sequence[EventItem]) -> None:
        if items:
            lines = (event_line(item.name, item.moment, item.elapsed_s, item.fields) for item in items)
            self.disk.append(self._files.events, b"".join(lines))

    def _publish(self, items: Sequence[TranscriptItem]) -> None:
        if not items:
            return
        published = [publish(self.disk, self.layout, item.task_id, item.transcript) for item in items]
        rows = [
            with_attempts(publication.row, self._attempts.get(item.task_id, ()))
            for item, publication in zip(items, published, strict=True)
        ]
        self.disk.sync_directory(self.layout.transcripts)
        self._log_frames([journal.done_frame(row) for row in rows])
        self.disk.append(self._files.index, b"".join(map(index_line, rows)))
        for row in rows:
            settle(self._manifest, entry(row, "task_id", str), entry(row, "status", str))
        self._published_bytes += sum(entry(row, "size_bytes", int) for row in rows)
        self.written += len(rows)
        self._note_repetition(items, published)

    def _note_repetition(self, items: Sequence[TranscriptItem], published: Sequence[Publication]) -> None:
        """Tell what another process had done already; with a lock that holds there is nothing to tell."""
        told = [
            self._repetition.published(item.task_id, is_first=publication.is_first)
            for item, publication in zip(items, published, strict=True)
        ]
        if any(told):
            moment, elapsed_s = self.clock.utc_now(), self.elapsed_s
            self._log_events([EventItem(EVENT_WORK_REPEATED, moment, elapsed_s, fields) for fields in told if fields])
            self._log_frames([self._checkpoint(elapsed_s)])

    def _need(self) -> Need:
        """What the disk is still to hold."""
        left = self._left - self.written
        if self.written:
            return Need(left, self._published_bytes // self.written, is_learned=True)
        return self._need_at_start._replace(conversations=left)

    def _is_manifest_due(self) -> bool:
        counts = self._manifest.counts
        share = counts.planned / limits.MANIFEST_WRITES_PER_PLAN_MAX
        waited_s = self.clock.monotonic_s() - self._manifest_at_s
        return counts.done - self._manifest_done >= max(1.0, share) and waited_s >= limits.CHECKPOINT_INTERVAL_S

    def _write_manifest(self) -> None:
        write_manifest(self.disk, self.layout, self.clock, self._manifest)
        self._manifest_at_s = self.clock.monotonic_s()
        self._manifest_done = self._manifest.counts.done


def open_events(disk: Disk, layout: Layout) -> tuple[OpenFile, bool]:
    """The event log, and whether a kill left half a line at its end, which wants a line break before the next one."""
    is_torn = not disk.ends_line(layout.events)
    return disk.open_append(layout.events), is_torn


def settle(manifest: Manifest, task_id: str, status: str) -> None:
    """Note in the manifest what an index row says. Raises StoreError for a status that is no ending."""
    if status not in {"finished", "failed"}:
        raise StoreError(f"task {task_id} ended as {status!r}; a conversation is either finished or failed")
    manifest.settle(task_id, "failed" if status == "failed" else "finished")


def index_line(row: JsonObject) -> bytes:
    """A row as a line of the index."""
    return encode_json(row) + b"\n"


def in_task_order(rows: Iterable[JsonObject], task_ids: Iterable[str]) -> Iterator[bytes]:
    """The lines of an index in its final form: `rows` in the order of `task_ids`, which stand in that of the tasks.

    Conversations end nearly in the order they began, so few rows at a time wait for their turn.
    """
    waiting: dict[str, bytes] = {}
    left = ((entry(row, "task_id", str), index_line(row)) for row in rows)
    for task_id in task_ids:
        while task_id not in waiting and (following := next(left, None)) is not None:
            waiting[following[0]] = following[1]
        if task_id in waiting:
            yield waiting.pop(task_id)


def write_index(disk: Disk, layout: Layout, manifest: Manifest) -> None:
    """Put a whole index in place: the rows of all tasks that are done, in task order."""
    ordered = in_task_order(journal.rows(disk, layout), manifest.done())
    disk.write_atomic(layout.index, iter(lambda: b"".join(islice(ordered, _LINES_PER_WRITE)), b""))


def write_manifest(disk: Disk, layout: Layout, clock: Clock, manifest: Manifest) -> None:
    """Put a whole manifest in place."""
    disk.write_atomic(layout.manifest, manifest.encode(iso(clock.utc_now())))


def write_summary(disk: Disk, layout: Layout, summary: JsonObject) -> None:
    """Put a whole summary in place; it is small, so it is laid out for the eye."""
    disk.write_atomic(layout.summary, [encode_for_reading(summary)])


def encode_for_reading(value: JsonObject) -> bytes:
    """Indented JSON, its keys in the order given."""
    return (json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def _of(items: Sequence[Item], kind: type[_Kind]) -> list[_Kind]:
    return [item for item in items if isinstance(item, kind)]
