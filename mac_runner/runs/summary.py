"""Summaries of run directories and grids, made from what the directories hold.

The runs that tables are made of, with the tables that need an environment to be played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.config import recorded_decoding, recorded_speakers
from mac_runner.data.rollouts import PROMPTS, SEAT_COLUMNS, TrainingRun, prompt_table
from mac_runner.data.sources import Source, Sources, recorded_spec, sources_of
from mac_runner.data.training import FORMATS as TRAINING_FORMATS
from mac_runner.data.training import training_tables
from mac_runner.environments import build_environment
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.problems import suggestion
from mac_runner.registry import ENVIRONMENTS
from mac_runner.reports import (
    GridRow,
    Totals,
    compare_combinations,
    csv_bytes,
    grid_table,
    grid_tables,
    has_parquet,
    limit_reached,
    parquet_bytes,
    summarise,
    summarise_grid,
    summary_tables,
)
from mac_runner.results import Declared, Table, section
from mac_runner.runs.recorded import recorded_experiment
from mac_runner.runs.setup import ExperimentSet
from mac_runner.store import (
    GridEntry,
    GridRecord,
    Run,
    encode_for_reading,
    grid_usage,
    has_run,
    is_grid,
    read_grid,
    read_run,
)
from mac_runner.store.fork import fork_summary
from mac_runner.store.grid import GridAtRest, GridRecorder, bounds_of_both
from mac_runner.store.layout import SUMMARIES
from mac_runner.store.rows import DoneRow
from mac_runner.store.run import lost_words
from mac_runner.types import JsonObject


def summary_of(contents: Run) -> JsonObject:
    """The contents of a run directory's `summary.json`."""
    return next(filter(None, summary_parts(contents)))


def summary_parts(contents: Run) -> Iterator[JsonObject | None]:
    """The same after all conversations are added up; None after some of them."""
    fork = contents.fork
    conversation = section(contents.resolved, "conversation_config")
    is_clustered = fork is not None or conversation.get("samples_per_task", 1) != 1
    totals = Totals()
    # The conversations of a cluster come together.
    rows = contents.json_rows_in_task_order() if is_clustered else contents.json_rows()
    for number, row in enumerate(rows):
        totals.add(row.read())
        if number % _PART_ROWS == 0:
            yield None
    yield _summary(contents, totals)


def _summary(contents: Run, totals: Totals) -> JsonObject:
    summary = summarise(
        totals,
        experiment_name=contents.experiment_name,
        planned=contents.counts.planned,
        accounting=contents.accounting,
        decoding=recorded_decoding(contents.resolved),
        speakers=recorded_speakers(contents.resolved),
    )
    fork = contents.fork
    forked: JsonObject = {} if fork is None else {"fork": fork_summary(fork, contents.rows())}
    policies = contents.state.policies_json()
    # What limits the combination of a grid is the use of the whole grid.
    is_over = contents.layout.grid is not None or contents.counts.done == contents.counts.planned
    stopped = _stopped(contents.bounds, contents.usage, is_over=is_over)
    return summary | stopped | forked | ({"policies": policies} if policies else {})


def _stopped(bounds: JsonObject, used: JsonObject, *, is_over: bool) -> JsonObject:
    """Which limit a run or a grid that is not over has reached; empty for none."""
    stopped_by = None if is_over else limit_reached(bounds, used)
    return {} if stopped_by is None else {"stopped_by": stopped_by}


_PART_ROWS: Final = 100
COMPARISONS: Final = "comparisons.json"


class GridResults(NamedTuple):
    """The table of a grid, the summary over it, and how its combinations compare if they can."""

    rows: tuple[GridRow, ...]
    summary: JsonObject
    compared: JsonObject | None
    complete: int
    """How many combinations have ended."""

    def files(self) -> dict[str, bytes]:
        """The files that hold them, by name; Parquet where it can be written."""
        table = grid_table(self.rows, self.compared)
        typed = {"grid.parquet": parquet_bytes(table)} if has_parquet() else {}
        compared = {} if self.compared is None else {COMPARISONS: encode_for_reading(self.compared)}
        # The summary last: it says which sessions the tables cover.
        return {"grid.csv": csv_bytes(table), **typed, **compared, "summary.json": encode_for_reading(self.summary)}


class _Combinations:
    """The summary of each combination that has begun and is asked for, and what it used, taken as they are read."""

    def __init__(self, asked: Mapping[str, Plan]) -> None:
        """`asked` are the tasks that a combination is complete with; by default all that were ever planned in it."""
        self.summaries: dict[str, JsonObject] = {}
        self.shares: list[JsonObject] = []
        """What each adds to the use of the grid."""
        self.complete = 0
        """How many have ended."""
        self.bounds: JsonObject = {}
        """`Run.bounds` of all."""
        self._asked = asked

    def add(self, known: GridEntry, contents: Run, rows: Iterator[DoneRow]) -> Iterator[DoneRow]:
        """Pass on the rows of a combination that is read, and take what is needed of it after the last one."""
        if not known.is_asked:
            yield from rows
            return
        totals = Totals()
        for row in rows:
            totals.add(row.read())
            yield row
        # Not its summary.json, which is for readers: what the directory holds now.
        self.summaries[known.slug] = _summary(contents, totals)
        self.shares.append(contents.share)
        self.bounds = bounds_of_both(self.bounds, contents.bounds)
        if (asked := self._asked.get(known.slug)) is None:
            self.complete += contents.counts.done == contents.counts.planned
        else:
            self.complete += all(task_id in contents.state.endings for task_id, _ in asked.ids())

    def files(self) -> dict[str, bytes]:
        """The files that hold the summaries, by name."""
        return {f"{SUMMARIES}/{slug}.json": encode_for_reading(one) for slug, one in self.summaries.items()}


