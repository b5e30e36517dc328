"""The runs of directories as figures read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from mac_runner.data.sources import Source
from mac_runner.figures.data import IsWanted, RunData
from mac_runner.flat import Row


def run_data(source: Source, name: str, values: Mapping[str, str] | None = None) -> RunData:
    """A run, read when it is asked for. `name` is what figures call it, `values` what it differs in from others."""
    contents = source.contents
    return RunData(
        name=name,
        environment=contents.environment_name,
        experiment=contents.resolved,
        planned=contents.counts.planned,
        read_rows=contents.rows_in_task_order,
        read_table=partial(_rows, source),
        values=values or {},
    )


def _rows(source: Source, name: str, is_wanted: IsWanted) -> Iterator[Row]:
    table = source.tables[name]
    columns = frozenset(table.columns)
    for ended in source.conversations():
        if is_wanted(ended.row):
            yield from table.rows(ended, columns)
