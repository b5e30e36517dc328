"""Tables over the conversations of a run or a grid, as files for other programs (`mac-run export`).

Conversations are read one by one, once for all tables, and rows are written as they come, so the memory of an export
does not grow with the run. What has not ended yet is left out: a run can be exported while it plays.

CSV is one file for each table. Parquet and JSON Lines are files of 2,000 conversations each (`data/writing.py`): a
second export writes those again that changed.

`measure_run` computes metrics over a run, and only reads it: what the run keeps of its own metrics stays as it is.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.clock import SystemClock, pause
from mac_runner.data.files import CSV, FORMATS, PARQUET, check_arrow
from mac_runner.data.sources import Sources, source_of
from mac_runner.data.tables import schema_json
from mac_runner.data.training import FORMATS as TRAINING_FORMATS
from mac_runner.data.writing import (
    SCHEMA,
    STATE,
    Part,
    PartName,
    Target,
    WrittenFile,
    basis,
    file_name,
    planned_parts,
    read_state,
    rows_by_part,
    writing,
)
from mac_runner.errors import ConfigError, ShortageError
from mac_runner.flat import Cells
from mac_runner.intervals import one_cluster
from mac_runner.metrics import Metric, measured, own_metric
from mac_runner.problems import suggestion
from mac_runner.registry import load_function
from mac_runner.reports.metrics import MetricCounter
from mac_runner.runs.recorded import trust as import_code
from mac_runner.runs.summary import run_sources, with_environment
from mac_runner.runs.view import PathLike, RunView, directory_of, paths_of
from mac_runner.store import Disk, Run, encode_for_reading
from mac_runner.store.layout import Layout
from mac_runner.store.leases import at_work
from mac_runner.store.machine import Machine
from mac_runner.store.records import encode_json
from mac_runner.store.rows import DoneRow, parse_row
from mac_runner.store.transcripts import METRIC_KEYS
from mac_runner.types import JsonObject

ALL_FORMATS: Final = (*FORMATS, *TRAINING_FORMATS)
"""What `--format` takes."""
FOLLOW_INTERVAL_S: Final = 5.0
"""How often `--follow` looks for more, at most."""
_LOOK_SHARE: Final = 0.1
"""The share of its time that `--follow` looks, at most: a large journal takes seconds to read."""
_GROWTH: Final = 1.5
"""While a run is followed, a part that is not complete is written again when it has grown by this factor."""


class Exported(NamedTuple):
    """A table that was written: its file, or a pattern of its parts, and what is in it."""

    path: Path
    rows: int
    ended: int
    planned: int
    parts: int = 0
    """How many files it has, where it is in parts."""
    written: int = 0
    """How many of them were written now."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What is to be exported, and how. No `tables` are all but the optional ones.

    `formats` are kinds of files for the tables, or formats of trainers, each a table of its own.
    """

    directories: Sequence[Path]
    to: Path
    tables: Sequence[str] = ()
    formats: Sequence[str] = (CSV,)
    only: Sequence[str] = ()
    """In the formats of trainers: the models and agent definitions to learn from; empty for all."""
    jobs: int = 1
    is_trusted: bool = False
    """Whether other processes import the code that the runs name, as this one did."""
    disk: Disk = field(default_factory=Disk)

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of files for the tables, each once."""
        return [kind for kind in dict.fromkeys(self.formats) if kind in FORMATS]

    @cached_property
    def trainers(self) -> list[str]:
        """The formats of trainers, each once."""
        return [each for each in dict.fromkeys(self.formats) if each not in FORMATS]


class _Chosen(NamedTuple):
    """A table that is written, and the kind of its files."""

    table: str
    kind: str


def exported(request: ExportRequest) -> Iterator[Exported]:
    """Write the tables. Everything that can be refused is refused before anything is written."""
    sources, chosen = _checked(request)
    if whole := [each.table for each in chosen if each.kind == CSV]:
        yield from _whole_tables(request, sources, whole)
    if parts := [each for each in chosen if each.kind != CSV]:
        yield from _Parts(request, sources, parts).write()


def followed(request: ExportRequest, sleep: Callable[[float], None] = pause) -> Iterator[Exported]:
    """Write parts as they fill, until no process plays the run; yields what each look has written.

    An incomplete part is written when it has grown by half, and at the end.
    """
    if CSV in request.formats:
        raise ConfigError("--follow: a CSV file cannot grow; use --format parquet or --format jsonl")
    clock = SystemClock()
    while True:
        # First who plays, then what there is: what ends in between is found by another look.
        is_over = not any(_is_played(request.disk, directory) for directory in request.directories)
        begun_s = clock.monotonic_s()
        sources, chosen = _checked(request)
        for each in _Parts(request, sources, chosen).write(is_last=is_over):
            if each.written or is_over:
                yield each
        if is_over:
            return
        sleep(max(FOLLOW_INTERVAL_S, (clock.monotonic_s() - begun_s) / _LOOK_SHARE))


