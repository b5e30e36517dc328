"""The directory of a grid: its record, its sessions, what is derived of all combinations, and how far it is.

Each combination of a grid is a run in this directory, with a writer of its own, segments of its own and the one
`transcripts/` of all. Here is what concerns all of them together: `grid.yaml`, in segments of its own when engines ran
and what they used, and index, manifest and tables, which a session of the grid writes when it ends.

A combination that is not asked for any more stays where it is, and is marked so. The session that first asked for it is
kept, so a grid that grew shows which part came when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import yaml
from msgspec.structs import replace

from mac_runner.clock import Clock, iso
from mac_runner.errors import IdentityError, RunDirectoryError
from mac_runner.results import section
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import has_run, read_yaml, with_digest
from mac_runner.store.layout import CONFIG, GRID, GRID_HEAD, Layout, check_name, refuse_strays, visible
from mac_runner.store.leases import at_work, directories_in, locked, rivals
from mac_runner.store.lock import RunLock
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Manifest, read_manifest, write_manifest
from mac_runner.store.records import encode_json, foreign_format, lines
from mac_runner.store.rows import DoneRow
from mac_runner.store.run import Run, added_counts, read_run
from mac_runner.store.run_state import (
    RECORDED,
    accounting_since,
    at_least,
    merge_accounting,
    read_state,
)
from mac_runner.store.session import Recorder, SessionLog, open_log_session
from mac_runner.store.space import Need, check_room
from mac_runner.store.standing import Combination, ShardsStanding, Standing, read_run_standing, read_workers
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue

GRID_FORMAT: Final = 3

_SESSIONS_MAX: Final = 10**12
"""As many as the names of segments can count."""


class GridEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One combination: its name, its identity, and the session that first asked for it."""

    slug: str
    identity: str
    session: Annotated[int, msgspec.Meta(ge=0, lt=_SESSIONS_MAX)]
    is_asked: bool = msgspec.field(name="asked")
    values: dict[str, Any]

    def __post_init__(self) -> None:
        check_name(self.slug, "the combination")


class GridRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `grid.yaml`. `asked` is the section `_grid`; `entries` are in the order in which they came.

    `report` is the section of that name: what the combinations are compared with, declared before they are played.
    """

    format: int = GRID_FORMAT
    name: str
    profile: str
    asked: dict[str, Any]
    report: dict[str, Any] = {}
    entries: tuple[GridEntry, ...] = msgspec.field(name="combinations")

    def slug_of(self, identity: str) -> str | None:
        """The name of the combination with this identity; None when there is none."""
        return next((known.slug for known in self.entries if known.identity == identity), None)

    def extended(self, new: GridRecord, session: int) -> GridRecord:
        """This record updated by what is asked for now: new combinations join in `session`, old ones stay."""
        asked = {wanted.identity: wanted for wanted in new.entries}
        kept = [
            replace(
                known,
                is_asked=known.identity in asked,
                values=asked[known.identity].values if known.identity in asked else known.values,
            )
            for known in self.entries
        ]
        here = {known.identity for known in self.entries}
        joined = [replace(wanted, session=session) for wanted in new.entries if wanted.identity not in here]
        return replace(new, entries=(*kept, *joined))


OnRead: TypeAlias = Callable[[GridEntry, Run, Iterator[DoneRow]], Iterator[DoneRow]]
"""Receives each combination that has begun, with its rows in task order, which it passes on: they are read once."""


def _unnoted(_known: GridEntry, _contents: Run, rows: Iterator[DoneRow]) -> Iterator[DoneRow]:
    """Nothing is needed of a combination."""
    return rows


def is_grid(directory: Path, *, disk: Disk | None = None) -> bool:
    return (disk or Disk()).exists(directory / GRID)


def read_grid(directory: Path, *, disk: Disk | None = None) -> GridRecord | None:
    """The record of the grid in a directory; None when one can begin there.

    Raises RunDirectoryError when the directory is used for something else or cannot be read.
    """
    disk = disk or Disk()
    path = directory / GRID
    if disk.exists(path):
        return _decoded(read_yaml(disk, path), path)
    if disk.exists(directory / CONFIG):
        raise RunDirectoryError(
            f"{directory} is the run directory of one experiment, and no place for a grid; choose another with --out"
        )
    refuse_strays(directory, visible(disk, directory), GRID, "the directory of a grid")
    return None


def encode_grid(record: GridRecord) -> bytes:
    """The file: the section for a person, then one line per combination."""
    head = msgspec.to_builtins(record)
    combinations = head.pop("combinations")
    if not record.report:
        del head["report"]
    text: str = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    lines = (b"- " + encode_json(each) + b"\n" for each in combinations)
    return with_digest(GRID_HEAD, text.encode("utf-8") + b"combinations:\n" + b"".join(lines))


def grid_entries(combinations: Iterable[tuple[str, str, Mapping[str, JsonValue]]]) -> tuple[GridEntry, ...]:
    """Entries from (slug, identity, values), before any session knows them."""
    return tuple(
        GridEntry(slug=slug, identity=identity, values=dict(values), session=0, is_asked=True)
        for slug, identity, values in combinations
    )


def _decoded(record: JsonObject, path: Path) -> GridRecord:
    if (found := record.get("format")) != GRID_FORMAT:
        raise RunDirectoryError(f"{path}: {foreign_format('format', found, GRID_FORMAT)}")
    try:
        return convert(record, GridRecord)
    except (ValueError, RunDirectoryError) as fault:
        raise RunDirectoryError(f"{path} cannot be read: {fault}; put back the file that the run wrote") from fault


class GridRecorder(Recorder):
    """An open directory of a grid. All methods are for the event loop's thread; `close` ends it."""

    def __init__(
        self,
        directory: Path,
        *,
        record: GridRecord,
        session: SessionLog,
        lock: RunLock,
        shares: Iterable[JsonObject] | None,
    ) -> None:
        super().__init__(session, lock)
        self.record = record
        self._directory = directory
        noted = _noted_usage(directory, record.name, session.disk)
        found = _shares(session.disk, directory, record) if shares is None else shares
        known = at_least(noted, _recorded_usage(found))
        self._lost: JsonObject = {} if known == noted else {"models": accounting_since(known, noted)["models"]}
        """What combinations recorded, and earlier sessions that were killed did not note."""

    def checkpoint(self, accounting: JsonObject) -> None:
        """Note what this session has used so far, and what earlier ones did not note."""
        super().checkpoint(merge_accounting(self._lost, accounting))

    def write_whole(self, on_read: OnRead) -> None:
        """Write index and manifest, and give each combination as it is read for that."""
        self.begin()
        self.drain()
        write_whole(self._log.disk, self._log.layout, self.record, on_read, at=iso(self._log.clock.utc_now()))

    def write_tables(self, files: Mapping[str, bytes]) -> None:
        self.begin()
        self.drain()
        _put_all(self._log.disk, self._directory, files)


