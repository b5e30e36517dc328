"""What one session writes, and in which order: the committer behind the writer thread.

::

    replies ──▶ journal, sync ──▶ traces, sync ──▶ transcripts, sync ──▶ `done` frames, sync ──▶ index rows ──▶
    acknowledged

Each arrow is a promise: at whatever instant the machine stops, nothing exists on the disk without all that is to the
left of it. Index, manifest and events come after the last sync: they can be derived again, or are not worth a sync.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar

from msgspec import Struct

from mac_runner.clock import Clock, iso
from mac_runner.errors import StoreError
from mac_runner.store import journal
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.layout import WORKERS, Layout
from mac_runner.store.leases import end_leases
from mac_runner.store.lock import LockAbove, RunLock
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import write_index, write_manifest
from mac_runner.store.records import encode_for_reading, encode_json, entry, event_line, row_id
from mac_runner.store.recovery import Recovered
from mac_runner.store.run_state import RECORDED, Recorded, at_least
from mac_runner.store.space import Need, full_disk_named
from mac_runner.store.traces import TraceLog
from mac_runner.store.transcripts import Finished, publish, publish_traces, with_attempts
from mac_runner.store.writer import Writer
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply

MANIFEST_INTERVAL_S: Final = 5.0
"""The manifest is written at most this often."""
MANIFEST_WRITES_PER_PLAN_MAX: Final = 20


class BeginItem(Struct, frozen=True):
    """The session begins, as with any other item."""


class ReplyItem(Struct, frozen=True):
    """The `n`-th reply of a task."""

    task_id: str
    n: int
    recorded: RecordedReply


class DeathItem(Struct, frozen=True):
    """An engine died while it worked on a turn of a task."""

    task_id: str
    turn_key: str


class PolicyItem(Struct, frozen=True):
    """A model has weights of another version."""

    model: str
    policy: PolicyVersion


class TranscriptItem(Struct, frozen=True):
    """An ended conversation."""

    task_id: str
    transcript: JsonObject


class EventItem(Struct, frozen=True):
    """Something that happened."""

    name: str
    moment: datetime
    elapsed_s: float
    fields: JsonObject


class AccountingItem(Struct, frozen=True):
    """What the session has used so far."""

    elapsed_s: float
    accounting: JsonObject


class SummaryItem(Struct, frozen=True):
    """The results in numbers."""

    summary: JsonObject


Item: TypeAlias = (
    BeginItem | ReplyItem | PolicyItem | DeathItem | TranscriptItem | EventItem | AccountingItem | SummaryItem
)
_Kind = TypeVar("_Kind")


class SessionLog:
    """One session of a grid or of a worker on the disk: its events, and what its engines used.

    Only the writer thread calls `commit`, `idle`, `finish` and `close`. Nothing is written before the first commit:
    then `start` writes what the start of the session came to. So a start that is refused has nothing to take back.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        layout: Layout,
        clock: Clock,
        segment: journal.Segment,
        show_life: Callable[[], None],
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self.disk = disk
        self.layout = layout
        self.clock = clock
        self._segment = segment
        self._start: Callable[[], None] | None = start
        self._show_life = show_life
        self._started_s = clock.monotonic_s()
        self._files: dict[Path, OpenFile] = {}
        self.is_withdrawn = False
        """Set before `finish`: nothing is written."""

    @property
    def elapsed_s(self) -> float:
        return self.clock.monotonic_s() - self._started_s

    @property
    def pulse(self) -> int:
        """Grows with the progress of the disk."""
        return self.disk.pulse

    def commit(self, items: Sequence[Item]) -> None:
        """Write a batch. The accounting comes first: it is not written anywhere else."""
        if items:
            self._begin_once()
        for item in _of(items, AccountingItem)[-1:]:
            number = self._segment.number
            self._segment.write(
                [journal.checkpoint_frame(number, elapsed_s=item.elapsed_s, accounting=item.accounting)]
            )
        self._log_events(_of(items, EventItem))
        self._show_life()

    def finish(self) -> None:
        """Write the start, at least. The last accounting came when the engines stopped; the rest costs them nothing."""
        if not self.is_withdrawn:
            self._begin_once()

    def idle(self) -> None:
        """Show that this process lives, also when it writes nothing."""
        self._show_life()

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._segment.close)
            for file in self._files.values():
                closing.callback(self.disk.close, file)

    def _begin_once(self) -> None:
        if self._start is not None:
            start, self._start = self._start, None  # It holds all that was found, which is large.
            self._begin(start)

    def _begin(self, start: Callable[[], None]) -> None:
        start()
        self._segment.write()
        # A kill may have left half a line at the end.
        self._append(self.layout.events, b"" if self.disk.ends_line(self.layout.events) else b"\n")

    def _append(self, path: Path, data: bytes) -> None:
        """Append to a file that is opened once, and created if missing; what is appended is not synced."""
        if path not in self._files:
            self._files[path] = self.disk.open_append(path)
        self.disk.append(self._files[path], data)

    def _log_events(self, items: Sequence[EventItem]) -> None:
        if items:
            lines = (event_line(item.name, item.moment, item.elapsed_s, item.fields) for item in items)
            self._append(self.layout.events, b"".join(lines))


