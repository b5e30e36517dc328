"""The runs of directories as figures read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from mac_runner.data.sources import Source
from mac_runner.figures.data import IsWanted, RunData
from mac_runner.flat import Row
from mac_runner.runs.tables import run_sources


def report_runs(directories: Sequence[Path]) -> list[RunData]:
    """Each run of the directories; of a grid each combination that has begun. Raises RunDirectoryError."""
    return [run_data(source) for source in run_sources(directories).runs]


def run_data(source: Source) -> RunData:
    """One run, read when it is asked for."""
    contents = source.contents
    return RunData(
        name=source.name or contents.experiment_name,
        environment=contents.environment_name,
        experiment=contents.resolved,
        planned=contents.counts.planned,
        read_rows=contents.rows_in_task_order,
        read_table=partial(_rows, source),
        tables=frozenset(source.tables),
        values={name: str(cell) for name, cell in source.prefix.items() if name not in {"run", "combination"}},
    )


def _rows(source: Source, name: str, is_wanted: IsWanted) -> Iterator[Row]:
    table = source.tables[name]
    columns = frozenset(table.columns)
    for ended in source.conversations():
        if is_wanted(ended.row):
            yield from table.rows(ended, columns)