@dataclass(frozen=True, slots=True)
class GridAtRest:
    """A grid that no session is under way in: what is derived is written again where it is not right.

    Raises RunLockedError where another process is at work, and something is to be written.
    """

    directory: Path
    record: GridRecord
    clock: Clock
    disk: Disk = field(default_factory=Disk)

    def write_whole(self, on_read: OnRead) -> None:
        """Give each combination as it is read, and have index and manifest right."""
        if not is_whole_written(self.disk, self.directory, self.record, on_read):
            with locked(self.disk, self.directory, self.clock):
                refresh(self.disk, self.directory, at=iso(self.clock.utc_now()))

    def write_tables(self, files: Mapping[str, bytes]) -> None:
        write_tables(self.directory, files, clock=self.clock, disk=self.disk)


def write_whole(disk: Disk, layout: Layout, record: GridRecord, on_read: OnRead = _unnoted, *, at: str) -> None:
    """Write index and manifest of all combinations, in their order, each in the order of its tasks."""
    manifest = Manifest(record.name, {}, is_ordered=True)
    disk.write_atomic(layout.index, _index_lines(disk, layout, record, manifest, on_read))
    write_manifest(disk, layout, manifest, updated_at=at)


def is_whole_written(disk: Disk, directory: Path, record: GridRecord, on_read: OnRead) -> bool:
    """Whether index and manifest are what the journals of all combinations say, each of which is read."""
    layout, manifest = (
        Layout(directory=directory, experiment_name=record.name),
        Manifest(record.name, {}, is_ordered=True),
    )
    found = (line.data + b"\n" for line in lines(disk.chunks(layout.index)))
    right = _index_lines(disk, layout, record, manifest, on_read)
    # Also behind a difference, since all combinations are to be read.
    if sum(line != other for line, other in zip_longest(found, right)):
        return False
    try:
        return read_manifest(disk, layout).statuses == dict(manifest.statuses())
    except RunDirectoryError:
        return False


def refresh(disk: Disk, directory: Path, *, at: str) -> None:
    """Write index and manifest of a grid again, after one of its combinations was played by itself."""
    if (record := read_grid(directory, disk=disk)) is not None:
        write_whole(disk, Layout(directory=directory, experiment_name=record.name), record, at=at)


