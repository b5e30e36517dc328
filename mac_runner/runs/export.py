"""Tables over the conversations of a run or a grid, as files for other programs (`mac-run export`).

Transcripts are read one by one and rows are written as they come, so the memory of an export does not grow with the
run. What has not ended yet is left out: a run can be exported while it plays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.flat import Cells
from mac_runner.registry import environment_specs
from mac_runner.reports import PARQUET_HINT, PIECES, has_parquet, value_columns
from mac_runner.results import Export, ExportColumn
from mac_runner.store import Disk, RunContents, has_run, is_grid, read_grid, read_run

CSV: Final = "csv"
PARQUET: Final = "parquet"
_COMBINATION: Final = ExportColumn("text", "the directory of the combination of a grid")


class Exported(NamedTuple):
    """One file that was written."""

    path: Path
    rows: int
    ended: int
    planned: int


class _Source(NamedTuple):
    """A run, and the cells that its rows begin with."""

    contents: RunContents
    values: Mapping[str, Cells]


class _Sources(NamedTuple):
    """The runs that are exported, the table of each name, and the columns that tell the runs apart."""

    runs: Sequence[_Source]
    tables: Mapping[str, Export]
    columns: Mapping[str, ExportColumn]


def export(directory: Path, to: Path, *, tables: Sequence[str], formats: Sequence[str]) -> Iterator[Exported]:
    """Write `tables` of the run or grid `directory`, or all that it has, into `to`, in each of `formats`.

    Everything that can be refused is refused before anything is written.
    """
    if PARQUET in formats and not has_parquet():
        raise ConfigError(f"--format {PARQUET}: pyarrow is not installed; {PARQUET_HINT}")
    sources = _sources(directory)
    for name in tables:
        if name not in sources.tables:
            raise ConfigError(f"--tables: {directory} has no table {name!r}; it has: {', '.join(sources.tables)}")
    chosen = dict.fromkeys(tables) or dict.fromkeys(sources.tables)
    paths = {(name, ending): to / f"{name}.{ending}" for name in chosen for ending in dict.fromkeys(formats)}
    _check_place(to, paths.values())
    disk = Disk()
    disk.make_directory(to)
    for (name, ending), path in paths.items():
        rows = _Counted(_rows(sources, sources.tables[name]))
        columns = {**sources.columns, **sources.tables[name].columns}
        disk.write_atomic(path, PIECES[ending](columns, rows))
        counts = [source.contents.counts for source in sources.runs]
        yield Exported(path, rows.count, sum(each.done for each in counts), sum(each.planned for each in counts))


class _Counted:
    """Rows that are counted as they are taken."""

    def __init__(self, rows: Iterator[Mapping[str, Cells]]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Mapping[str, Cells]]:
        for row in self._rows:
            self.count += 1
            yield row


def _check_place(to: Path, paths: Iterable[Path]) -> None:
    """Raise ConfigError unless files can be written to `to` without replacing any."""
    if (to.exists() or to.is_symlink()) and not to.is_dir():
        raise ConfigError(f"--to: {to} is no directory; name another one, or remove it")
    for path in paths:
        if path.exists() or path.is_symlink():
            raise ConfigError(f"--to: {path} is there already; name another directory, or remove it")


def _sources(directory: Path) -> _Sources:
    """The runs of `directory`. Raises RunDirectoryError where there are none, ConfigError where none has tables."""
    if not is_grid(directory):
        contents = read_run(directory)
        return _Sources([_Source(contents, {})], _tables_of(contents), {})
    record = read_grid(directory)
    begun = [entry for entry in record.entries if has_run(directory / entry.slug)] if record is not None else []
    if not begun:
        raise RunDirectoryError(f"{directory} is a grid in which no combination has begun; run its file first")
    runs = [read_run(directory / entry.slug) for entry in begun]
    tables = {name: table for contents in runs for name, table in _tables_of(contents).items()}
    taken = {"combination", *(name for table in tables.values() for name in table.columns)}
    values = value_columns([entry.values for entry in begun], taken)
    return _Sources(
        [
            _Source(contents, {"combination": entry.slug, **{column.name: column.cells[place] for column in values}})
            for place, (entry, contents) in enumerate(zip(begun, runs, strict=True))
        ],
        tables,
        {
            "combination": _COMBINATION,
            **{column.name: ExportColumn(column.kind, "what the grid varies") for column in values},
        },
    )


def _tables_of(contents: RunContents) -> Mapping[str, Export]:
    """The tables of the environment of a run."""
    name = _environment(contents)
    spec = environment_specs().get(name)
    tables = {} if spec is None or spec.results is None else spec.results().exports
    if not tables:
        raise ConfigError(f"RUN: {contents.layout.directory} is of the environment {name!r}, which has no tables")
    return tables


def _environment(contents: RunContents) -> str:
    conversation = contents.resolved.get("conversation_config")
    return str(conversation.get("environment")) if isinstance(conversation, dict) else ""


def _rows(sources: _Sources, table: Export) -> Iterator[Mapping[str, Cells]]:
    for contents, values in sources.runs:
        for row in contents.rows_in_task_order():
            for cells in table.rows(contents.acknowledged(row), contents.resolved):
                yield {**values, **cells}
