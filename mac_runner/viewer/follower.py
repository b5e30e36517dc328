"""A run directory that is looked at again and again, while a run writes it or after.

Nothing is locked and nothing is written. What was read once is kept: the journal is read on from where the last look
ended, small files are read again when they change. Not for two threads at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mac_runner.config import recorded_speakers
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.files import Mark, mark_of
from mac_runner.runs.replays import Replays
from mac_runner.store import Counts, Disk, Run, Standing
from mac_runner.store.head import places_of_work, read_head
from mac_runner.store.identity import read_shard
from mac_runner.store.layout import Layout
from mac_runner.store.lock import Holder, most_alive
from mac_runner.store.machine import Machine
from mac_runner.store.rows import DoneRow
from mac_runner.store.run_state import RunState
from mac_runner.store.tail import JournalTail, never
from mac_runner.store.trace_log import TraceLog
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject
from mac_runner.viewer.listing import Listing
from mac_runner.viewer.source import NotThereError
from mac_runner.views.index import IndexTable

if TYPE_CHECKING:
    from mac_runner.plan import Shard

_NAMES_SHOWN_MAX: Final = 3
_DIGITS_MAX: Final = 16
_BATCH_ROWS: Final = 100
"""So many index rows are held at once."""


class Follower:
    """One run directory, as it was at the last `look`."""

    def __init__(self, directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> None:
        self.directory = directory
        self._disk = disk or Disk()
        self._machine = machine or Machine()
        self._version = -1
        self._begin()
        self._touched: set[int] = set()
        self._replied: set[str] = set()
        self._refill: Iterator[Listing | None] | None = None
        self._resolved: JsonObject = {}
        self._layout = Layout(directory=directory, experiment_name="unknown")
        self._shard: Shard | None = None
        self._planned: Mapping[str, int] = {}
        self._unplanned: set[str] = set()
        """Tasks that ended and that the manifest does not have yet, or not any more."""
        self._numbered: Mapping[int, Sequence[str]] | None = None
        self._listed_state: RunState | None = None
        self._clear()

    def _begin(self) -> None:
        """Forget all that was read."""
        self._version += 1
        self._marks: tuple[Mark | str | None, ...] | None = None
        self._tail: JournalTail | None = None
        self._replays: Replays | None = None

    def look(self, is_over: Callable[[], bool] = never) -> None:
        """Read what is new. `is_over` is asked now and then: where it says so, the next look reads on from there.

        Raises RunDirectoryError or StoreError where the run cannot be read; the next look begins again.
        """
        try:
            self._look(is_over)
        except MacRunnerError:
            self._begin()
            raise

    # What there is.

    @property
    def contents(self) -> Run:
        """The run as the readers of run directories take it."""
        state = self._known_tail.state
        return Run(
            layout=self._layout,
            resolved=self._resolved,
            counts=Counts(
                planned=self._planned_count,
                finished=len(state.endings) - len(self._listing.failures),
                failed=len(self._listing.failures),
            ),
            state=state,
            disk=self._disk,
        )

    @property
    def is_reading(self) -> bool:
        """Whether the last look left something unread: then lists, counts and replies are of what was read."""
        return not self._is_whole or self._is_stale

    @property
    def is_begun(self) -> bool:
        """Whether there was a look, and the last one found a run."""
        return self._tail is not None

    @property
    def table(self) -> IndexTable:
        """The list of its conversations."""
        return self._listing.table

    def take_touched(self) -> frozenset[int]:
        """The numbers of the conversations that had new replies since this was last called, and have not ended."""
        found = frozenset(self._touched)
        self._touched.clear()
        return found

    def state(self) -> object:
        """Changes when the standing does, apart from its times."""
        holder, tail = self._holder(), self._known_tail
        counts = len(tail.state.endings), len(self._listing.failures), self._planned_count, len(tail.replied)
        return self.table.version, self.is_reading, counts, len(tail.state.sessions), holder.owner, holder.is_alive

    def _holder(self) -> Holder:
        """Who is at work."""
        return most_alive(self._disk, places_of_work(self.directory, disk=self._disk), self._machine)

    @property
    def replays(self) -> Replays:
        """Plays its conversations again."""
        if self._replays is None:
            self._replays = Replays(self.contents)
        return self._replays

    def standing(self) -> Standing:
        """How far it is, as `read_standing` says it."""
        tail, directory = self._known_tail, self.directory
        sessions = tail.state.sessions
        return Standing(
            directory=directory,
            experiment_name=self._layout.experiment_name,
            shard=self._shard,
            planned=self._planned_count,
            finished=len(tail.state.endings) - len(self._listing.failures),
            failed=len(self._listing.failures),
            half_done=len(tail.replied),
            failures=tuple(self._listing.failures.values()),
            sessions=len(sessions),
            latest=tail.state.latest,
            usage=tail.state.usage,
            holder=self._holder(),
            counts=self._listing.counts.as_json(),
            speakers=recorded_speakers(self._resolved),
        )

    def task_id(self, name: str) -> str:
        """The task with this id or number. Raises NotThereError for none, ConfigError where several have the number."""
        if name in self._known_tail.state.endings or name in self._planned:
            return name
        is_number = name.isascii() and name.isdecimal() and len(name) < _DIGITS_MAX
        found = self._by_number().get(int(name), ()) if is_number else ()
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(found[:_NAMES_SHOWN_MAX])
            raise ConfigError(f"several conversations have the number {name}; use the task id, such as {some}")
        raise NotThereError(
            f"no conversation of {self.directory} is called {name!r:.60} or has this number; numbers go from 0"
        )

    def _by_number(self) -> Mapping[int, Sequence[str]]:
        if self._numbered is None:
            found: dict[int, list[str]] = defaultdict(list)
            for task_id in (*self._planned, *self._unplanned):
                found[self.number(task_id)].append(task_id)
            self._numbered = found
        return self._numbered

    @property
    def _planned_count(self) -> int:
        return len(self._planned) + len(self._unplanned)

    def number(self, task_id: str) -> int:
        """The number of a task."""
        ending = self._known_tail.state.endings.get(task_id)
        return self._planned.get(task_id, -1) if ending is None else ending.task_index

    def mark(self, task_id: str) -> object:
        """Changes when the transcript of a task does, or what is acknowledged of it."""
        if self._has_transcript(task_id):
            return mark_of(self._layout.transcript(task_id)), self._known_tail.state.endings.get(task_id)
        return self._known_tail.reply_count(task_id)

    def _has_transcript(self, task_id: str) -> bool:
        """Whether a transcript is what there is of a task. Until all is read, one that is there counts as that."""
        if task_id in self._known_tail.state.endings:
            return True
        return self.is_reading and self._disk.exists(self._layout.transcript(task_id))

    def transcript(self, task_id: str) -> JsonObject:
        """The transcript of a task, also of one that has not ended; its `note` says what is wrong with it.

        Raises NotThereError for one that has not begun.
        """
        if self._has_transcript(task_id):
            transcript, flaw = self.contents.shown(task_id)
            return {**transcript, "note": flaw}
        if not (replies := self._known_tail.replies(task_id)):
            if self.is_reading:
                raise NotThereError(f"the replies of {task_id} are not read yet; look again in a few seconds")
            raise NotThereError(f"{task_id} has not begun yet; look again when it has a reply")
        return self.replays.open_transcript(task_id, replies)

    def traces(self, task_id: str, transcript: JsonObject) -> Traces:
        """The token traces of a transcript by turn, also of one that has not ended. Raises as `read_traces`."""
        if self._has_transcript(task_id):
            return self.contents.traces(transcript)
        return TraceLog(self._known_tail.replies(task_id)).of(transcript)

    # Looking.

    def let_go(self) -> None:
        """Give up the list that is being built."""
        self._refill = None

    @property
    def _known_tail(self) -> JournalTail:
        assert self._tail is not None, "the first look has been taken"
        return self._tail

    def _look(self, is_over: Callable[[], bool]) -> None:
        self._read_settings()
        if self._refill is not None:
            self._go_on_refilling(is_over)
        if self._refill is not None:
            return
        self._read_on(is_over)
        if self._is_stale and self._is_whole:
            self._refill = self._refilled()
            self._go_on_refilling(is_over)

    def _read_on(self, is_over: Callable[[], bool]) -> None:
        """Read what is new in the journal."""
        tail, batch = self._known_tail, list[DoneRow]()

        def take(row: DoneRow) -> None:
            batch.append(row)
            if len(batch) == _BATCH_ROWS:
                self._add(batch)
                batch.clear()

        news = tail.read_on(take, is_over, self._listing.table.how.row_kind)
        self._add(batch)
        self._is_whole = news.is_whole
        self._is_stale |= news.is_anew
        self._replied |= news.replied
        if news.is_whole:
            # Before the end, a conversation that has ended looks as if it had not.
            self._touched.update(map(self.number, self._replied & tail.replied))
            self._replied.clear()

    def _read_settings(self) -> None:
        """Read the experiment and the manifest, if they changed."""
        layout = Layout.at(self._disk, self.directory)
        marks = (mark_of(layout.config), mark_of(layout.manifest), *self._disk.names(layout.journal))
        if self._tail is not None and marks == self._marks:
            return
        layout, resolved, self._planned = read_head(self.directory, disk=self._disk)
        self._shard = read_shard(self._disk, layout.root)
        if self._tail is None or resolved != self._resolved or layout != self._layout:
            # Pages know rows by their version: those of another run are never taken for rows of this one.
            self._version += self._tail is not None
            self._resolved = resolved
            self._tail = JournalTail(self._disk, layout, keeps_replies=True)
            self._clear()
        self._layout = self._tail.layout = layout
        self._marks, self._replays = marks, None
        self._unplanned = self._known_tail.state.endings.keys() - self._planned.keys()
        self._numbered = None

    # The list.

    def _clear(self) -> None:
        """Begin the list again."""
        self._listing = Listing(self._resolved, self._version)
        self._listed_state = None if self._tail is None else self._tail.state
        self._is_whole, self._is_stale = False, False
        self._refill = None
        self._replied.clear()

    def _add(self, rows: Sequence[DoneRow]) -> None:
        state = self._known_tail.state
        if state is not self._listed_state:
            # Another journal took the place of the one that was read.
            self._version += 1
            self._clear()
        if not rows:
            return
        if not self._listing.fits(rows):
            if self._listing.table.rows:
                self._is_stale = True
            else:
                self._listing = Listing(self._resolved, self._version, rows)
        self._listing.add(rows, state.endings)
        if new := {row.task_id for row in rows} - self._planned.keys():
            self._unplanned |= new
            self._numbered = None

    def _refilled(self) -> Iterator[Listing | None]:
        """Rebuild the list from all rows that count; None after each part of them."""
        state = self._known_tail.state
        made = Listing(self._resolved, self._version + 1, state.json_rows(self._disk, self._layout))
        rows = state.json_rows(self._disk, self._layout)
        while part := [*islice(rows, _BATCH_ROWS)]:
            made.add(part, state.endings)
            yield None
        yield made

    def _go_on_refilling(self, is_over: Callable[[], bool]) -> None:
        """Make the next part of the list. Until it is whole, the list that rows were added to is shown."""
        for made in () if self._refill is None else self._refill:
            if made is not None:
                self._version, self._listing = made.table.version, made
                self._refill, self._is_stale = None, False
                return
            if is_over():
                return