def write_grid(grid: ExperimentSet, run: GridRecorder | GridAtRest) -> GridResults:
    """Write what is derived of all combinations, each of which is read once, and give the results of those asked for.

    Only what is not right is written.
    """
    found = _Combinations({setup.slug: setup.tasks for setup in grid.setups})
    run.write_whole(found.add)
    by_slug = {entry.slug: entry for entry in run.record.entries}
    entries = [by_slug[setup.slug] for setup in grid.setups]
    results = _results(grid.directory, run.record, entries, found, left_out=grid.left_out, declared=grid.declared)
    run.write_tables(found.files() | results.files())
    return results


def recorded_grid_results(directory: Path) -> GridResults:
    """The same from the directory of a grid alone."""
    record = read_grid(directory)
    assert record is not None, "it is a grid"
    baseline, primary = recorded_baseline(record), record.report.get("primary")
    found = _Combinations({})
    for known in record.entries:
        if has_run(directory / known.slug):
            contents = read_run(directory / known.slug)
            deque(found.add(known, contents, contents.json_rows_in_task_order()), maxlen=0)
    return _results(
        directory,
        record,
        [entry for entry in record.entries if entry.is_asked],
        found,
        left_out=[entry.slug for entry in record.entries if not entry.is_asked],
        declared=None if baseline is None else Declared(baseline, primary if isinstance(primary, str) else None),
    )


def run_tables(directory: Path) -> list[Table | str]:
    """The tables of a run or a grid, and notes below them, from what its directory holds."""
    if not is_grid(directory):
        return summary_tables(summary_of(read_run(directory)))
    results = recorded_grid_results(directory)
    return grid_tables(results.summary, results.rows, results.compared)


def recorded_baseline(record: GridRecord) -> str | None:
    """The combination that the others are compared with, as the grid declares it."""
    declared = record.report.get("baseline")
    if isinstance(declared, dict):
        fitting = [one.slug for one in record.entries if all(one.values.get(k) == v for k, v in declared.items())]
        return fitting[0] if len(fitting) == 1 else None
    return declared if isinstance(declared, str) else None


def _results(
    directory: Path,
    record: GridRecord,
    entries: Sequence[GridEntry],
    found: _Combinations,
    *,
    left_out: Sequence[str],
    declared: Declared | None,
) -> GridResults:
    rows = tuple(
        GridRow(slug=entry.slug, values=entry.values, session=entry.session, summary=found.summaries.get(entry.slug))
        for entry in entries
    )
    used = grid_usage(directory, record.name, found.shares)
    summary = summarise_grid(
        name=record.name,
        profile=record.profile,
        rows=rows,
        complete=found.complete,
        left_out=left_out,
        accounting=used,
        declared=declared,
    )
    compared = compare_combinations(rows, lambda slug: read_run(directory / slug).rows(), declared)
    stopped = _stopped(found.bounds, used, is_over=found.complete == len(rows))
    return GridResults(rows, summary | stopped, compared, found.complete)


def run_sources(directories: Sequence[Path], only: Sequence[str] = ()) -> Sources:
    """The runs of directories with all tables. Raises RunDirectoryError where there are none, or some have ended that
    the journal has lost.

    `only` are the models and agent definitions that trainers learn from; empty for all.
    """
    sources = sources_of(directories)
    for contents in (source.contents for source in sources.runs):
        if contents.lost:
            raise RunDirectoryError(lost_words(contents.layout.directory, contents.lost))
    runs = [with_environment(run, only) for run in sources.runs]
    needing = {name: runs[0].tables[name] for name in (PROMPTS, *TRAINING_FORMATS)}
    return sources._replace(runs=runs, tables={**sources.tables, **needing})


def training_run(run: Source, only: Sequence[str]) -> TrainingRun:
    """A run as trainers see it; the environment is set up for the first prompt."""
    agents = run.tables["agents"]
    return TrainingRun(
        run.contents,
        cache(lambda: build_environment(recorded_experiment(run.contents).experiment)),
        lambda ended: agents.rows(ended, SEAT_COLUMNS),
        tuple(only),
    )


def with_environment(run: Source, only: Sequence[str]) -> Source:
    """A run with the tables of prompts and of trainers, and the rewards."""
    training = training_run(run, only)
    # The results of a built-in environment say its rewards.
    is_own = run.contents.environment_name not in ENVIRONMENTS and recorded_spec(run.contents) is not None
    found = run._replace(
        tables={**run.tables, PROMPTS: prompt_table(training.environment), **training_tables(training)},
        environment=training.environment if is_own else lambda: None,
    )
    # Of `--limit` or a shard, fewer are planned.
    conversations = section(run.contents.resolved, "conversation_config").get("conversations")
    is_whole = isinstance(conversations, int) and run.contents.counts.done >= conversations
    # Without its code, or its other conversations, an environment may have more rewards than are seen.
    return found._replace(check_rewards=cache(partial(_check_rewards, found))) if is_own and is_whole else found


def _check_rewards(run: Source) -> None:
    """Raises ConfigError where a weight of `rewards.total` is that of no reward in the whole run.

    Some agents and outcomes may lack a reward. So conversations are read until every weight has been seen.
    """
    rewards = section(run.contents.resolved, "rewards")
    shaped = section(rewards, "shaped")
    unseen, seen = section(rewards, "total").keys() - shaped.keys(), {*shaped}
    for ended in run.conversations():
        if not unseen:
            return
        for found in ended.worth.values():
            seen.update(found.by_name)
        unseen -= seen
    if unseen and seen:
        name = min(unseen)
        raise ConfigError(f"rewards.total.{name}: no agent of the run has such a reward{suggestion(name, seen)}")
