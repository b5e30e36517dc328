"""What pages ask for, whether they are served or published, answered from a run directory or a grid.

A request names a combination by its slug and a conversation by its number or its task id. Both are looked up among what
is there, so no text of a request becomes a path.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import MacRunnerError, RunDirectoryError
from mac_runner.reports.turns import readable
from mac_runner.runs.recorded import parent_conversation, trust
from mac_runner.runs.replays import Replays
from mac_runner.store import GridRecord, has_run, is_grid, read_grid, read_standing
from mac_runner.store.run_state import never
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
from mac_runner.viewer.follower import EngineLog, Follower, NotThereError
from mac_runner.views.compare import compare_view
from mac_runner.views.conversation import whole_view
from mac_runner.views.flows import chosen_rows, flow_page, fork_trees
from mac_runner.views.inspector import PromptOf, turn_views
from mac_runner.views.perspective import perspective
from mac_runner.views.run_page import grid_page, run_page

Key = TypeVar("Key")
Value = TypeVar("Value")

SLICE_S: Final = 0.1
"""A server reads for so long at a time; requests are answered in between."""
PLAYED_MAX: Final = 20_000
"""Conversations are kept as they were played, of so many events and turns together."""


class Text(NamedTuple):
    """A conversation whose transcript can be searched."""

    number: int
    task_id: str
    path: Path


class Pulse(NamedTuple):
    """How a run has changed. `touched` are the numbers of conversations with replies since the last pulse."""

    version: int
    rows: int | None
    """How long the list is; None for a grid, which has none."""
    touched: frozenset[int]
    state: object
    """Changes when the head of the run may have."""
    is_reading: bool = False
    """Whether some of it was not read yet."""


class Recent(Generic[Key, Value]):
    """Values by key, whose sizes are `most` together at most; the one that was not used for longest goes first.

    What was put last stays, whatever its size.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key, used now."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Key, value: Value, size: int = 1) -> Value:
        """Keep a value; returns it."""
        _, before = self._values.pop(key, (None, 0))
        self._values[key] = value, size
        self._size += size - before
        while len(self._values) > 1 and self._size > self._most:
            _, (_, gone) = self._values.popitem(last=False)
            self._size -= gone
        return value


class Played:
    """A conversation that was asked for, with what was made of it. `mark` changes when it does."""

    def __init__(
        self,
        mark: object,
        transcript: JsonObject,
        whole: ConversationView,
        read_traces: Callable[[], Traces],
        replays: Callable[[], Replays],
    ) -> None:
        self.mark = mark
        self.transcript = transcript
        self.whole = whole
        self._seats: dict[str, ConversationView] = {}
        self._read_traces = read_traces
        self._replays = replays

    def view(self, seat: str) -> ConversationView:
        """The whole, or what a seat saw. Raises ConfigError when no agent has that name."""
        if seat and seat not in self._seats:
            self._seats[seat] = perspective(self.whole, seat)
        return self._seats[seat] if seat else self.whole

    @cached_property
    def prompts(self) -> tuple[PromptOf | None, str]:
        """What gives the prompts of its turns, or why there are none."""
        try:
            return self._replays().prompts(self.transcript), ""
        except MacRunnerError as fault:
            return None, str(fault)

    def traces(self) -> tuple[Traces, str]:
        """Its token traces, and why there are none if they cannot be read."""
        try:
            return self._read_traces(), ""
        except MacRunnerError as fault:
            return {}, f"its token traces are not shown: {fault}"


