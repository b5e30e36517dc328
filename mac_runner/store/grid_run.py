"""A grid under way: its lock, its own journal and events, and its tables.

It takes what concerns all combinations together. Each of them writes into its own run directory, with a writer of its
own; here a writer thread commits when engines ran and what they used up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mac_runner.clock import Clock, iso
from mac_runner.errors import StoreError
from mac_runner.store import journal
from mac_runner.store.closing import Closing
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.eventlog import event_line
from mac_runner.store.grid import GridRecord, encode_grid, read_grid
from mac_runner.store.layout import Layout, grid_path
from mac_runner.store.lock import RunLock
from mac_runner.store.records import entry
from mac_runner.store.run import create_segment
from mac_runner.store.session import AccountingItem, EventItem, open_events
from mac_runner.store.sessions import merge_accountings, usage_of
from mac_runner.store.space import Need, check_room
from mac_runner.store.trial import TrialDisk, back_out, lock_on_trial
from mac_runner.store.writer import Writer
from mac_runner.types import JsonObject

GridItem = EventItem | AccountingItem


@dataclass(slots=True, kw_only=True)
class _GridSession:
    """What a session of a grid writes; it belongs to the writer thread."""

    disk: TrialDisk
    number: int
    log: OpenFile
    events: OpenFile
    is_events_torn: bool
    elapsed_s: Callable[[], float]
    show_life: Callable[[], None]
    is_settled: bool = False

    @property
    def pulse(self) -> int:
        """Grows whenever the disk has got something done."""
        return self.disk.pulse

    def commit(self, items: Sequence[GridItem]) -> None:
        """The account first: it is what is not written anywhere else."""
        if items and not self.is_settled:
            self.settle()
        for item in [item for item in items if isinstance(item, AccountingItem)][-1:]:
            frame = journal.checkpoint_frame(self.number, elapsed_s=item.elapsed_s, accounting=item.accounting)
            self.disk.append(self.log, frame)
            self.disk.sync(self.log)
        happened = (item for item in items if isinstance(item, EventItem))
        if lines := b"".join(event_line(item.name, item.moment, item.elapsed_s, item.fields) for item in happened):
            self.disk.append(self.events, lines)
        self.show_life()

    def settle(self) -> None:
        """Let the start stand: something has come of it."""
        self.is_settled = True
        self.disk.settle()
        if self.is_events_torn:
            self.disk.append(self.events, b"\n")

    def idle(self) -> None:
        """Show that this process lives."""
        self.show_life()

    def finish(self) -> None:
        """Nothing: the last account was given when the engines stopped, and what comes after it costs them nothing."""

    def close(self) -> None:
        """Close the files."""
        with ExitStack() as closing:
            closing.callback(self.disk.close, self.log)
            closing.callback(self.disk.close, self.events)


class GridRun(Closing):
    """An open directory of a grid. All methods are for one thread, that of the event loop; `close` ends it."""

    def __init__(
        self, directory: Path, *, record: GridRecord, session: _GridSession, clock: Clock, lock: RunLock
    ) -> None:
        self.record = record
        self._directory = directory
        self._disk = session.disk
        self._has_begun = False
        self._elapsed_s = session.elapsed_s
        self._clock = clock
        self._lock = lock
        self._writer: Writer[GridItem] = Writer(session)

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more."""
        return self._writer.failure

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Have `callback` called once when a write fails, on the writer's thread; at once if one has failed."""
        self._writer.on_failure(callback)

    def event(self, name: str, fields: JsonObject) -> None:
        """Put an event into the event log of the grid, with the time."""
        self._submit(EventItem(name, self._clock.utc_now(), self._elapsed_s(), fields))

    def checkpoint(self, accounting: JsonObject) -> None:
        """Note what this session has used up so far; the last note of a session stands."""
        self._submit(AccountingItem(self._elapsed_s(), accounting))

    def accounting(self) -> JsonObject:
        """What all sessions of the grid used up, this one as far as it was handed over, which this waits for.

        Raises StoreError when it cannot be written.
        """
        self._writer.drain()
        return grid_accounting(self._directory, self.record.name, disk=self._disk)

    def write_tables(self, files: Mapping[str, bytes]) -> None:
        """Put files into the directory, those that are there with other contents replaced."""
        self._has_begun = True
        _put_all(self._disk, self._directory, files)

    def _submit(self, item: GridItem) -> None:
        self._has_begun = True
        self._writer.submit(item)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is None or self._has_begun:
            super().__exit__(kind, fault, trace)
            return
        # Nothing has come of this start: it leaves the directory as it was found.
        with suppress(StoreError):
            self._writer.close()
        back_out(self._disk, self._lock)

    def close(self) -> None:
        """Write all that was handed over and let the next process in; safe to call twice.

        Raises StoreError when something could not be written.
        """
        try:
            self._writer.close()
            self._disk.settle()
            self._lock.sign_off()
        finally:
            self._lock.release()


