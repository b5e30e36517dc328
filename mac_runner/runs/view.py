"""A run, a grid or a list of runs as Python sees them: flat tables as Arrow, and conversations one by one.

Nothing is locked and nothing is written, so a run can be looked at while it plays. What is seen is the run as it was
when it was opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from mac_runner.clock import SystemClock
from mac_runner.data.files import arrow_batch, arrow_schema, batches, cells_of, check_arrow, size_chars
from mac_runner.data.rollouts import Rollout
from mac_runner.data.sources import Source, Sources
from mac_runner.data.tables import OPEN_COLUMN, Ended, FlatTable, metadata_of, open_rows, schema_json
from mac_runner.data.training import ROLLOUTS, check_format
from mac_runner.errors import ConfigError
from mac_runner.flat import Cells
from mac_runner.metrics import EndedAgent, EndedConversation, EndedTurn, ended_conversation
from mac_runner.problems import suggestion
from mac_runner.reports import find_turn, status_json
from mac_runner.reports.turns import check_seat, json_object, objects
from mac_runner.rewards import REWARD
from mac_runner.runs.maintenance import Verified, verify_all
from mac_runner.runs.recorded import sent_prompt
from mac_runner.runs.recorded import trust as import_code
from mac_runner.runs.summary import run_sources, summary_of, training_run
from mac_runner.store import read_standing
from mac_runner.store.mirror import NOT_HERE, is_url
from mac_runner.store.rows import DoneRow
from mac_runner.structs import decode, encode
from mac_runner.types import JsonObject, Prompt
from mac_runner.view_model import EventView
from mac_runner.views.conversation import record_events
from mac_runner.views.perspective import seen
from mac_runner.views.text import transcript_text

if TYPE_CHECKING:
    import pyarrow

PathLike: TypeAlias = str | os.PathLike[str]
TURNS: Final = "turns"
CONVERSATIONS: Final = "conversations"
_LEFT_OUT: Final = frozenset({"outcome", "counts", "timing"})
"""Keys of an index row that its transcript has too: they are not kept for every conversation."""


def open_run(path: PathLike | Sequence[PathLike], *, trust: bool = False) -> RunView:
    """A run directory, a grid, or a list of them, to be read. Takes no lock.

    With `trust` the code that the runs name is imported, where their environment is not built in: prompts need it.
    Raises RunDirectoryError for what is not a run directory.
    """
    paths = paths_of(path)
    if trust:
        import_code(paths)
    return RunView(paths)


def directory_of(name: str, path: PathLike) -> Path:
    """A directory that an argument names. Raises ConfigError for an empty text, which Path takes for `.`, and a URL."""
    if not os.fspath(path):
        raise ConfigError(f"{name}: is empty; name a directory, or '.' for the current one")
    if is_url(os.fspath(path)):
        raise ConfigError(f"{name}: {NOT_HERE}; give a directory on this machine")
    return Path(path)


def paths_of(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """One path, or several."""
    return [Path(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]


class RunView:
    """The conversations that had ended when it was opened, in task order.

    It is pickled as its paths, made absolute. Another process opens it at the first question; there the paths have to
    lead to the same directories.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = tuple(directories)
        # Now, so that what is no run directory is refused, and what is seen is the run of now.
        self._sources  # noqa: B018

    def __getstate__(self) -> dict[str, object]:
        return {"directories": tuple(path.resolve() for path in self.directories)}

    @cached_property
    def _sources(self) -> Sources:
        return run_sources(self.directories)

    def __repr__(self) -> str:
        return f"RunView({', '.join(map(str, self.directories))}: {len(self)} conversations)"

    def __len__(self) -> int:
        return sum(len(run.contents.state.endings) for run in self._sources.runs)

    def __iter__(self) -> Iterator[RecordedConversation]:
        for run in self._sources.runs:
            for done in run.contents.json_rows_in_task_order():
                yield RecordedConversation(run, done)

    # Tables.

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that there are, without the formats for trainers that a run cannot give."""
        return tuple(name for name in self._sources.tables if all(_gives(run, name) for run in self._sources.runs))

    @property
    def schema(self) -> JsonObject:
        """What the tables and their columns mean, as `_schema.json` says it."""
        return schema_json(self._sources.tables, self._sources.prefix)

    def table(self, name: str, columns: Collection[str] | None = None) -> pyarrow.Table:
        """A table, or some of its columns: what those do not need is not read.

        The columns of `conversations` that need transcripts are read only if they are named. Raises ConfigError for a
        table or a column that is not there, RunDirectoryError naming a transcript that is damaged.
        """
        return self._table(name, columns)

    def conversations(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """One row for each conversation."""
        return self._table(CONVERSATIONS, columns)

    def agents(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """One row for each participant of a conversation."""
        return self._table("agents", columns)

    def turns(self, columns: Collection[str] | None = None, *, open: bool = False) -> pyarrow.Table:
        """One row for each reply. With `open` also those of conversations that have not ended, marked `is_open`."""
        return self._table(TURNS, columns, is_open=open)

    def events(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """What happened, and who learned of it."""
        return self._table("events", columns)

    def claims(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """Town of Salem: what players said is so."""
        return self._table("claims", columns)

    def votes(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """Town of Salem: nominations and judgements."""
        return self._table("votes", columns)

    def deaths(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """Town of Salem: the deaths."""
        return self._table("deaths", columns)

    def answers(self, columns: Collection[str] | None = None) -> pyarrow.Table:
        """Discussions: what each agent answered in each round."""
        return self._table("answers", columns)

    def _table(self, name: str, columns: Collection[str] | None, *, is_open: bool = False) -> pyarrow.Table:
        if isinstance(columns, str):
            raise ConfigError(f"columns: {columns!r} is one name; give a list: [{columns!r}]")
        check_arrow(f"table {name!r}")
        sources = self._sources
        if name not in sources.tables:
            raise ConfigError(f"there is no table {name!r}{suggestion(name, sources.tables)}")
        for run in sources.runs:
            _check(run, name)
        known_columns = {**sources.columns(name), **({"is_open": OPEN_COLUMN} if is_open else {})}
        table = sources.tables[name]
        chosen = [*columns] if columns is not None else _default_columns(table, known_columns)
        for column in chosen:
            if column not in known_columns:
                raise ConfigError(f"table {name!r} has no column {column!r}{suggestion(column, known_columns)}")
        import pyarrow

        columns_chosen = {one: known_columns[one] for one in chosen}
        schema = arrow_schema(columns_chosen, metadata_of(table, known_columns))
        if table.of_index.union(sources.prefix).issuperset(chosen):
            held = self._index_cells(name, chosen)
        else:
            rows = self._rows(name, frozenset(chosen), is_open=is_open)
            held = (cells_of(batch, chosen) for batch in batches(rows, size_chars))
        return pyarrow.Table.from_batches((arrow_batch(columns_chosen, cells, schema) for cells in held), schema)

    def _index_cells(self, name: str, chosen: Sequence[str]) -> Iterator[Mapping[str, Sequence[Cells]]]:
        """The cells of columns that need no transcript, a batch of conversations at a time."""
        for run in self._sources.runs:
            if (table := run.tables.get(name)) is None or table.index_cells is None:
                continue
            of_table = table.of_index.intersection(chosen)
            rows = run.contents.json_rows_in_task_order()
            # What a batch holds of a row is its JSON and, mostly, the same again in cells.
            for batch in batches(rows, lambda row: 2 * len(row.json)):
                found = table.index_cells(batch, run.contents.resolved, of_table)
                yield {one: found[one] if one in of_table else [run.prefix.get(one)] * len(batch) for one in chosen}

    def _rows(self, name: str, wanted: frozenset[str], *, is_open: bool) -> Iterator[Mapping[str, Cells]]:
        for run in self._sources.runs:
            if (table := run.tables.get(name)) is None:
                continue
            beside = {**run.prefix, "is_open": False} if is_open else run.prefix
            of_table = wanted.intersection(table.columns)
            for ended in run.conversations():
                for row in table.rows(ended, of_table):
                    yield {**row, **beside} if beside else row
            if is_open:
                yield from ({**run.prefix, **row, "is_open": True} for row in open_rows(run.contents))

    # Conversations.

    def conversation(self, name: int | str) -> RecordedConversation:
        """One conversation: its number from 0, its task id, or in a grid or list `combination/number`.

        Raises ConfigError where it has not ended, or the name is that of several.
        """
        found = [*self._named(str(name))]
        if len(found) == 1:
            run, task_id = found[0]
            return RecordedConversation(run, self._index[run.name][task_id])
        if found:
            names = ", ".join(f"{run.name}/{name}" for run, _ in found[:3])
            raise ConfigError(f"conversation {name!r} is in several runs; name one, such as {names}")
        planned = sum(run.contents.counts.planned for run in self._sources.runs)
        raise ConfigError(
            f"no conversation that has ended is called {name!r} or has this number (from 0); "
            f"{len(self)} of {planned} have ended"
        )

    def of_row(self, row: JsonObject) -> RecordedConversation:
        """The conversation of an index row of a single run, also one that ended after the run was opened."""
        (run,) = self._sources.runs
        return RecordedConversation(run, DoneRow.of(row))

    def _named(self, name: str) -> Iterator[tuple[Source, str]]:
        for run in self._sources.runs:
            endings = run.contents.state.endings
            own = name.removeprefix(f"{run.name}/") if run.name else name
            if own in endings:
                yield run, own
            elif own.isascii() and own.isdecimal():
                number = int(own)
                yield from ((run, one) for one, ending in endings.items() if ending.task_index == number)

    @cached_property
    def _index(self) -> Mapping[str, Mapping[str, DoneRow]]:
        """By run, what is kept of the index row of each conversation."""
        return {
            run.name: {row.task_id: DoneRow(row.task_id, _kept(row)) for row in run.contents.json_rows()}
            for run in self._sources.runs
        }

    # The run.

    @property
    def experiment(self) -> JsonObject:
        """The experiment as it was recorded; of a grid or list that of each run, by name."""
        return self._each(lambda run: run.contents.resolved)

    @cached_property
    def summary(self) -> JsonObject:
        """What `summary.json` holds; of a grid or list that of each run, by name. Computed from the journal."""
        return self._each(lambda run: summary_of(run.contents))

    @property
    def stopped_by(self) -> str | None:
        """Which limit of its experiment the run or the grid stands at now, in words; of a list those of all."""
        found = (_standing(directory).get("stopped_by") for directory in self.directories)
        return "; ".join(map(str, filter(None, found))) or None

    def _each(self, of: Callable[[Source], JsonObject]) -> JsonObject:
        runs = self._sources.runs
        return of(runs[0]) if len(runs) == 1 and not runs[0].name else {run.name: of(run) for run in runs}

    def verify(self) -> list[Verified]:
        """Play every conversation again and compare: what was found in each directory."""
        return [each for directory in self.directories for each in verify_all(directory, _no_bar)]

    def standing(self) -> JsonObject:
        """How far the run is now, as `mac-run status --json` says it; of a list that of each, by directory."""
        found = {str(directory): _standing(directory) for directory in self.directories}
        return next(iter(found.values())) if len(found) == 1 else {**found}


def _check(run: Source, name: str) -> None:
    """Raise ConfigError where a run has not got what a table for trainers needs."""
    if name in run.tables and (training := run.tables[name].training) is not None:
        training.check()


def _gives(run: Source, name: str) -> bool:
    try:
        _check(run, name)
    except ConfigError:
        return False
    return True


def _default_columns(table: FlatTable, known: Iterable[str]) -> list[str]:
    """All columns; of a table that an index has, those that need no transcript."""
    left_out = table.columns.keys() - table.of_index if table.of_index else frozenset()
    return [name for name in known if name not in left_out]


def _kept(row: DoneRow) -> bytes:
    keys = decode(row.json, dict[str, msgspec.Raw])
    return encode({key: value for key, value in keys.items() if key not in _LEFT_OUT})


def _no_bar(_text: str, _steps: int) -> AbstractContextManager[Callable[[], object]]:
    return nullcontext(lambda: None)


def _standing(directory: Path) -> JsonObject:
    return status_json(read_standing(directory), SystemClock().utc_now())


class RecordedConversation(Ended):
    """One conversation that has ended. Its transcript is read when it is first needed."""

    def __init__(self, run: Source, done: DoneRow) -> None:
        super().__init__(run.contents, done, run.environment, run.check_rewards)
        self._run = run

    def __repr__(self) -> str:
        return f"RecordedConversation({self.task_id}: {self.status})"

    def __reduce__(self) -> tuple[object, ...]:
        return _recorded_in, (self._run.contents.layout.directory.resolve(), self.done)

    @property
    def status(self) -> str:
        """`finished` or `failed`."""
        return str(self.row["status"])

    @property
    def failure(self) -> str | None:
        """Why it failed."""
        failure = self.row.get("failure")
        return None if failure is None else str(failure)

    @cached_property
    def ended(self) -> EndedConversation:
        """The conversation as a metric sees it. Shares nothing with the transcript."""
        return ended_conversation(self.transcript)

    @property
    def outcome(self) -> JsonObject | None:
        """What came of it; None where it failed."""
        return self.ended.outcome

    @cached_property
    def rewards(self) -> dict[str, dict[str, float]]:
        """By agent, its rewards by name, and what they come to as `reward`; nothing for a conversation that failed.

        An agent has no `reward` where a part of it is missing (`rewards.total`), such as a shaped one that raised.
        Raises ConfigError where `rewards.total` names a reward that no agent of the whole run has.
        """
        return {
            agent: {**one.by_name, **({} if one.total is None else {REWARD: one.total})}
            for agent, one in self.worth.items()
        }

    @property
    def agents(self) -> tuple[EndedAgent, ...]:
        """Who took part."""
        return self.ended.agents

    @property
    def events(self) -> tuple[JsonObject, ...]:
        """What happened: objects with `when`, `text`, `audience` ("all", or a list of names) and `data`."""
        return self.ended.events

    @property
    def turns(self) -> tuple[EndedTurn, ...]:
        """The replies, in order."""
        return self.ended.turns

    def rollouts(self, only: Sequence[str] = ()) -> list[Rollout]:
        """Its replies as a trainer reads them."""
        if isinstance(only, str):
            raise ConfigError(f"only: {only!r} is one name; give a list: [{only!r}]")
        run = training_run(self._run, only)
        check_format(run, ROLLOUTS)
        return run.rollouts(self, self.traces)

    def rows(self, table: str) -> list[Mapping[str, Cells]]:
        """Its rows of a table."""
        tables = self._run.tables
        if table not in tables:
            raise ConfigError(f"there is no table {table!r}{suggestion(table, tables)}")
        return [*tables[table].rows(self, frozenset(tables[table].columns))]

    def view(self, seat: str | None = None, *, truth: bool = False) -> str:
        """The conversation as text; with `seat` only what that agent saw, with `truth` what only the engine knew."""
        return transcript_text(self.transcript, seat=seat, has_truth=truth)

    def seen(self, seat: str) -> list[JsonObject]:
        """The events that an agent saw, without who else did, and with the turns of its own alone."""
        check_seat(self.transcript, seat)
        record = json_object(self.transcript["record"])
        own = {turn.key for turn in self.turns if turn.agent == seat}
        recorded = zip(objects(record.get("events", [])), record_events(record), strict=True)
        return [_seen(each, event) for each, whole in recorded if (event := seen(whole, seat, own)) is not None]

    def prompt(self, turn: str, *, seat: str | None = None) -> Prompt:
        """What the engine was sent for a turn, such as `6/Abel/0/0`, or the beginning of its name.

        Raises RunDirectoryError where this version renders another prompt.
        """
        found = find_turn(self.transcript, turn, "turn", seat=seat)
        return sent_prompt(self._run.contents, self.transcript, str(found["turn"]))


@lru_cache(1)
def _source_in(directory: Path) -> Source:
    """The run in a directory: the conversations of one come together from another process."""
    (run,) = run_sources([directory]).runs
    return run


def _recorded_in(directory: Path, done: DoneRow) -> RecordedConversation:
    return RecordedConversation(_source_in(directory), done)


def rollouts(conversation: RecordedConversation, *, only: Sequence[str] = ()) -> list[Rollout]:
    """What a trainer reads of a conversation: a rollout for each reply, in order.

    `only` are the models and agent definitions to learn from: turns of others are not trainable. Raises ConfigError
    where no tokens were recorded.
    """
    return conversation.rollouts(only)


def _seen(recorded: JsonObject, event: EventView) -> JsonObject:
    """An event of the record with its data, as its audience saw it."""
    hidden = {"audience"} if event.turn else {"audience", "turn"}
    return {key: value for key, value in recorded.items() if key not in hidden}
