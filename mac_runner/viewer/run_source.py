"""What pages ask for, answered from a run directory or a grid.

A request names a combination by its slug and a conversation by its number or its task id. Both are looked up among what
is there, so no text of a request becomes a path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import MacRunnerError, RunDirectoryError
from mac_runner.reports.turns import readable
from mac_runner.runs.recorded import parent_conversation
from mac_runner.runs.replays import Prompts
from mac_runner.runs.trust import trust
from mac_runner.store import GridEntry, GridRecord, has_run, is_grid, read_grid, read_standing
from mac_runner.store.tail import never
from mac_runner.store.traces import Traces
from mac_runner.types import JsonObject
from mac_runner.view_model import (
    CompareView,
    ConversationView,
    EnginesPage,
    FlowPage,
    ForkTree,
    IndexColumns,
    RunPage,
    TurnView,
)
from mac_runner.viewer.engine_log import EngineLog
from mac_runner.viewer.follower import Follower
from mac_runner.viewer.recent import Recent
from mac_runner.viewer.source import NotThereError, Pulse, Text
from mac_runner.viewer.summaries import SummaryKeeper
from mac_runner.views.compare import compare_view
from mac_runner.views.conversation import whole_view
from mac_runner.views.filter import chosen_rows
from mac_runner.views.flows import flow_page
from mac_runner.views.forks import fork_trees
from mac_runner.views.inspector import PromptOf, turn_views
from mac_runner.views.perspective import perspective
from mac_runner.views.run_page import grid_page, run_page

SLICE_S: Final = 0.1
"""A server reads for so long at a time; requests are answered in between."""
PLAYED_MAX: Final = 20_000
"""Conversations are kept as they were played, of so many events and turns together."""


class Played(NamedTuple):
    """A conversation that was asked for, with what was made of it."""

    mark: object
    transcript: JsonObject
    whole: ConversationView
    seats: dict[str, ConversationView]
    """What seats saw of it that a page asked for."""
    prompts: list[Prompts | MacRunnerError]
    """What its turns were sent, or why that is not known; empty until a page asks."""
    traces: Callable[[], Traces]
    """Reads its token traces."""

    def view(self, seat: str) -> ConversationView:
        """The whole, or what a seat saw. Raises ConfigError when no agent has that name."""
        if seat and seat not in self.seats:
            self.seats[seat] = perspective(self.whole, seat)
        return self.seats[seat] if seat else self.whole


class RunSource:
    """The run or grid in a directory.

    With `is_awaited` it may begin later. With `is_trusted` the code that it names is imported when it is first read.
    With `slice_s` it is read in parts that take so many seconds: the first request and each `read_on` read one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock | None = None,
        is_awaited: bool = False,
        is_trusted: bool = False,
        slice_s: float | None = None,
    ) -> None:
        self.directory = directory
        self._clock = clock or SystemClock()
        self._is_awaited = is_awaited
        self._is_trusted = is_trusted
        self._slice_s = slice_s
        self._runs: dict[str, _Run] = {}
        self._logs: dict[str, EngineLog] = {}
        self._played = Recent[tuple[str, str], Played](PLAYED_MAX)

    # The run.

    def run(self, slug: str) -> RunPage:
        grid = None if slug else self._grid()
        if grid is not None:
            return self._grid_page(grid)
        run = self._run(slug)
        standing, now = run.follower.standing(), self._clock.utc_now()
        summary = run.summary(self._end(), is_live=bool(standing.holder.is_alive))
        resolved, how, is_reading = run.follower.run.resolved, run.follower.table.how, run.follower.is_reading
        return run_page(standing, resolved, how, now, name=slug, summary=summary, is_reading=is_reading)

    def index(self, slug: str, since: int, version: int | None, most: int | None = None) -> IndexColumns:
        run = self._run(slug)
        table = run.follower.table
        since = since if version in (None, table.version) else 0
        if since or most is not None:
            return table.columns(since, most)
        if run.columns is None or (run.columns.version, run.columns.rows) != (table.version, table.rows):
            run.columns = table.columns()
        return run.columns

    def engines(self, slug: str) -> EnginesPage:
        directory = self._directory(slug)
        if slug not in self._logs:
            self._logs[slug] = EngineLog(directory)
        return self._logs[slug].page()

    def texts(self, slug: str) -> Sequence[Text]:
        contents = self._run(slug).follower.run
        ended = sorted((ending.task_index, task_id) for task_id, ending in contents.state.endings.items())
        return [Text(number, task_id, contents.layout.transcript(task_id)) for number, task_id in ended]

    def pulse(self, slug: str) -> Pulse:
        grid = None if slug else self._grid()
        if grid is not None:
            runs = [self._run(entry.slug) for entry in self._begun(grid)]
            is_reading = any(run.follower.is_reading for run in runs)
            return Pulse(0, None, frozenset(), tuple(run.state() for run in runs), is_reading)
        run = self._run(slug)
        table, touched = run.follower.table, run.follower.take_touched()
        return Pulse(table.version, table.rows, touched, run.state(), run.follower.is_reading)

    def is_reading(self, slug: str) -> bool:
        return self._run(slug).follower.is_reading

    def let_go(self) -> None:
        for run in self._runs.values():
            run.summaries.let_go()
            run.follower.let_go()

    def read_on(self) -> bool:
        if not self._runs:
            with suppress(MacRunnerError):
                self._begin()
        for run in self._runs.values():
            with suppress(MacRunnerError):
                if run.follower.is_reading:
                    run.follower.look(self._end())
                    return True
                if run.summaries.make_on(self._end()):
                    return True
        return False

    def _begin(self) -> None:
        """Begin to read the run, or the combinations of the grid."""
        grid = self._grid()
        for slug in [""] if grid is None else [entry.slug for entry in self._begun(grid)]:
            self._run(slug)

    # Conversations.

    def conversation(self, slug: str, name: str, seat: str) -> ConversationView:
        played = self._conversation(slug, name)
        with readable(played.whole.task_id):
            return played.view(seat)

    def turn(self, slug: str, name: str, key: str, seat: str) -> TurnView:
        played = self._conversation(slug, name)
        with readable(played.whole.task_id):
            prompt_of, missing = self._prompts(slug, played)
            traces, fault = _traces(played)
            found = next(
                turn_views(
                    played.transcript, played.view(seat), prompt_of, only=key, prompt_missing=missing, traces=traces
                )
            )
            return replace(found, faults=(*found.faults, fault)) if fault and not seat else found

    def compare(self, slug: str, left: str, right: str, other: str) -> CompareView:
        ours, theirs = self._conversation(slug, left), self._conversation(other or slug, right)
        for each in (ours, theirs):
            if each.whole.note and each.whole.status != "open":
                raise RunDirectoryError(each.whole.note)
        with readable(f"{ours.whole.task_id} or {theirs.whole.task_id}"):
            return compare_view(ours.transcript, theirs.transcript, ours.whole, theirs.whole)

    def forks(self, slug: str, name: str) -> Sequence[ForkTree]:
        follower = self._run(slug).follower
        run = follower.run
        if run.fork is None:
            return ()
        if not name:
            return fork_trees(run.rows())
        of_parent = [tree for tree in fork_trees(run.rows()) if tree.parent == name]
        return of_parent or fork_trees(run.rows(), run.index_of(follower.task_id(name)))

    def flow(self, slug: str, only: str) -> FlowPage:
        run = self._run(slug)
        table = run.follower.table
        asked = table.version, table.rows, only
        if run.flow is None or run.flow[0] != asked:
            rows = run.follower.run.rows_in_task_order()
            run.flow = asked, flow_page(chosen_rows(rows, table.how, only))
        return run.flow[1]

    def _conversation(self, slug: str, name: str) -> Played:
        follower = self._run(slug).follower
        try:
            task_id = follower.task_id(name)
        except NotThereError:
            if (parent := self._parent(slug, follower, name)) is None:
                raise
            return parent
        mark, known = follower.mark(task_id), self._played.get((slug, task_id))
        if known is None or known.mark != mark:
            transcript = follower.transcript(task_id)
            with readable(task_id):
                view = whole_view(transcript, command=str(follower.directory))
            made = Played(mark, transcript, view, {}, [], partial(follower.traces, task_id, transcript))
            known = self._played.put((slug, task_id), made, len(view.events) + len(view.turns))
        return known

    def _parent(self, slug: str, follower: Follower, name: str) -> Played | None:
        """The conversation of another run that forks of this one leave; None for any other."""
        fork = follower.run.fork
        found = next((parent for parent in (() if fork is None else fork.parents) if parent["task"] == name), None)
        if found is None:
            return None
        if (known := self._played.get((slug, name))) is None:
            contents, transcript = parent_conversation(follower.run, name)
            with readable(name):
                view = whole_view(transcript, command=str(found["run"]))
            made = Played(None, transcript, view, {}, [], partial(contents.traces, transcript))
            known = self._played.put((slug, name), made, len(view.events) + len(view.turns))
        return known

    def _prompts(self, slug: str, played: Played) -> tuple[PromptOf | None, str]:
        """What gives the prompts of a conversation, or why there are none."""
        if not played.prompts:
            try:
                played.prompts.append(self._run(slug).follower.replays.prompts(played.transcript))
            except MacRunnerError as fault:
                played.prompts.append(fault)
        found = played.prompts[0]
        return (None, str(found)) if isinstance(found, MacRunnerError) else (found, "")

    # Directories.

    def _run(self, slug: str) -> _Run:
        """A run as it is now."""
        directory = self._directory(slug)
        if slug not in self._runs:
            if self._is_trusted:
                trust([directory])
            self._runs[slug] = _Run(Follower(directory), SummaryKeeper(self._clock))
        run = self._runs[slug]
        if not run.follower.is_reading or not run.follower.is_begun or self._slice_s is None:
            run.follower.look(self._end())
        return run

    def _end(self) -> Callable[[], bool]:
        """Says when a slice that begins now is over."""
        if self._slice_s is None:
            return never
        end_s = self._clock.monotonic_s() + self._slice_s
        return lambda: self._clock.monotonic_s() >= end_s

    def _grid(self) -> GridRecord | None:
        return read_grid(self.directory) if is_grid(self.directory) else None

    def _begun(self, grid: GridRecord) -> list[GridEntry]:
        return [entry for entry in grid.entries if has_run(self.directory / entry.slug)]

    def _directory(self, slug: str) -> Path:
        """The directory of a combination, or of the run."""
        grid = self._grid()
        if grid is not None:
            return self.directory / self._slug(grid, slug)
        if slug:
            raise NotThereError(f"{self.directory} is a single run, without combinations: leave run={slug!r:.60} out")
        if self._is_awaited and not has_run(self.directory):
            raise NotThereError("the run has not begun yet")
        return self.directory

    def _slug(self, grid: GridRecord, slug: str) -> str:
        found = next((entry.slug for entry in grid.entries if entry.slug == slug), None)
        if found is None:
            asked = f"no combination of the grid is called {slug!r:.60}" if slug else "this is of one combination"
            raise NotThereError(f"{asked}; name one with run=")
        if not has_run(self.directory / found):
            raise NotThereError(f"the combination {found} has not begun yet")
        return found

    def _grid_page(self, grid: GridRecord) -> RunPage:
        runs = {entry.slug: self._run(entry.slug) for entry in self._begun(grid)}
        standings = {self.directory / slug: run.follower.standing() for slug, run in runs.items()}
        standing = read_standing(self.directory, begun=standings.get)
        is_live = bool(standing.holder.is_alive)
        is_over = self._end()
        found = {slug: run.summary(is_over, is_live=is_live) for slug, run in runs.items()}
        is_reading = any(run.follower.is_reading for run in runs.values())
        resolved = next((run.follower.run.resolved for run in runs.values()), {})
        summaries = {slug: summary for slug, summary in found.items() if summary is not None}
        return grid_page(standing, resolved, self._clock.utc_now(), summaries=summaries, is_reading=is_reading)


def _traces(played: Played) -> tuple[Traces, str]:
    """The token traces of a conversation, and why there are none if they cannot be read."""
    try:
        return played.traces(), ""
    except MacRunnerError as fault:
        return {}, f"its token traces are not shown: {fault}"


class _Run:
    """What is kept of one run directory."""

    def __init__(self, follower: Follower, summaries: SummaryKeeper) -> None:
        self.follower = follower
        self.summaries = summaries
        self.columns: IndexColumns | None = None
        """The whole list as it was last asked for."""
        self.flow: tuple[object, FlowPage] | None = None
        """The last flow, and what was asked for."""

    def state(self) -> object:
        """Changes when the head of the run may have."""
        return self.follower.state(), self.summaries.made

    def summary(self, is_over: Callable[[], bool], *, is_live: bool) -> JsonObject | None:
        """Its summary; while it is being read, only one that is written."""
        contents = self.follower.run
        if self.follower.is_reading:
            return None if is_live else self.summaries.written(contents)
        return self.summaries.summary(contents, is_over, is_live=is_live)