def _index_lines(
    disk: Disk, layout: Layout, record: GridRecord, manifest: Manifest, on_read: OnRead
) -> Iterator[bytes]:
    """The rows of each combination with its name and its values; notes its tasks in the manifest."""
    for known in record.entries:
        if not has_run(layout.directory / known.slug, disk=disk):
            continue
        contents = read_run(layout.directory / known.slug, disk=disk)
        manifest.plan(contents.planned())
        for task_id, ending in contents.state.endings.items():
            manifest.settle(task_id, ending.status)
        marks = encode_json(known.slug), encode_json(dict(known.values))
        for row in on_read(known, contents, contents.json_rows_in_task_order()):
            yield b'{"combination":%b,%b,"values":%b}\n' % (marks[0], row.json[1:-1], marks[1])


def join_grid(directory: Path, asked: GridRecord, *, disk: Disk | None = None) -> None:
    """Record a grid that several processes play at once, or join the one there. Changes no record.

    Raises IdentityError when other combinations are there, RunDirectoryError when the directory is used for something
    else.
    """
    disk = disk or Disk()
    if read_grid(directory, disk=disk) is None:
        disk.make_directory(directory)
        first = GridRecord(name=asked.name, profile=asked.profile, asked={}, entries=()).extended(asked, 1)
        disk.publish_once(directory / GRID, encode_grid(first))
        disk.sync_directory(directory)
    known = read_grid(directory, disk=disk)
    assert known is not None, "what was written is read"
    if known.extended(asked, 0) != known:
        raise IdentityError(
            f"{directory} holds the grid {known.name} with {len(known.entries)} combinations, and this one is another "
            "grid or has others; all workers of a grid play the same: set the values back, or give this grid a "
            "directory of its own with --out DIR. Once all have ended, `mac-run FILE --out DIR` plays more combinations"
        )


def open_grid(
    directory: Path,
    *,
    asked: GridRecord,
    clock: Clock,
    disk: Disk | None = None,
    needs: Sequence[Need] = (),
    shares: Iterable[JsonObject] | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> GridRecorder:
    """Begin a grid in `directory`, or continue the one there with what is asked for now, if there is room for `needs`.

    `shares` are those of the combinations that are asked for, where the caller has read them (`grid_usage`).

    Raises RunLockedError when another process is at work there, RunDirectoryError when it is something else, StoreError
    when it cannot be written.
    """
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=asked.name)
    read_grid(directory, disk=disk)
    lock = RunLock(disk, directory, clock=clock, say=say, rivals=lambda: rivals(disk, layout))
    try:
        if needs:
            check_room(disk, layout, Need.of_all(needs))
        known = read_grid(directory, disk=disk)
        for place in _swept(disk, layout):
            disk.sweep(place)
        number = max(journal.sessions(disk, layout), default=0) + 1
        record = known or GridRecord(name=asked.name, profile=asked.profile, asked={}, entries=())
        record = record.extended(asked, number)

        def start() -> None:
            # Before anything else, because this file is what makes it the directory of a grid.
            _put_all(disk, directory, {GRID: encode_grid(record)})

        session = open_log_session(disk, layout, clock, lock, start)
        return GridRecorder(directory, record=record, session=session, lock=lock, shares=shares)
    except BaseException:
        lock.back_out()
        raise


def used_in(directory: Path) -> JsonObject:
    """What a run has used so far, or a grid with all its combinations: in all sessions, of all workers."""
    if (record := read_grid(directory) if is_grid(directory) else None) is not None:
        return grid_usage(directory, record.name)
    return read_run(directory).usage if has_run(directory) else {}


def grid_usage(
    directory: Path, name: str, shares: Iterable[JsonObject] | None = None, *, disk: Disk | None = None
) -> JsonObject:
    """What a grid has used, and when each of its sessions began; by the `share` of each combination that has begun.

    That is what is noted of its engines, and at least what combinations recorded of them; and what sessions used that
    played one combination alone.
    """
    disk = disk or Disk()
    found = [*(_shares(disk, directory, read_grid(directory, disk=disk)) if shares is None else shares)]
    noted = at_least(_noted_usage(directory, name, disk), _recorded_usage(found))
    alone = ({key: value for key, value in share.items() if key != RECORDED} for share in found)
    return reduce(merge_accounting, alone, noted)


def _noted_usage(directory: Path, name: str, disk: Disk) -> JsonObject:
    """What the sessions of a grid and its workers noted in all, and when each session of the grid began."""
    state = read_state(disk, Layout(directory=directory, experiment_name=name))
    began = {str(session.number): session.started_at for session in state.sessions if session.started_at is not None}
    damaged: JsonObject = {"damaged_lines": state.damaged_lines} if state.damaged_lines else {}
    known: JsonObject = {**state.total, **damaged, "sessions": dict(began)}
    return reduce(merge_accounting, (worker.usage for worker in read_workers(directory, disk=disk)), known)


