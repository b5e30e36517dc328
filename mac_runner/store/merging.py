"""Several run directories of one experiment made into one: the other half of `--shard`.

The new directory is what a single run would have left: its transcripts, byte for byte those of the sources; the
segments of their journals, one after the other as sessions of its own; their events, in the order of their times.
It can be verified, gone on with and extended like any other. The sources are only read.

`experiment.yaml` comes last but for the summary, so a merge that was killed leaves no run directory, and the same
command does it over: what it wrote is replaced, and transcripts that are there already are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from mac_runner.clock import Clock
from mac_runner.config import differences
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError
from mac_runner.plan import Shard
from mac_runner.store import journal
from mac_runner.store.disk import READ_CHUNK_BYTES, Disk
from mac_runner.store.eventlog import event_line, in_time_order
from mac_runner.store.frames import encode_json
from mac_runner.store.identity import describe, encode_config, read_shard
from mac_runner.store.layout import Layout, config_path, merge_path
from mac_runner.store.lock import RunLock
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Manifest
from mac_runner.store.owner import is_alive, read_owner
from mac_runner.store.reader import RunContents, read_run
from mac_runner.store.records import entry
from mac_runner.store.session import settle, write_index, write_manifest, write_summary
from mac_runner.types import JsonObject

EVENT_RUN_MERGED = "EVENT_RUN_MERGED"

_TASKS_NAMED_MAX = 3

Summarise = Callable[[RunContents], JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was merged. `missing` are the shards that were not among the sources, as far as they tell."""

    contents: RunContents
    summary: JsonObject
    missing: tuple[Shard, ...]


def merge_runs(
    target: Path, sources: Sequence[Path], *, summarise: Summarise, clock: Clock, disk: Disk | None = None
) -> Merged:
    """Make the run directory `target` of the run directories `sources`.

    Raises IdentityError naming the fields when they are not of one experiment, RunDirectoryError when two of them
    worked on one conversation or a directory cannot be used as it stands, RunLockedError when another process is at
    `target`, StoreError when it cannot be written.
    """
    disk = disk or Disk()
    runs = [read_run(source, disk=disk) for source in sources]
    _check_distinct(target, sources)
    _check_at_rest(disk, sources)
    _check_experiment(runs)
    _check_disjoint(runs)
    mark = encode_json({"sources": [str(source.resolve()) for source in sources]}) + b"\n"
    # Looked at before the lock, whose note of its holder would be the first thing to touch a directory in use.
    _check_free(disk, target, mark)
    disk.make_directory(target)
    lock = RunLock(disk, target, clock=clock)
    try:
        _check_free(disk, target, mark)
        disk.write_atomic(merge_path(target), [mark])
        layout = Layout(directory=target, experiment_name=runs[0].experiment_name)
        _write(disk, layout, runs, clock)
        contents = read_run(target, disk=disk)
        summary = summarise(contents)
        write_summary(disk, layout, summary)
        disk.remove(merge_path(target))
        lock.sign_off()
    finally:
        lock.release()
    return Merged(contents=contents, summary=summary, missing=missing_shards(disk, sources))


def missing_shards(disk: Disk, sources: Iterable[Path]) -> tuple[Shard, ...]:
    """The shards that are not there, where all that are there are shards of one and the same number."""
    shards = [read_shard(disk, source) for source in sources]
    found = {shard for shard in shards if shard is not None}
    if None in shards or len({shard.of for shard in found}) != 1:
        return ()
    of = next(iter(found)).of
    return tuple(shard for number in range(1, of + 1) if (shard := Shard(number, of)) not in found)


def _check_distinct(target: Path, sources: Sequence[Path]) -> None:
    places = [path.resolve() for path in (target, *sources)]
    for first, second in combinations(range(len(places)), 2):
        if places[first] == places[second]:
            raise RunDirectoryError(
                f"{sources[second - 1]} is named twice; name the new directory first, then each run once"
            )


def _check_at_rest(disk: Disk, sources: Sequence[Path]) -> None:
    """Raises RunLockedError when somebody on this machine is at work in a source: it would be merged half-way."""
    machine = Machine()
    for source in sources:
        owner = read_owner(disk, source)
        if owner is not None and is_alive(owner, machine):
            raise RunLockedError(f"{source} is being run: {owner}; wait for it, or stop it, and then merge")


def _check_experiment(runs: Sequence[RunContents]) -> None:
    first = runs[0]
    for other in runs[1:]:
        if changed := differences(first.resolved, other.resolved).identity:
            here, there = str(first.layout.directory), str(other.layout.directory)
            fields = "".join(f"\n  {describe(item, old=f'in {here}', new=f'in {there}')}" for item in changed)
            raise IdentityError(
                f"{here} and {there} are of different experiments:{fields}\nmerge runs of one experiment only"
            )


