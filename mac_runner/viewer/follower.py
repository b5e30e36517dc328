"""A run directory as pages look at it again and again: read on at each look, with its list and its summary.

Not for two threads at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, MacRunnerError, RunDirectoryError, StoreError
from mac_runner.files import Mark, mark_of
from mac_runner.reports import listed
from mac_runner.reports.conversations import Listed
from mac_runner.results import section
from mac_runner.runs.replays import Replays
from mac_runner.runs.summary import summary_parts
from mac_runner.store import Disk, Run, Standing
from mac_runner.store.identity import layout_of
from mac_runner.store.layout import EVENTS, Layout
from mac_runner.store.leases import event_logs
from mac_runner.store.rows import DoneRow, RowTotals
from mac_runner.store.run_state import RunState, never
from mac_runner.store.standing import standing_of
from mac_runner.store.traces import TraceLog, Traces
from mac_runner.types import JsonObject
from mac_runner.view_model import EnginesPage, FlowPage, IndexColumns
from mac_runner.views.engines import EngineClock
from mac_runner.views.run_page import IndexTable


class NotThereError(ConfigError):
    """A request names something that the run does not have."""


_NAMES_SHOWN_MAX: Final = 3
_DIGITS_MAX: Final = 16
_BATCH_ROWS: Final = 100
"""So many index rows are held at once."""
_REST: Final = 20.0
"""While a run is at work, its summary is made again after this many times the time that it took."""
_TIME_BYTES: Final = 34
"""A line of an event log begins with its time, which is as long as this."""


class Follower:
    """One run directory, as it was at the last `look`."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.columns: IndexColumns | None = None
        """The whole list as it was last asked for."""
        self.flow: tuple[object, FlowPage] | None = None
        """The last flow, and what was asked for."""
        self._summaries = SummaryKeeper(clock)
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

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Read or add up a part of what is left; False where nothing is left."""
        if self.is_reading:
            self.look(is_over)
            return True
        return self._summaries.make_on(is_over)

    def let_go(self) -> None:
        """Give up what is half made: it is made anew if anybody asks again."""
        self._refill = None
        self._summaries.let_go()

    # What there is.

    @property
    def run(self) -> Run:
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
        return self._listing.table

    def take_touched(self) -> frozenset[int]:
        """The numbers of the conversations that had new replies since this was last called, and have not ended."""
        found = frozenset(self._touched)
        self._touched.clear()
        return found

    def state(self) -> object:
        """Changes when the head of the run may have, apart from its times."""
        run, holder = self.run, self.run.holder
        sizes = run.counts, len(run.replied), len(run.state.sessions), self._summaries.made
        return self.table.version, self.is_reading, sizes, holder.owner, holder.is_alive

    def standing(self) -> Standing:
        return standing_of(self.run, self._listing.totals)

    def summary(self, is_over: Callable[[], bool], *, is_live: bool) -> JsonObject | None:
        """Its summary; while it is being read, only one that is written. Raises as `SummaryKeeper.summary`."""
        if self.is_reading:
            return None if is_live else written_summary(self.run)
        return self._summaries.summary(self.run, is_over, is_live=is_live)

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

    def _look(self, is_over: Callable[[], bool]) -> None:
        if self._run is None:
            self._run = Run.at(self.directory, keeps_replies=True)
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


class Listing:
    """The list of one run with what is added up over it, as far as its rows were read.

    `resolved` is its experiment. Where that leaves open which columns there are, rows decide.
    """

    def __init__(self, resolved: JsonObject, version: int, rows: Iterable[DoneRow] = ()) -> None:
        environment = section(resolved, "conversation_config").get("environment")
        self._how = listed(environment if isinstance(environment, str) else "")
        self._has_open_columns = not self._how.own.of or bool(resolved.get("metrics"))
        self._kinds: dict[str, set[str]] = {}
        self.totals = RowTotals()
        how = self._columns(rows)
        self._note(how)
        self.table = IndexTable(how, version)

    def fits(self, rows: Sequence[DoneRow]) -> bool:
        """Whether the list has all columns of these rows. Where it does not, `add` leaves out what has no column."""
        return not self._has_open_columns or not self._note(self._columns(rows))

    def add(self, rows: Sequence[DoneRow]) -> None:
        self.table.add(rows)
        for row in rows:
            self.totals.add(row)

    def _columns(self, rows: Iterable[DoneRow]) -> Listed:
        if not self._has_open_columns:
            return self._how
        found = [row.whole() for row in rows]
        return self._how.with_outcomes(found).with_metrics(found)

    def _note(self, how: Listed) -> bool:
        """Whether columns have a name or a kind that no row before had."""
        is_new = False
        for name, column in how.columns.items():
            kinds = self._kinds.setdefault(name, set())
            is_new |= column.kind not in kinds
            kinds.add(column.kind)
        return is_new


class SummaryKeeper:
    """The summary of one run, made of the journal as rarely as it is expensive, and in parts.

    Requests are answered between two parts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: JsonObject | None = None
        self._fault = ""
        """Why there is none of what the directory holds."""
        self.made = 0
        """How many summaries there were, and faults in their place."""
        self._state: object = None
        """What the last one is of, or the one that is being made."""
        self._parts: Iterator[JsonObject | None] | None = None
        self._began_s, self._next_s = 0.0, float("-inf")

    def summary(self, run: Run, is_over: Callable[[], bool], *, is_live: bool) -> JsonObject | None:
        """The summary of what the directory holds; until it is made the one before it, or one that is written.

        Raises RunDirectoryError where what the directory holds cannot be added up.
        """
        state = len(run.state.endings), len(run.state.sessions), run.counts, is_live
        now_s = self._clock.monotonic_s()
        if self._parts is None and state != self._state and not (is_live and now_s < self._next_s):
            self._parts, self._state, self._began_s, self._fault = summary_parts(run), state, now_s, ""
        self.make_on(is_over)
        if self._fault:
            raise RunDirectoryError(self._fault)
        return written_summary(run) if self._known is None and not is_live else self._known

    def make_on(self, is_over: Callable[[], bool]) -> bool:
        """Make the next part of what is being made, up to where `is_over` says so; whether there is more to make."""
        if self._parts is None:
            return False
        try:
            while (made := next(self._parts)) is None:
                if is_over():
                    return True
        except RunDirectoryError as fault:
            made, self._fault = None, str(fault)
        except Exception:
            self.let_go()
            raise
        ended_s = self._clock.monotonic_s()
        self._next_s = ended_s + _REST * (ended_s - self._began_s)
        self._known, self._parts, self.made = made, None, self.made + 1
        return False

    def let_go(self) -> None:
        """Give up what is being made."""
        if self._parts is not None:
            self._state, self._parts = None, None