class RunSource:
    """The run or grid in a directory.

    `slug` names a combination of a grid, and is empty otherwise. All methods but `engines` are called on one thread,
    and `engines` on another. They raise NotThereError for a name that is not there, RunDirectoryError for damage.

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
        self._runs: dict[str, Follower] = {}
        self._logs: dict[str, EngineLog] = {}
        self._played = Recent[tuple[str, str], Played](PLAYED_MAX)

    # The run.

    def run(self, slug: str) -> RunPage:
        """The head of the run, or of a combination."""
        grid = None if slug else self._grid()
        if grid is not None:
            return self._grid_page(grid)
        follower = self._run(slug)
        standing, now = follower.standing(), self._clock.utc_now()
        summary = follower.summary(self._end(), is_live=bool(standing.holder.is_alive))
        resolved, how, is_reading = follower.run.resolved, follower.table.how, follower.is_reading
        return run_page(standing, resolved, how, now, name=slug, summary=summary, is_reading=is_reading)

    def index(self, slug: str, since: int, version: int | None, most: int | None = None) -> IndexColumns:
        """The list of conversations from row `since` on, `most` rows of it; all where it is of another version."""
        follower = self._run(slug)
        table = follower.table
        since = since if version in (None, table.version) else 0
        if since or most is not None:
            return table.columns(since, most)
        known = follower.columns
        if known is None or (known.version, known.rows) != (table.version, table.rows):
            known = follower.columns = table.columns()
        return known

    def engines(self, slug: str) -> EnginesPage:
        """What the engines did over time."""
        directory = self._directory(slug)
        if slug not in self._logs:
            self._logs[slug] = EngineLog(directory)
        return self._logs[slug].page()

    def texts(self, slug: str) -> Sequence[Text]:
        """The conversations that have ended, in the order of their numbers."""
        contents = self._run(slug).run
        ended = sorted((ending.task_index, task_id) for task_id, ending in contents.state.endings.items())
        return [Text(number, task_id, contents.layout.transcript(task_id)) for number, task_id in ended]

    def pulse(self, slug: str) -> Pulse:
        grid = None if slug else self._grid()
        if grid is not None:
            runs = self._begun(grid).values()
            is_reading = any(follower.is_reading for follower in runs)
            return Pulse(0, None, frozenset(), tuple(follower.state() for follower in runs), is_reading)
        follower = self._run(slug)
        table, touched = follower.table, follower.take_touched()
        return Pulse(table.version, table.rows, touched, follower.state(), follower.is_reading)

    def is_reading(self, slug: str) -> bool:
        return self._run(slug).is_reading

    def read_on(self) -> bool:
        """Read a part of what was not read of the runs; False where all is read.

        Other answers are of what was read until then. Raises nothing: what cannot be read fails where it is asked for.
        """
        if not self._runs:
            with suppress(MacRunnerError):
                grid = self._grid()
                if grid is None:
                    self._run("")
                else:
                    self._begun(grid)
        for follower in self._runs.values():
            with suppress(MacRunnerError):
                if follower.go_on(self._end()):
                    return True
        return False

    def let_go(self) -> None:
        """Close the files of what is half read; it is read anew if anybody asks again."""
        for follower in self._runs.values():
            follower.let_go()

    # Conversations.

    def conversation(self, slug: str, name: str, seat: str) -> ConversationView:
        """A conversation, whole or as a seat saw it. In a fork, the task id of a parent names that too."""
        played = self._conversation(slug, name)
        with readable(played.whole.task_id):
            return played.view(seat)

    def turn(self, slug: str, name: str, key: str, seat: str) -> TurnView:
        played = self._conversation(slug, name)
        with readable(played.whole.task_id):
            prompt_of, missing = played.prompts
            traces, fault = played.traces()
            found = next(
                turn_views(
                    played.transcript, played.view(seat), prompt_of, only=key, prompt_missing=missing, traces=traces
                )
            )
            return replace(found, faults=(*found.faults, fault)) if fault and not seat else found

    def compare(self, slug: str, left: str, right: str, other: str) -> CompareView:
        """Two conversations beside each other; with `other` the right one is of that combination."""
        ours, theirs = self._conversation(slug, left), self._conversation(other or slug, right)
        for each in (ours, theirs):
            if each.whole.note and each.whole.status != "open":
                raise RunDirectoryError(each.whole.note)
        with readable(f"{ours.whole.task_id} or {theirs.whole.task_id}"):
            return compare_view(ours.transcript, theirs.transcript, ours.whole, theirs.whole)

    def forks(self, slug: str, name: str) -> Sequence[ForkTree]:
        """The forks of each parent; with `name` only of that parent, or of the parent of that conversation."""
        follower = self._run(slug)
        run = follower.run
        if run.fork is None:
            return ()
        if not name:
            return fork_trees(run.rows())
        of_parent = [tree for tree in fork_trees(run.rows()) if tree.parent == name]
        return of_parent or fork_trees(run.rows(), run.index_of(follower.task_id(name)))

    def flow(self, slug: str, only: str) -> FlowPage:
        """The stance flow over the conversations that a filter chooses."""
        follower = self._run(slug)
        table = follower.table
        asked = table.version, table.rows, only
        if follower.flow is None or follower.flow[0] != asked:
            rows = follower.run.rows_in_task_order()
            follower.flow = asked, flow_page(chosen_rows(rows, table.how, only))
        return follower.flow[1]

    def _conversation(self, slug: str, name: str) -> Played:
        follower = self._run(slug)
        try:
            task_id = follower.task_id(name)
        except NotThereError:
            if (parent := self._parent(slug, follower, name)) is None:
                raise
            return parent
        mark, known = follower.mark(task_id), self._played.get((slug, task_id))
        if known is None or known.mark != mark:
            with _uncollected():
                transcript = follower.transcript(task_id)
                traces = partial(follower.traces, task_id, transcript)
                known = self._keep((slug, task_id), mark, transcript, str(follower.directory), traces)
        return known

    def _parent(self, slug: str, follower: Follower, name: str) -> Played | None:
        """The conversation of another run that forks of this one leave; None for any other."""
        fork = follower.run.fork
        found = next((parent for parent in (() if fork is None else fork.parents) if parent["task"] == name), None)
        if found is None:
            return None
        if (known := self._played.get((slug, name))) is None:
            contents, transcript = parent_conversation(follower.run, name)
            known = self._keep((slug, name), None, transcript, str(found["run"]), partial(contents.traces, transcript))
        return known

    def _keep(
        self, key: tuple[str, str], mark: object, transcript: JsonObject, command: str, traces: Callable[[], Traces]
    ) -> Played:
        with readable(key[1]):
            view = whole_view(transcript, command=command)
        made = Played(mark, transcript, view, traces, lambda: self._run(key[0]).replays)
        return self._played.put(key, made, len(view.events) + len(view.turns))

    # Directories.

    def _run(self, slug: str) -> Follower:
        directory = self._directory(slug)
        if slug not in self._runs:
            if self._is_trusted:
                trust([directory])
            self._runs[slug] = Follower(directory, self._clock)
        follower = self._runs[slug]
        if not follower.is_reading or not follower.is_begun or self._slice_s is None:
            follower.look(self._end())
        return follower

    def _end(self) -> Callable[[], bool]:
        """Says when a slice that begins now is over."""
        if self._slice_s is None:
            return never
        end_s = self._clock.monotonic_s() + self._slice_s
        return lambda: self._clock.monotonic_s() >= end_s

    def _grid(self) -> GridRecord | None:
        return read_grid(self.directory) if is_grid(self.directory) else None

    def _begun(self, grid: GridRecord) -> dict[str, Follower]:
        """The combinations that have begun, as they are now."""
        slugs = [entry.slug for entry in grid.entries if has_run(self.directory / entry.slug)]
        return {slug: self._run(slug) for slug in slugs}

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
        runs = self._begun(grid)
        standings = {self.directory / slug: follower.standing() for slug, follower in runs.items()}
        standing = read_standing(self.directory, begun=standings.get)
        is_live = bool(standing.holder.is_alive)
        is_over = self._end()
        found = {slug: follower.summary(is_over, is_live=is_live) for slug, follower in runs.items()}
        is_reading = any(follower.is_reading for follower in runs.values())
        resolved = next((follower.run.resolved for follower in runs.values()), {})
        summaries = {slug: summary for slug, summary in found.items() if summary is not None}
        return grid_page(standing, resolved, self._clock.utc_now(), summaries=summaries, is_reading=is_reading)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: it would look through a large conversation, which has no cycles, again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