def _shares(disk: Disk, directory: Path, record: GridRecord | None) -> Iterator[JsonObject]:
    paths = [directory / entry.slug for entry in (() if record is None else record.entries) if entry.is_asked]
    return (read_run(path, disk=disk).share for path in paths if has_run(path, disk=disk))


def _recorded_usage(shares: Iterable[JsonObject]) -> JsonObject:
    """What the combinations recorded, by the share of each."""
    nothing: JsonObject = {}
    return reduce(merge_accounting, (section(share, RECORDED) for share in shares), nothing)


def write_tables(directory: Path, files: Mapping[str, bytes], *, clock: Clock, disk: Disk | None = None) -> None:
    """Update the files of a grid or a run that is not under way, and sweep it; no lock is taken if all is right."""
    disk = disk or Disk()
    swept = _swept(disk, Layout.at(disk, directory))
    if all(holds(disk, directory / name, data) for name, data in files.items()) and not any(map(disk.strays, swept)):
        return
    with locked(disk, directory, clock):
        for place in swept:
            disk.sweep(place)
        _put_all(disk, directory, files)


def _swept(disk: Disk, layout: Layout) -> list[Path]:
    """What is swept of a directory that this process has to itself, with the journals of the combinations."""
    return [*layout.swept, *directories_in(disk, layout.journal)]


def _put_all(disk: Disk, directory: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        if not holds(disk, directory / name, data):
            disk.make_directory((directory / name).parent)
            disk.write_atomic(directory / name, [data])


def holds(disk: Disk, path: Path, data: bytes) -> bool:
    return disk.exists(path) and disk.read(path) == data


def read_standing(directory: Path, *, begun: Callable[[Path], Standing | None] | None = None) -> Standing:
    """How far a run or a grid is, also while it is under way; takes no lock. Raises RunDirectoryError for neither.

    `begun` gives the standing of a combination's directory, where the caller knows it, or None for one not begun.
    """
    disk, machine = Disk(), Machine()
    record = read_grid(directory, disk=disk) if is_grid(directory, disk=disk) else None
    if record is None:
        return read_run_standing(directory, disk=disk, machine=machine)

    def read(path: Path) -> Standing | None:
        return read_run_standing(path, disk=disk, machine=machine) if has_run(path, disk=disk) else None

    standing_of = begun or read
    asked = [entry for entry in record.entries if entry.is_asked]
    found = tuple(Combination(entry.slug, entry.values, standing_of(directory / entry.slug)) for entry in asked)
    return _whole(directory, record, found, disk=disk, machine=machine)


def begun_combinations(directory: Path) -> list[GridEntry]:
    """The combinations of a grid that have begun. Raises RunDirectoryError when there are none."""
    record = read_grid(directory)
    begun = [entry for entry in record.entries if has_run(directory / entry.slug)] if record is not None else []
    if not begun:
        raise RunDirectoryError(f"{directory} is a grid in which no combination has begun; run its file first")
    return begun


def _whole(
    directory: Path, record: GridRecord, combinations: tuple[Combination, ...], *, disk: Disk, machine: Machine
) -> Standing:
    begun = [one.standing for one in combinations if one.standing is not None]
    workers = read_workers(directory, disk=disk, machine=machine)
    state = read_state(disk, Layout(directory=directory, experiment_name=record.name))
    return Standing(
        directory=directory,
        experiment_name=record.name,
        combinations=combinations,
        shard=begun[0].shard if begun else None,
        planned=sum(standing.planned for standing in begun),
        finished=sum(standing.finished for standing in begun),
        failed=sum(standing.failed for standing in begun),
        half_done=sum(standing.half_done for standing in begun),
        failures=tuple(row for standing in begun for row in standing.failures),
        sessions=len(state.sessions) + len(workers),
        latest=state.sessions[-1] if state.sessions else None,
        usage=grid_usage(directory, record.name, [standing.share for standing in begun], disk=disk),
        holder=at_work(disk, directory, machine),
        counts=reduce(added_counts, (standing.counts for standing in begun), {}),
        speakers={name: model for standing in begun for name, model in standing.speakers.items()},
        bounds=reduce(bounds_of_both, (standing.bounds for standing in begun), {}),
        lost=sum(standing.lost for standing in begun),
        damaged_lines=state.damaged_lines + sum(standing.damaged_lines for standing in begun),
        shards=ShardsStanding.of_grid([one.shards for one in begun if one.shards is not None], workers),
    )


def bounds_of_both(first: JsonObject, second: JsonObject) -> JsonObject:
    """`Run.bounds` of two combinations: those of the first, with the models of both."""
    models = {**section(second, "model_definitions"), **section(first, "model_definitions")}
    return {**second, **first, "model_definitions": models} if second else first