class Session(SessionLog):
    """One session of a run on the disk, with its conversations."""

    def __init__(
        self,
        *,
        disk: Disk,
        layout: Layout,
        clock: Clock,
        segment: journal.Segment,
        recovered: Recovered,
        need: Need,
        show_life: Callable[[], None],
        start: Callable[[], None],
        on_ended: Callable[[JsonObject], None],
        engines: Mapping[str, str] | None,
        finish: Callable[[], None],
    ) -> None:
        """With `engines` they are accounted for elsewhere, under these names by model. `finish` is called last."""
        super().__init__(disk=disk, layout=layout, clock=clock, segment=segment, show_life=show_life, start=start)
        self._engines = engines
        self._finish = finish
        self._is_whole = layout.is_whole
        """Whether index and manifest are its to write, which are of the whole run."""
        self._on_ended = on_ended
        self._manifest = recovered.manifest
        self._tail = recovered.tail
        self._left = need.conversations
        self._need_at_start = need
        self._attempts = recovered.attempts
        self._traces = {
            task_id: TraceLog(replies)
            for task_id, replies in recovered.replies.items()
            if any(recorded.reply.trace is not None for recorded in replies)
        }
        self._published_bytes = 0
        self._manifest_at_s = self._started_s
        self._manifest_done = self._manifest.counts.done
        self._accounting: JsonObject = {}
        self._counted = Recorded(engines)
        """What this session recorded, as an accounting."""
        self._is_summed_up = False
        self.written = 0
        """How many conversations of this session are acknowledged."""

    def commit(self, items: Sequence[Item]) -> None:
        with full_disk_named(self._need):
            self._commit(items)

    def _begin(self, start: Callable[[], None]) -> None:
        super()._begin(start)
        if self._is_whole:
            self._append(self.layout.index, b"")
            self._write_manifest()

    def _commit(self, items: Sequence[Item]) -> None:
        if items:
            self._begin_once()
        if frames := self._frames(items):
            self._segment.write(frames)
        self._publish(_of(items, TranscriptItem))
        self._log_events(_of(items, EventItem))
        summaries = _of(items, SummaryItem)
        for item in summaries[-1:]:
            write_summary(self.disk, self.layout, item.summary)
        if items:  # The last batch of a run is empty when its summary was written before it.
            self._is_summed_up = bool(summaries)
        if self._is_whole and self._is_manifest_due():
            self._write_manifest()
        self._show_life()

    def finish(self) -> None:
        """Account for the session, and write index and manifest in their final form."""
        if self.is_withdrawn:
            return
        self._begin_once()
        # If the summary was written last, the accounting it was made of stays: both must have the same times.
        if not self._is_summed_up:
            self._segment.write([self._checkpoint(self.elapsed_s)])
        if self._is_whole:
            if self.written >= self._left:
                self._tail.read_on()
                write_index(self.disk, self.layout, self._tail.state.json_rows(self.disk, self.layout), self._manifest)
            self._write_manifest()
        if self.layout.lease is None and self._manifest.counts.done == self._manifest.counts.planned:
            end_leases(self.disk, self.layout)
        self._finish()

    def _frames(self, items: Sequence[Item]) -> list[bytes]:
        # Versions first: no reply is on the disk before the version that made it is named there.
        frames = [journal.policy_frame(item.model, item.policy) for item in _of(items, PolicyItem)]
        for reply in _of(items, ReplyItem):
            log = None
            if reply.recorded.reply.trace is not None:
                log = self._traces.setdefault(reply.task_id, TraceLog())
            frames.append(journal.reply_frame(reply.task_id, reply.n, reply.recorded, log))
            self._counted.add(reply.recorded.model, reply.recorded.reply.tokens)
        frames += [journal.death_frame(item.task_id, item.turn_key) for item in _of(items, DeathItem)]
        for item in _of(items, AccountingItem)[-1:]:
            self._accounting = item.accounting
            frames.append(self._checkpoint(item.elapsed_s))
        return frames

    def _checkpoint(self, elapsed_s: float) -> bytes:
        accounting = self._accounting
        if self._engines is None:
            # More may have been recorded since the accounts were made.
            accounting = at_least(accounting, self._counted.accounting())
        elif found := self._counted.accounting():
            accounting = {**accounting, RECORDED: found}
        return journal.checkpoint_frame(self._segment.number, elapsed_s=elapsed_s, accounting=accounting)

    def _publish(self, items: Sequence[TranscriptItem]) -> None:
        if not items:
            return
        ended = [self._finished(item) for item in items]
        publish_traces(self.disk, self.layout, ended)
        rows = [
            with_attempts(publish(self.disk, self.layout, one), self._attempts.get(one.task_id, ())) for one in ended
        ]
        self.disk.sync_directory(self.layout.transcripts)
        self._segment.write([journal.done_frame(row) for row in rows])
        if self._is_whole:
            self._append(self.layout.index, b"".join(encode_json(row) + b"\n" for row in rows))
        for row in rows:
            self._manifest.settle(row_id(row), entry(row, "status", str))
        self._published_bytes += sum(entry(row, "size_bytes", int) for row in rows)
        self.written += len(rows)
        for row in rows:
            self._on_ended(row)

    def _finished(self, item: TranscriptItem) -> Finished:
        log = self._traces.pop(item.task_id, None)
        return Finished.of(item.task_id, item.transcript, {} if log is None else log.of(item.transcript))

    def _need(self) -> Need:
        """What the disk still has to hold."""
        left = self._left - self.written
        if self.written:
            return Need(left, self._published_bytes // self.written, is_learned=True)
        return self._need_at_start._replace(conversations=left)

    def _is_manifest_due(self) -> bool:
        counts = self._manifest.counts
        share = counts.planned / MANIFEST_WRITES_PER_PLAN_MAX
        waited_s = self.clock.monotonic_s() - self._manifest_at_s
        return counts.done - self._manifest_done >= max(1.0, share) and waited_s >= MANIFEST_INTERVAL_S

    def _write_manifest(self) -> None:
        write_manifest(self.disk, self.layout, self._manifest, updated_at=iso(self.clock.utc_now()))
        self._manifest_at_s = self.clock.monotonic_s()
        self._manifest_done = self._manifest.counts.done


class Closing(ABC):
    """Closed at the end of its `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Finish everything. Raises StoreError when something could not be written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError:
            # An error already under way says more; the failed write is most often its consequence or its cause.
            if fault is None:
                raise


class Recorder(Closing):
    """An open directory, of a run, of a grid or of a worker. All methods are for the event loop's thread.

    A `with` block that fails before anything was handed over leaves the directory as it was found.
    """

    def __init__(self, session: SessionLog, lock: RunLock | LockAbove) -> None:
        self._log = session
        self._lock = lock
        self._writer: Writer[Item] = Writer(session)
        self.has_begun = False
        """Whether anything was handed over."""
        self._early: list[EventItem] = []

    @property
    def layout(self) -> Layout:
        return self._log.layout

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more; None while all is well."""
        return self._writer.failure

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` once when a write fails, on the writer's thread; at once if one has failed."""
        self._writer.on_failure(callback)

    def event(self, name: str, fields: JsonObject) -> None:
        """Put an event into the event log, with the time."""
        self._submit(EventItem(name, self._log.clock.utc_now(), self._log.elapsed_s, fields))

    def early_event(self, name: str, fields: JsonObject) -> None:
        """An event that does not make a run begin by itself: of engines that start, for example.

        It is written before what comes next, or at the end.
        """
        item = EventItem(name, self._log.clock.utc_now(), self._log.elapsed_s, fields)
        if self.has_begun:
            self._submit(item)
        else:
            self._early.append(item)

    def checkpoint(self, accounting: JsonObject) -> None:
        """Note what this session has used so far; `wall_s` is added. The last note of a session counts."""
        self._submit(AccountingItem(self._log.elapsed_s, accounting))

    def begin(self) -> None:
        """Have what the start came to written, as whatever is handed over has."""
        self._submit(BeginItem())

    def drain(self) -> None:
        """Wait until all that was handed over is written. Raises StoreError when it cannot be."""
        self._writer.drain()

    def withdraw(self) -> None:
        """Leave the directory as it was found, and let the next process in. Only before anything was handed over."""
        assert not self.has_begun, "what was handed over is kept"
        self._log.is_withdrawn = True
        self._early.clear()
        with suppress(StoreError):
            self._writer.close()
        self._lock.back_out()

    def close(self) -> None:
        """Write all that was handed over and let the next process in; safe to call twice.

        Raises StoreError when something could not be written.
        """
        try:
            self._submit_early()
            self._writer.close()
            self._lock.sign_off()
        finally:
            self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None and not self.has_begun:
            self.withdraw()
        else:
            super().__exit__(kind, fault, trace)

    def _submit(self, item: Item) -> None:
        self.has_begun = True
        self._submit_early()
        self._writer.submit(item)

    def _submit_early(self) -> None:
        early, self._early = self._early, []
        for each in early:
            self._writer.submit(each)


def open_log_session(
    disk: Disk, layout: Layout, clock: Clock, lock: RunLock, start: Callable[[], None] = lambda: None
) -> SessionLog:
    """A new session in a directory that is locked, with a segment of its own."""
    segment = journal.Segment(disk, layout, started_at=iso(clock.utc_now()))
    return SessionLog(
        disk=disk, layout=layout, clock=clock, segment=segment, show_life=lock.show_life_if_due, start=start
    )


def write_summary(disk: Disk, layout: Layout, summary: JsonObject) -> None:
    disk.make_directory(layout.summary.parent)
    disk.write_atomic(layout.summary, [encode_for_reading(summary)])


def _of(items: Sequence[Item], kind: type[_Kind]) -> list[_Kind]:
    return [item for item in items if isinstance(item, kind)]


_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.-]+")


_HOST_CHARS: Final = 40


def open_worker(directory: Path, *, clock: Clock) -> Recorder:
    """A place for this process in the directory of a run or a grid: its note, signs of life, events and accounts."""
    disk, machine = Disk(), Machine()
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