def written_summary(run: Run) -> JsonObject | None:
    """`summary.json`, where nothing was recorded after it."""
    layout, disk = run.layout, run.disk
    marks = [mark_of(layout.journal / name) for name in disk.names(layout.journal)]
    summary = mark_of(layout.summary)
    if summary is None or any(mark is None or mark.changed_ns > summary.changed_ns for mark in marks):
        return None
    with suppress(StoreError, ValueError, RecursionError):
        found = json.loads(disk.read(layout.summary))
        return found if isinstance(found, dict) else None
    return None


class EngineLog:
    """The event logs of a run, its own and those of its workers, as far as read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk = Disk()
        self._layout: Layout | None = None
        self._begin()

    def _begin(self) -> None:
        self._clock = EngineClock()
        self._offsets: dict[Path, int] = {}
        self._marks: dict[Path, Mark] = {}
        self._made: EnginesPage | None = None

    def page(self) -> EnginesPage:
        """The engines until the last event. Raises NotThereError where there is no log, StoreError for damage."""
        marks = {path: mark for path in event_logs(self._directory) if (mark := mark_of(path)) is not None}
        if not marks:
            raise NotThereError(f"{self._directory} has no {EVENTS}: nothing is known of its engines over time")
        if any(self._is_replaced(path, marks.get(path)) for path in self._marks):
            self._begin()
        if self._made is None or marks != self._marks:
            try:
                self._read_on(path for path in marks if marks[path] != self._marks.get(path))
            except StoreError:
                self._begin()
                raise
            self._made = self._clock.page()
        self._marks = marks
        return self._made

    def _is_replaced(self, path: Path, mark: Mark | None) -> bool:
        return mark is None or mark.inode != self._marks[path].inode or mark.size_bytes < self._offsets[path]

    def _read_on(self, paths: Iterable[Path]) -> None:
        # Several logs in the order of their times, as a merge writes them.
        layout = self._layout = self._layout or layout_of(self._directory)
        for line in merge(*map(self._new_lines, paths), key=lambda line: line[:_TIME_BYTES]):
            if layout.has_event(line):
                self._clock.add(line)

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        tail = b""
        for chunk in self._disk.chunks(path, self._offsets.setdefault(path, 0)):
            *lines, tail = (tail + chunk).split(b"\n")
            for line in lines:
                yield line
                self._offsets[path] += len(line) + 1
