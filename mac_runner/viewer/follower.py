"""A run directory as pages look at it again and again: its `Run`, read on at each look, and the list of its rows.

Not for two threads at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.files import mark_of
from mac_runner.runs.replays import Replays
from mac_runner.store import Disk, Run, Standing
from mac_runner.store.machine import Machine
from mac_runner.store.rows import DoneRow
from mac_runner.store.run_state import RunState
from mac_runner.store.standing import standing_of
from mac_runner.store.tail import never
from mac_runner.store.traces import TraceLog, Traces
from mac_runner.types import JsonObject
from mac_runner.viewer.listing import Listing
from mac_runner.viewer.source import NotThereError
from mac_runner.views.index import IndexTable

_NAMES_SHOWN_MAX: Final = 3
_DIGITS_MAX: Final = 16
_BATCH_ROWS: Final = 100
"""So many index rows are held at once."""


class Follower:
    """One run directory, as it was at the last `look`."""

    def __init__(self, directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> None:
        self.directory = directory
        self._disk = disk
        self._machine = machine
        self._run: Run | None = None
        self._version = 0
        self._touched: set[int] = set()
        self._replied: set[str] = set()
        self._numbered: tuple[object, Mapping[int, Sequence[str]]] = None, {}
        self._replays: tuple[object, Replays] | None = None
        self._refill: Iterator[Listing | None] | None = None
        self._listing = Listing({}, 0)
        self._listed_state: RunState | None = None
        self._is_stale = False

    def look(self, is_over: Callable[[], bool] = never) -> None:
        """Read what is new. `is_over` is asked now and then: where it says so, the next look reads on from there.

        Raises RunDirectoryError or StoreError where the run cannot be read; the next look begins again.
        """
        try:
            self._look(is_over)
        except MacRunnerError:
            self._run = None
            raise

    # What there is.

    @property
    def run(self) -> Run:
        """The run, as far as it was read."""
        assert self._run is not None, "the first look has been taken"
        return self._run

    @property
    def is_reading(self) -> bool:
        """Whether the last look left something unread: then lists, counts and replies are of what was read."""
        return self._run is None or not self._run.is_whole or self._is_stale

    @property
    def is_begun(self) -> bool:
        """Whether there was a look, and the last one found a run."""
        return self._run is not None

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
        run, holder = self.run, self.run.holder
        sizes = run.counts, len(run.replied), len(run.state.sessions)
        return self.table.version, self.is_reading, sizes, holder.owner, holder.is_alive

    def standing(self) -> Standing:
        """How far it is."""
        return standing_of(self.run, self._listing.totals)

    def task_id(self, name: str) -> str:
        """The task with this id or number. Raises NotThereError for none, ConfigError where several have the number."""
        if name in self.run.tasks:
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
        tasks = self.run.tasks
        if self._numbered[0] is not tasks:
            found: dict[int, list[str]] = defaultdict(list)
            for task_id, index in self.run.planned().items():
                found[index].append(task_id)
            self._numbered = tasks, found
        return self._numbered[1]

    def mark(self, task_id: str) -> object:
        """Changes when the transcript of a task does, or what is acknowledged of it."""
        if self._has_transcript(task_id):
            return mark_of(self.run.layout.transcript(task_id)), self.run.state.endings.get(task_id)
        return self.run.reply_count(task_id)

    def _has_transcript(self, task_id: str) -> bool:
        """Whether a transcript is what there is of a task. Until all is read, one that is there counts as that."""
        run = self.run
        return task_id in run.state.endings or (self.is_reading and run.disk.exists(run.layout.transcript(task_id)))

    def transcript(self, task_id: str) -> JsonObject:
        """The transcript of a task, also of one that has not ended; its `note` says what is wrong with it.

        Raises NotThereError for one that has not begun.
        """
        if self._has_transcript(task_id):
            transcript, flaw = self.run.shown(task_id)
            return {**transcript, "note": flaw}
        if not (replies := self.run.replies(task_id)):
            if self.is_reading:
                raise NotThereError(f"the replies of {task_id} are not read yet; look again in a few seconds")
            raise NotThereError(f"{task_id} has not begun yet; look again when it has a reply")
        return self.replays.open_transcript(task_id, replies)

    @property
    def replays(self) -> Replays:
        """Plays its conversations again, as they are planned now."""
        tasks = self.run.tasks
        if self._replays is None or self._replays[0] is not tasks:
            self._replays = tasks, Replays(self.run)
        return self._replays[1]

    def traces(self, task_id: str, transcript: JsonObject) -> Traces:
        """The token traces of a transcript by turn, also of one that has not ended. Raises as `read_traces`."""
        if self._has_transcript(task_id):
            return self.run.traces(transcript)
        return TraceLog(self.run.replies(task_id)).of(transcript)

    # Looking.

    def let_go(self) -> None:
        """Give up the list that is being built."""
        self._refill = None

    def _look(self, is_over: Callable[[], bool]) -> None:
        if self._run is None:
            self._run = Run.at(self.directory, disk=self._disk, machine=self._machine, keeps_replies=True)
            self._begin_list()
        if self._refill is not None:
            self._go_on_refilling(is_over)
        if self._refill is not None:
            return
        self._read_on(is_over)
        if self._is_stale and self.run.is_whole:
            self._refill = self._refilled()
            self._go_on_refilling(is_over)

    def _read_on(self, is_over: Callable[[], bool]) -> None:
        """Read what is new in the journal."""
        run, batch = self.run, list[DoneRow]()

        def take(row: DoneRow) -> None:
            batch.append(row)
            if len(batch) == _BATCH_ROWS:
                self._add(batch)
                batch.clear()

        news = run.follow(take, is_over, self._listing.table.how.row_kind)
        self._add(batch)
        self._is_stale |= news.is_anew
        self._replied |= news.replied
        if run.is_whole:
            # Before the end, a conversation that has ended looks as if it had not.
            numbers = map(run.index_of, self._replied & run.replied)
            self._touched.update(number for number in numbers if number is not None)
            self._replied.clear()

    # The list.

    def _begin_list(self) -> None:
        """Begin the list of a run that is read for the first time, or that took the place of another one.

        Pages know rows by their version: those of another run are never taken for rows of this one.
        """
        self._version += self._listed_state is not None
        self._listing, self._listed_state = Listing(self.run.resolved, self._version), self.run.state
        self._is_stale, self._refill, self._replays = False, None, None
        self._replied.clear()

    def _add(self, rows: Sequence[DoneRow]) -> None:
        run = self.run
        if run.state is not self._listed_state:
            self._begin_list()
        if not rows:
            return
        if not self._listing.fits(rows):
            if self._listing.table.rows:
                self._is_stale = True
            else:
                self._listing = Listing(run.resolved, self._version, rows)
        self._listing.add(rows)

    def _refilled(self) -> Iterator[Listing | None]:
        """Rebuild the list from all rows that count; None after each part of them."""
        made = Listing(self.run.resolved, self._version + 1, self.run.json_rows())
        rows = self.run.json_rows()
        while part := [*islice(rows, _BATCH_ROWS)]:
            made.add(part)
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
