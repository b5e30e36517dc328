"""Which runs a table is made of: a run, a grid, or a list of them; and the columns that distinguish their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mac_runner.data.tables import Ended, FlatTable, tables_of
from mac_runner.errors import ConfigError
from mac_runner.flat import Cells, FlatColumn, value_at
from mac_runner.registry import EnvironmentSpec, environment_spec
from mac_runner.reports.grid import value_columns
from mac_runner.store import Run, begun_combinations, is_grid, read_grid, read_run
from mac_runner.store.rows import DoneRow

_RUN = FlatColumn("text", "the directory of the run")
_COMBINATION = FlatColumn("text", "the directory of the combination of a grid")

Prefix: TypeAlias = Mapping[str, Cells]


class Source(NamedTuple):
    """A run, the tables that it has, and the cells that its rows begin with."""

    contents: Run
    tables: Mapping[str, FlatTable]
    prefix: Prefix
    name: str = ""
    """What stands before the number of a conversation: the combination, or the run of a list."""
    environment: Callable[[], object | None] = lambda: None
    """Sets the environment up where its own method says the rewards; None where its code was not loaded."""
    check_rewards: Callable[[], None] = lambda: None
    """Raises ConfigError where a weight of `rewards.total` is that of no reward."""

    def ended(self, done: DoneRow) -> Ended:
        """The conversation of an index row."""
        return Ended(self.contents, done, self.environment, self.check_rewards)

    def conversations(self) -> Iterator[Ended]:
        """The conversations that have ended, in task order."""
        return map(self.ended, self.contents.json_rows_in_task_order())


class Sources(NamedTuple):
    """Runs, the columns that distinguish them, and the tables that any of them has."""

    runs: Sequence[Source]
    prefix: Mapping[str, FlatColumn]
    tables: Mapping[str, FlatTable]
    names: Sequence[str]
    """Of each directory, the name of its experiment or grid."""

    def columns(self, table: str) -> Mapping[str, FlatColumn]:
        """All columns of a table, those that distinguish runs first."""
        found = self.tables[table]
        is_bare = found.training is not None and found.training.is_bare
        return found.columns if is_bare else {**self.prefix, **found.columns}


def source_of(contents: Run) -> Source:
    """A run with its tables: those of its environment only where that says, and its code was loaded."""
    spec = recorded_spec(contents)
    return Source(contents, tables_of(None if spec is None or spec.results is None else spec.results()), {})


def recorded_spec(contents: Run) -> EnvironmentSpec[Any] | None:
    """How the environment of a run describes itself; None where its code was not loaded."""
    name = contents.environment_name
    digest = value_at(contents.resolved, ("plugins", name, "sha256"))
    return environment_spec(name, digest if isinstance(digest, str) else "")


def sources_of(directories: Sequence[Path]) -> Sources:
    """The runs of directories. Raises RunDirectoryError where there are none, or a grid in which none has begun."""
    if not directories:
        raise ConfigError("no run is named; name one, or several")
    parts = [_of_one(directory) for directory in directories]
    if len(parts) == 1:
        return parts[0]
    names = _names(directories)
    taken = {"run", *(name for part in parts for name in part.prefix)}
    prefix = {"run": _RUN, **{name: column for part in parts for name, column in part.prefix.items()}}
    runs = [
        run._replace(prefix={"run": name, **run.prefix}, name="/".join(filter(None, (name, run.name))))
        for name, part in zip(names, parts, strict=True)
        for run in part.runs
    ]
    return _checked(runs, prefix, taken, [name for part in parts for name in part.names])


def _names(directories: Sequence[Path]) -> list[str]:
    """The shortest endings of paths that distinguish them."""
    paths = [directory.resolve() for directory in directories]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"a run is named twice: {', '.join(map(str, directories))}")
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _of_one(directory: Path) -> Sources:
    if not is_grid(directory):
        run = source_of(read_run(directory))
        return Sources([run], {}, run.tables, [run.contents.experiment_name])
    begun, record = begun_combinations(directory), read_grid(directory)
    found = [source_of(read_run(directory / entry.slug)) for entry in begun]
    columns = {name for run in found for table in run.tables.values() for name in table.columns}
    values = value_columns([entry.values for entry in begun], {"combination", "run", *columns})
    prefix = {
        "combination": _COMBINATION,
        **{column.name: FlatColumn(column.kind, "what the grid varies") for column in values},
    }
    runs = [
        run._replace(
            prefix={"combination": entry.slug, **{column.name: column.cells[place] for column in values}},
            name=entry.slug,
        )
        for place, (entry, run) in enumerate(zip(begun, found, strict=True))
    ]
    return _checked(runs, prefix, {"combination"}, [record.name if record is not None else ""])


def _checked(
    runs: Sequence[Source], prefix: Mapping[str, FlatColumn], taken: set[str], names: Sequence[str]
) -> Sources:
    """The runs with the tables that any of them has. Raises ConfigError for columns of the same name."""
    tables: dict[str, FlatTable] = {}
    for run in runs:
        for name, table in run.tables.items():
            if name in tables and tables[name].columns != table.columns:
                columns = {**tables[name].columns, **table.columns}
                table = table._replace(columns=columns, of_index=tables[name].of_index & table.of_index)
            tables[name] = table
            if both := taken & table.columns.keys():
                raise ConfigError(f"table {name!r} has a column {min(both)!r}, which tells runs apart; rename it")
    return Sources(runs, prefix, tables, names)