def _check_disjoint(runs: Sequence[RunContents]) -> None:
    """Two results of one conversation cannot both stand, and which is the better one is not for a program to say."""
    owners: dict[str, Path] = {}
    for run in runs:
        here = run.layout.directory
        begun = journal.begun(run.disk, run.layout)
        if shared := sorted(task_id for task_id in begun if task_id in owners):
            names = ", ".join(shared[:_TASKS_NAMED_MAX])
            more = f" and {len(shared) - _TASKS_NAMED_MAX} more" if len(shared) > _TASKS_NAMED_MAX else ""
            raise RunDirectoryError(
                f"{owners[shared[0]]} and {here} have both worked on {names}{more}; "
                "a merge takes each conversation from one run: leave one of the two out"
            )
        owners |= dict.fromkeys(begun, here)


def _check_free(disk: Disk, target: Path, mark: bytes) -> None:
    """Raises RunDirectoryError when `target` is in use, unless by the same merge, broken off."""
    if disk.exists(merge_path(target)):
        if disk.read(merge_path(target)) != mark:
            raise RunDirectoryError(
                f"{target} holds a merge of other runs that was broken off; name those again, in their order, or "
                "another directory"
            )
        return
    strays = [name for name in disk.names(target) if not name.startswith(".")]
    if strays:
        what = "a run" if config_path(target).name in strays else repr(strays[0])
        raise RunDirectoryError(f"{target} holds {what} already; a merge makes a new directory, name another one")


def _write(disk: Disk, layout: Layout, runs: Sequence[RunContents], clock: Clock) -> None:
    for directory in (layout.journal, layout.transcripts):
        disk.make_directory(directory)
    for directory in (layout.directory, layout.journal, layout.transcripts, layout.attempts):
        disk.sweep(directory)
    for run in runs:
        _copy_transcripts(disk, layout, run)
    for directory in filter(disk.exists, (layout.transcripts, layout.attempts)):
        disk.sync_directory(directory)
    _copy_journals(disk, layout, runs)
    manifest = _manifest(disk, layout, runs)
    write_index(disk, layout, manifest)
    _copy_events(disk, layout, runs, clock)
    write_manifest(disk, layout, clock, manifest)
    disk.write_atomic(layout.config, [encode_config(runs[0].resolved)])


def _copy_transcripts(disk: Disk, layout: Layout, run: RunContents) -> None:
    for row in run.rows():
        task_id = entry(row, "task_id", str)
        _copy(disk, run.layout.transcript(task_id), layout.transcript(task_id), row)
    attempts = journal.attempts(disk, run.layout)
    if attempts:
        disk.make_directory(layout.attempts)
    for task_id, failed in attempts.items():
        for number, row in enumerate(failed, start=1):
            _copy(disk, run.layout.attempt(task_id, number), layout.attempt(task_id, number), row)


def _copy(disk: Disk, source: Path, target: Path, row: JsonObject) -> None:
    """Copy a transcript that is what its row says."""
    data = disk.read(source) if disk.exists(source) else b""
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise RunDirectoryError(
            f"{source} is not what was acknowledged; run the experiment again with --out {source.parent.parent}, "
            "which puts it right, and then merge"
        )
    # What a merge that was broken off has copied is there already, and whole; the name is synced with all others.
    if not disk.publish_once(target, data) and disk.read(target) != data:
        disk.write_atomic(target, [data])


def _copy_journals(disk: Disk, layout: Layout, runs: Sequence[RunContents]) -> None:
    number = 0
    for run in runs:
        name = run.layout.directory.resolve().name
        for session in journal.sessions(disk, run.layout):
            number += 1
            frames = journal.transplanted(disk, run.layout, session, to=number, run=name)
            disk.write_atomic(layout.segment(number), _in_chunks(frames))


def _copy_events(disk: Disk, layout: Layout, runs: Sequence[RunContents], clock: Clock) -> None:
    merged = event_line(EVENT_RUN_MERGED, clock.utc_now(), 0.0, {"runs": [_about(run) for run in runs]})
    lines = in_time_order([disk.chunks(run.layout.events) for run in runs])
    disk.write_atomic(layout.events, _in_chunks((*lines, merged)))


def _about(run: RunContents) -> JsonObject:
    shard = read_shard(run.disk, run.layout.directory)
    counts: JsonObject = dict(run.counts._asdict())
    return {"run": run.layout.directory.resolve().name, "shard": None if shard is None else str(shard), **counts}


def _manifest(disk: Disk, layout: Layout, runs: Sequence[RunContents]) -> Manifest:
    manifest = Manifest(
        layout.experiment_name, {task_id: index for run in runs for task_id, index in run.planned().items()}
    )
    for row in journal.rows(disk, layout):
        settle(manifest, entry(row, "task_id", str), entry(row, "status", str))
    return manifest


def _in_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces worth a write each."""
    gathered: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        gathered.append(piece)
        size_bytes += len(piece)
        if size_bytes >= READ_CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size_bytes = [], 0
    yield b"".join(gathered)