def open_grid(
    directory: Path,
    *,
    asked: GridRecord,
    clock: Clock,
    disk: Disk | None = None,
    needs: Sequence[Need] = (),
    say: Callable[[str], None] = lambda _line: None,
) -> GridRun:
    """Begin a grid in `directory`, or go on with the one there, as it is asked for now, if there is room for `needs`.

    Raises RunLockedError when another process is at it, RunDirectoryError when it is something else, StoreError when it
    cannot be written.
    """
    trial = TrialDisk(disk or Disk())
    read_grid(directory, disk=trial)
    lock = lock_on_trial(trial, directory, lambda: RunLock(trial, directory, clock=clock, say=say))
    try:
        if needs:
            layout = Layout(directory=directory, experiment_name=asked.name)
            check_room(trial, layout, Need.of_all(needs))
        return _open_locked(directory, asked, clock, trial, lock)
    except BaseException:
        back_out(trial, lock)
        raise


def _open_locked(directory: Path, asked: GridRecord, clock: Clock, disk: TrialDisk, lock: RunLock) -> GridRun:
    layout = Layout(directory=directory, experiment_name=asked.name)
    known = read_grid(directory, disk=disk)
    disk.sweep(directory)
    number = max(journal.sessions(disk, layout), default=0) + 1
    record = (known or GridRecord(name=asked.name, profile=asked.profile, asked={})).extended(asked, number)
    # Before anything else, because this file is what makes it the directory of a grid.
    _put_all(disk, directory, {grid_path(directory).name: b"".join(encode_grid(record))})
    disk.make_directory(layout.journal)
    with ExitStack() as opened:
        number, log = create_segment(disk, layout)
        opened.callback(disk.close, log)
        disk.append(log, journal.session_frame(number, started_at=iso(clock.utc_now())))
        disk.sync(log)
        events, is_events_torn = open_events(disk, layout)
        # From here on the writer thread owns the files and closes them.
        opened.pop_all()
    began_at_s = clock.monotonic_s()
    session = _GridSession(
        disk=disk,
        number=number,
        log=log,
        events=events,
        is_events_torn=is_events_torn,
        elapsed_s=lambda: clock.monotonic_s() - began_at_s,
        show_life=lock.show_life_if_due,
    )
    return GridRun(directory, record=record, session=session, clock=clock, lock=lock)


def grid_accounting(directory: Path, name: str, *, disk: Disk | None = None, sessions: int | None = None) -> JsonObject:
    """What the sessions of a grid, or the first so many of them, used up, added, and when each of them began."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=name, sessions=sessions)
    usages: dict[int, JsonObject] = {}
    began: dict[int, str] = {}
    for mark in journal.marks(disk, layout):
        if mark["kind"] == "session":
            began[entry(mark, "session", int)] = entry(mark, "started_at", str)
        elif mark["kind"] == "checkpoint":
            usages[entry(mark, "session", int)] = usage_of(mark)
    total = merge_accountings(usages.values())
    return {**total, "sessions": {str(number): moment for number, moment in sorted(began.items())}}


def write_tables(directory: Path, files: Mapping[str, bytes], *, clock: Clock, disk: Disk | None = None) -> None:
    """Bring the files of a grid that nobody runs up to date; where they are, nothing is touched and no lock taken."""
    disk = disk or Disk()
    if all(_holds(disk, directory / name, data) for name, data in files.items()):
        return
    lock = RunLock(disk, directory, clock=clock)
    try:
        _put_all(disk, directory, files)
        lock.sign_off()
    finally:
        lock.release()


def _put_all(disk: Disk, directory: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        if not _holds(disk, directory / name, data):
            disk.write_atomic(directory / name, [data])


def _holds(disk: Disk, path: Path, data: bytes) -> bool:
    return disk.exists(path) and disk.read(path) == data