def _is_played(disk: Disk, directory: Path) -> bool:
    return at_work(disk, directory, Machine()).may_work


# What is refused.


def _checked(request: ExportRequest) -> tuple[Sources, list[_Chosen]]:
    """The runs, and the tables that are written."""
    if request.jobs < 1:
        raise ConfigError(f"--jobs: {request.jobs} is not a number of processes; give 1 or more")
    if request.jobs > 1 and {*request.formats} == {CSV}:
        raise ConfigError(
            "--jobs: one process writes a CSV file; use --format parquet or --format jsonl, or leave it out"
        )
    if request.only and not request.trainers:
        raise ConfigError(
            f"--only: chooses what trainers learn from; add --format with one of {', '.join(TRAINING_FORMATS)}"
        )
    if request.tables and not request.kinds:
        raise ConfigError(f"--tables: the formats of trainers have no tables; leave it out, or add --format {PARQUET}")
    sources = run_sources(request.directories, request.only)
    for name in request.tables:
        if name not in sources.tables:
            where = ", ".join(map(str, request.directories))
            raise ConfigError(f"--tables: {where} has no table {name!r}{suggestion(name, sources.tables)}")
    default = (name for name, table in sources.tables.items() if not table.is_optional)
    tables = [*dict.fromkeys(request.tables or default)]
    chosen = [_Chosen(table, kind) for table in tables for kind in request.kinds]
    for name in request.trainers:
        training = sources.tables[name].training
        assert training is not None, "the formats of trainers are tables of every run"
        chosen.append(_Chosen(name, training.kind))
    for table, kind in chosen:
        if kind == PARQUET:
            check_arrow(f"--format {table if table in request.trainers else kind}")
        for source in sources.runs:
            if table in source.tables and (training := source.tables[table].training) is not None:
                training.check()
    chosen = [*dict.fromkeys(chosen)]
    _check_place(request.to, chosen)
    return sources, chosen


def _check_place(to: Path, chosen: Sequence[_Chosen]) -> None:
    """Raise ConfigError unless files can be written without replacing any that are not ours."""
    if (to.exists() or to.is_symlink()) and not to.is_dir():
        raise ConfigError(f"--to: {to} is not a directory; name another one, or remove it")
    for table, kind in chosen:
        path = to / (f"{table}.{CSV}" if kind == CSV else table)
        if kind == CSV and (path.exists() or path.is_symlink()):
            raise ConfigError(f"--to: {path} is there already; name another directory, or remove it")
        if kind != CSV and (path.exists() or path.is_symlink()) and not path.is_dir():
            raise ConfigError(f"--to: {path} is not a directory; name another directory, or remove it")


# CSV.


def _whole_tables(request: ExportRequest, sources: Sources, chosen: Sequence[str]) -> Iterator[Exported]:
    """Write each table to one file."""
    targets = [Target(name, sources.columns(name), CSV, request.to / f"{name}.{CSV}") for name in chosen]
    request.disk.make_directory(request.to)
    request.disk.sweep(request.to)
    with writing(request.disk, targets, sources.tables) as writer:
        for source in sources.runs:
            for conversation in source.conversations():
                writer.add(source, conversation)
    ended, planned = _counts(sources)
    for file in writer.files:
        yield Exported(file.target.path, file.rows, ended, planned)


def _counts(sources: Sources) -> tuple[int, int]:
    counts = [source.contents.counts for source in sources.runs]
    return sum(each.done for each in counts), sum(each.planned for each in counts)


# Parts.


class _Order(NamedTuple):
    """A part to be written, as another process can be given it."""

    part: PartName
    layout: Layout
    resolved: JsonObject
    prefix: Mapping[str, Cells]
    rows: Sequence[DoneRow]
    targets: Sequence[Target]
    is_trusted: bool
    only: Sequence[str]


class _Written(NamedTuple):
    """A part that was written, and of each of its files the rows and the bytes."""

    part: PartName
    files: Mapping[str, tuple[int, int]]


