"""Summaries of run directories and grids, made from what the directories hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mac_runner.config import recorded_decoding, recorded_speakers
from mac_runner.reports import (
    GridRow,
    compare_combinations,
    csv_bytes,
    grid_table,
    has_parquet,
    parquet_bytes,
    summarise,
    summarise_grid,
)
from mac_runner.results import section
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.store import GridRecord, RunContents, encode_for_reading, has_run, read_run
from mac_runner.store.fork import fork_summary
from mac_runner.types import JsonObject


def summary_of(contents: RunContents) -> JsonObject:
    """The contents of a run directory's `summary.json`."""
    fork = contents.fork
    forked: JsonObject = {} if fork is None else {"fork": fork_summary(fork, contents.rows())}
    conversation = section(contents.resolved, "conversation_config")
    is_clustered = fork is not None or conversation.get("samples_per_task", 1) != 1
    summary = summarise(
        experiment_name=contents.experiment_name,
        # The conversations of a cluster come together.
        rows=contents.rows_in_task_order() if is_clustered else contents.rows(),
        planned=contents.counts.planned,
        accounting=contents.accounting,
        decoding=recorded_decoding(contents.resolved),
        speakers=recorded_speakers(contents.resolved),
    )
    policies = contents.state.policies_json()
    return summary | forked | ({"policies": policies} if policies else {})


COMPARISONS: Final = "comparisons.json"


class GridResults(NamedTuple):
    """The table of a grid, the summary over it, and how its combinations compare if they can."""

    rows: tuple[GridRow, ...]
    summary: JsonObject
    compared: JsonObject | None

    def files(self) -> dict[str, bytes]:
        """The files that hold them, by name; Parquet where it can be written."""
        table = grid_table(self.rows, self.compared)
        typed = {"grid.parquet": parquet_bytes(table)} if has_parquet() else {}
        compared = {} if self.compared is None else {COMPARISONS: encode_for_reading(self.compared)}
        # The summary last: it says which sessions the tables cover.
        return {"grid.csv": csv_bytes(table), **typed, **compared, "summary.json": encode_for_reading(self.summary)}


def grid_results(
    grid: ExperimentSet, record: GridRecord, accounting: JsonObject, is_complete: Callable[[Setup], bool]
) -> GridResults:
    """Read the run directories of the combinations that are asked for."""
    sessions = {entry.slug: entry.session for entry in record.entries}
    rows = tuple(
        GridRow(
            slug=setup.slug,
            values={} if setup.combination is None else setup.combination.values,
            session=sessions[setup.slug],
            # Not its summary.json, which is for readers: what the directory holds now.
            summary=summary_of(read_run(setup.directory)) if has_run(setup.directory) else None,
        )
        for setup in grid.setups
    )
    summary = summarise_grid(
        name=grid.name,
        profile=grid.profile,
        rows=rows,
        complete=sum(map(is_complete, grid.setups)),
        left_out=grid.left_out,
        accounting=accounting,
        declared=grid.declared,
    )
    directories = {setup.slug: setup.directory for setup in grid.setups}
    compared = compare_combinations(rows, lambda slug: read_run(directories[slug]).rows(), grid.declared)
    return GridResults(rows, summary, compared)