class _Parts:
    """The parts of one export."""

    def __init__(self, request: ExportRequest, sources: Sources, chosen: Sequence[_Chosen]) -> None:
        self._request = request
        self._sources = sources
        self._chosen = chosen
        self._tables = [*dict.fromkeys(each.table for each in chosen)]
        self._parts = planned_parts(sources)
        self._state = read_state(request.disk, request.to, sources.names)
        self._bases: dict[tuple[int, str], str] = {}
        self._sizes = {table: request.disk.sizes(request.to / table) for table in self._tables}

    def write(self, *, is_last: bool = True) -> Iterator[Exported]:
        """Write the parts that changed. Before the last look, those alone that are complete or have grown."""
        request, disk, state = self._request, self._request.disk, self._state
        targets = {part: [*self._targets(part, made, is_last=is_last)] for part, made in self._parts.items()}
        stale = {part: found for part, found in targets.items() if found}
        names = {self._name(target) for found in stale.values() for target in found}
        disk.make_directory(request.to)
        for table in self._tables:
            disk.sweep(request.to / table)
        disk.sweep(request.to)
        self._remove_others()
        if names:
            # So that every file is known, whenever this process ends.
            state.files = {**dict.fromkeys(names, WrittenFile()), **state.files}
            schema = schema_json(self._sources.tables, self._sources.prefix)
            disk.write_atomic(request.to / SCHEMA, [encode_for_reading(schema)])
            disk.write_atomic(request.to / STATE, [state.encode()])
        for written in _all_written(self._orders(stale), request.jobs, disk):
            self._note(written)
            disk.write_atomic(request.to / STATE, [state.encode()])
        ended, planned = _counts(self._sources)
        for table, kind in self._chosen:
            files = [self._file(part, table, kind) for part in self._parts]
            yield Exported(
                request.to / table / f"*.{kind}",
                sum(state.files[name].rows for name in files if name in state.files),
                ended,
                planned,
                sum(name in state.files for name in files),
                len(names.intersection(files)),
            )

    def _targets(self, part: PartName, made: Part, *, is_last: bool) -> Iterator[Target]:
        """The files of a part that have to be written."""
        for table, kind in self._chosen:
            if table not in self._sources.runs[part.run].tables:
                continue
            name = self._file(part, table, kind)
            size_bytes = self._sizes[table].get(Path(name).name)
            noted = self._state.files.get(name, WrittenFile())
            if (noted.made_of, noted.size_bytes) == (self._made_of(part, table), size_bytes):
                continue
            is_due = size_bytes is None or made.conversations >= _GROWTH * noted.conversations
            if is_last or is_due or made.is_full:
                yield Target(table, self._sources.columns(table), kind, self._request.to / name)

    def _file(self, part: PartName, table: str, kind: str) -> str:
        return f"{table}/{file_name(self._sources, part, kind)}"

    def _name(self, target: Target) -> str:
        return f"{target.table}/{target.path.name}"

    def _made_of(self, part: PartName, table: str) -> str:
        known = f"{self._basis(part.run, table)} {self._parts[part].digest:032x} {self._parts[part].conversations}"
        return hashlib.sha256(known.encode()).hexdigest()

    def _basis(self, run: int, table: str) -> str:
        if (run, table) not in self._bases:
            self._bases[run, table] = basis(self._sources, self._sources.runs[run], table)
        return self._bases[run, table]

    def _remove_others(self) -> None:
        """Remove files of the chosen tables that no conversation belongs to any more: they were opened again."""
        known = {self._file(part, *each) for part in self._parts for each in self._chosen}
        for name in [*self._state.files]:
            table, _, file = name.partition("/")
            if name not in known and _Chosen(table, file.rpartition(".")[2]) in self._chosen:
                self._request.disk.remove(self._request.to / name)
                del self._state.files[name]

    def _orders(self, stale: Mapping[PartName, Sequence[Target]]) -> Iterator[_Order]:
        for part, rows in rows_by_part(self._sources, stale):
            source = self._sources.runs[part.run]
            contents = source.contents
            yield _Order(
                part,
                contents.layout,
                contents.resolved,
                source.prefix,
                rows,
                stale[part],
                self._request.is_trusted,
                self._request.only,
            )

    def _note(self, written: _Written) -> None:
        for name, (rows, size_bytes) in written.files.items():
            made_of = self._made_of(written.part, name.split("/")[0])
            conversations = self._parts[written.part].conversations
            self._state.files[name] = WrittenFile(made_of, conversations, rows, size_bytes)


def _all_written(orders: Iterable[_Order], jobs: int, disk: Disk) -> Iterator[_Written]:
    """Write parts, in this process or in several. Few orders wait at a time."""
    if jobs == 1:
        yield from (_write(order, disk) for order in orders)
        return
    # Here, because every command would pay for these imports.
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_ready_worker) as pool:
        pending: set[Future[_Written]] = set()
        try:
            for order in orders:
                pending.add(pool.submit(_write, order))
                while len(pending) > jobs:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (each.result() for each in done)
            for each in pending:
                yield each.result()
        except BrokenProcessPool as fault:
            raise ShortageError(
                "a process of --jobs ended before its part was written, perhaps for lack of memory; "
                "run the same command again with fewer"
            ) from fault
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _ready_worker() -> None:
    """A signal to all processes of a terminal reaches workers too: each leaves nothing half-written behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _write(order: _Order, disk: Disk | None = None) -> _Written:
    """Write the files of a part; in another process with a disk of its own."""
    disk = disk or Disk()
    if order.is_trusted:
        _import_once(order.layout.directory)
    run = Run(order.layout, order.resolved, disk=disk)
    source = with_environment(source_of(run), order.only)._replace(prefix=order.prefix)
    with writing(disk, order.targets, source.tables) as writer:
        for row in order.rows:
            writer.add(source, source.ended(row))
    files = {f"{one.target.table}/{one.target.path.name}": (one.rows, one.size_bytes) for one in writer.files}
    return _Written(order.part, files)


@cache
def _import_once(directory: Path) -> None:
    import_code([directory])


def export(
    run: PathLike | Sequence[PathLike] | RunView,
    to: PathLike,
    *,
    tables: Sequence[str] = (),
    format: str | Sequence[str] = PARQUET,
    jobs: int = 1,
    follow: bool = False,
    trust: bool = False,
    only: Sequence[str] = (),
) -> list[Exported]:
    """Write the tables of a run, a grid or several runs as files, as `mac-run export` does; returns what was written.

    `format` may also be that of a trainer, and `only` the models and agent definitions that it learns from.
    With `trust` the code that the runs name is imported, where their environment is not built in.
    Raises ConfigError for what cannot be written so, RunDirectoryError naming a transcript that is damaged.
    """
    formats = [format] if isinstance(format, str) else [*format]
    for each in formats:
        if each not in ALL_FORMATS:
            raise ConfigError(f"format: found {each!r}; there are: {', '.join(ALL_FORMATS)}")
    for name, value in (("tables", tables), ("only", only)):
        if isinstance(value, str):
            raise ConfigError(f"{name}: {value!r} is one name; give a list: [{value!r}]")
    directories = run.directories if isinstance(run, RunView) else paths_of(run)
    place = directory_of("to", to)
    if trust:
        import_code(directories)
    request = ExportRequest(
        directories=directories, to=place, tables=tables, formats=formats, only=only, jobs=jobs, is_trusted=trust
    )
    return [*(followed(request) if follow else exported(request))]


def named_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Metrics that a command line names; files are relative to the working directory. Raises ConfigError."""
    found: dict[str, Metric] = {}
    for name in names:
        metric = own_metric(load_function("metrics", name, Path()))
        if metric.name in found:
            raise ConfigError(f"METRIC: two of them are called {metric.name!r}; compute them one after the other")
        found[metric.name] = metric
    return tuple(found.values())


@dataclass(slots=True)
class Measurement:
    """What metrics make of the finished conversations of a run, once `rows` were taken."""

    contents: Run
    metrics: Sequence[Metric]
    conversations: int = 0
    differing: int = 0
    """Conversations of which the run keeps another value under the same name."""
    _counter: MetricCounter = field(default_factory=MetricCounter)

    def rows(self) -> Iterator[JsonObject]:
        """For each finished conversation its id, its index, and the values."""
        for row in self.contents.rows_in_task_order():
            if row.get("status") != "finished":
                continue
            found = measured(self.metrics, self.contents.acknowledged(row))
            kept, values = row.get("metrics"), found["metrics"]
            assert isinstance(values, dict), "a finished conversation has values"
            self.conversations += 1
            self.differing += isinstance(kept, dict) and any(
                name in kept and kept[name] != value for name, value in values.items()
            )
            bare = {key: value for key, value in row.items() if key not in METRIC_KEYS}
            parsed = parse_row({**bare, **found})
            with one_cluster(parsed.cluster):
                self._counter.add(parsed)
            yield {"task_id": row["task_id"], "index": row["index"], **found}

    def summary(self) -> JsonObject:
        """The sections of a summary that these values make."""
        return self._counter.report()


def measure_run(contents: Run, metrics: Sequence[Metric], to: Path | None) -> Measurement:
    """Compute the metrics over a run; with `to`, its rows are written to that new file, one JSON object a line."""
    found = Measurement(contents, metrics)
    if to is None:
        for _ in found.rows():
            pass
    else:
        Disk().write_atomic(to, (encode_json(row) + b"\n" for row in found.rows()))
    return found
