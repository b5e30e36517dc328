"""Merging: several run directories of one experiment made into one, as `--shard` needs.

The new directory is what a single run would have left: its transcripts, byte for byte those of the sources; their
journal segments, one after the other as sessions of its own; their events, in the order of their times. It can be
verified, continued and extended like any other. The sources are only read.

Before anything is written, every result that a source names is accounted for: its transcript is what the journal
acknowledges, or it is adopted as a resume would. Otherwise the merge is refused, naming each such conversation.

`experiment.yaml` is written last except for the summary, so a killed merge leaves no run directory. The same command
does it again, from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mac_runner.clock import Clock, iso
from mac_runner.config import differences
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError
from mac_runner.plan import Plan, Shard
from mac_runner.printable import some_of
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.fork import ForkRecord, merged_fork
from mac_runner.store.identity import describe, encode_config, listed, run_command
from mac_runner.store.layout import (
    CONFIG,
    FORK,
    MERGE_MARK,
    Layout,
    attempted_task_of,
    refuse_in_grid,
    repair_advice,
    traces_beside,
    visible,
)
from mac_runner.store.leases import at_work, locked
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import ended_by_manifest, write_index, write_manifest
from mac_runner.store.records import encode_json, event_line, in_time_order, row_id
from mac_runner.store.recovery import adopted, attempt_flaws, claimed_rows, held_in
from mac_runner.store.run import Run, lost_endings, read_run
from mac_runner.store.run_state import read_state
from mac_runner.store.session import write_summary
from mac_runner.store.traces import TRACES
from mac_runner.store.transcripts import encode_transcript, result_flaw, superseded
from mac_runner.types import JsonObject

EVENT_RUN_MERGED = "EVENT_RUN_MERGED"

_TASKS_NAMED_MAX = 3

Summarise = Callable[[Run], JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was merged. `missing` are the shards that were not among the sources, as far as known.

    `notes` say what was repaired on the way, `warnings` what was copied damaged or left out.
    """

    contents: Run
    summary: JsonObject
    missing: tuple[Shard, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


class _Source(NamedTuple):
    """A run directory to merge."""

    run: Run
    adopted: Sequence[JsonObject]
    """The rows of results that its journal does not acknowledge."""
    flaws: Sequence[str]
    """The results that are damaged or lost, in words."""

    @property
    def directory(self) -> Path:
        return self.run.layout.directory


def merge_runs(
    target: Path,
    sources: Sequence[Path],
    *,
    summarise: Summarise,
    plan: Callable[[Run], Plan],
    clock: Clock,
    disk: Disk | None = None,
) -> Merged:
    """Make the run directory `target` from the run directories `sources`; `plan` gives the plan of each.

    Raises IdentityError naming the fields when they are not of one experiment, RunDirectoryError when two of them
    worked on one conversation, when a result of one is damaged or lost, or when a directory cannot be used as it is,
    RunLockedError when another process is at work in `target`, StoreError when it cannot be written.
    """
    disk = disk or Disk()
    found = [Run.at(source, disk=disk, keeps_replies=True) for source in sources]
    for run in found:
        run.follow()
    _check_at_rest(disk, sources)
    _check_experiment(found)
    fork = merged_fork([(run.layout.directory, run.fork) for run in found])
    runs = [_account(run, plan(run)) for run in found]
    if refusals := [_refusal(source) for source in runs if source.flaws]:
        raise RunDirectoryError("\n".join(refusals))
    _check_disjoint(runs)
    mark = encode_json({"sources": [str(source.resolve()) for source in sources]}) + b"\n"
    # Before the lock, because its note would be the first thing to touch a directory in use.
    _check_free(disk, target, mark)
    disk.make_directory(target)
    with locked(disk, target, clock):
        _check_free(disk, target, mark)
        disk.write_atomic(target / MERGE_MARK, [mark])
        layout = Layout(directory=target, experiment_name=found[0].experiment_name)
        _empty(disk, layout)
        notes = [note for source in runs for note in _copy(disk, layout, source, clock)]
        warnings = [*_write(disk, layout, runs, fork, clock)]
        contents = read_run(target, disk=disk)
        summary = summarise(contents)
        write_summary(disk, layout, summary)
        disk.remove(target / MERGE_MARK)
    return Merged(
        contents=contents,
        summary=summary,
        missing=_missing_shards([run.shard for run in found]),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _missing_shards(shards: Sequence[Shard | None]) -> tuple[Shard, ...]:
    """The shards that are not among those of the sources, if all sources are shards of the same number."""
    found = {shard for shard in shards if shard is not None}
    if None in shards or len({shard.of for shard in found}) != 1:
        return ()
    of = next(iter(found)).of
    return tuple(shard for number in range(1, of + 1) if (shard := Shard(number, of)) not in found)


def _check_at_rest(disk: Disk, sources: Sequence[Path]) -> None:
    """Raises RunLockedError when a process of this machine is at work in a source: it would be merged half done."""
    machine = Machine()
    for source in sources:
        holder = at_work(disk, source, machine)
        if holder.is_alive:
            raise RunLockedError(f"{source} is being run: {holder.owner}; wait for it, or stop it, and then merge")


def _check_experiment(runs: Sequence[Run]) -> None:
    first = runs[0]
    for other in runs[1:]:
        if changed := differences(first.resolved, other.resolved).identity:
            here, there = str(first.layout.directory), str(other.layout.directory)
            fields = "".join(f"\n  {describe(item, old=f'in {here}', new=f'in {there}')}" for item in changed)
            raise IdentityError(
                f"{here} and {there} are of different experiments:{fields}\nmerge runs of one experiment only"
            )


def _account(run: Run, plan: Plan) -> _Source:
    """A run with all of its results, and what is wrong with them."""
    disk, layout, state = run.disk, run.layout, run.state
    found = held_in(disk, layout)
    orphans = found - state.endings.keys() - superseded(disk, layout, state.attempts, state.reopened)
    claims = claimed_rows(disk, layout, state.endings.__contains__)
    rows, refused = adopted(disk, layout, plan, orphans, claims, state.attempts)
    lost = (lost_endings(ended_by_manifest(disk, layout), state) | claims.keys()) - found - state.reopened
    flaws = {row_id(row): flaw for row in run.rows() if (flaw := run.flaw(row)) is not None}
    for task_id, why in refused.items():
        flaws[task_id] = f"{layout.transcript(task_id)} is not acknowledged by the journal, and {why}"
    for task_id in lost:
        flaws[task_id] = f"{task_id} has ended by the manifest or the index, and there is no transcript and no record"
    return _Source(run, rows, [flaws[task_id] for task_id in sorted(flaws)])


def _refusal(source: _Source) -> str:
    directory, shard = source.directory, source.run.shard
    again = run_command(source.run.disk, directory)
    return (
        f"{directory}{'' if shard is None else f', shard {shard},'} cannot be merged; damaged or lost results: "
        f"{len(source.flaws)}\n{listed(source.flaws)}\n"
        f"{repair_advice(directory)}; what that has not is played again by `{again}`; then merge"
    )


def _check_disjoint(runs: Sequence[_Source]) -> None:
    """Raises RunDirectoryError when two runs worked on one conversation: a program cannot choose between them."""
    owners: dict[str, Path] = {}
    for source in runs:
        here, run = source.directory, source.run
        begun = {*run.replied, *run.state.endings, *run.state.attempts, *map(row_id, source.adopted)}
        if shared := sorted(task_id for task_id in begun if task_id in owners):
            raise RunDirectoryError(
                f"{owners[shared[0]]} and {here} have both worked on {some_of(shared, _TASKS_NAMED_MAX)}; "
                "a merge takes each conversation from one run: leave one of the two out"
            )
        owners |= dict.fromkeys(begun, here)


def _check_free(disk: Disk, target: Path, mark: bytes) -> None:
    """Raises RunDirectoryError when `target` is in use, except by the same merge, broken off."""
    # The names first: a merge at the same time writes its mark before everything else, and removes it last.
    strays = visible(disk, target)
    if found := b"".join(disk.chunks(target / MERGE_MARK)):
        if found != mark:
            raise RunDirectoryError(
                f"{target} holds a merge of other runs that was broken off; name those again, in their order, or "
                "another directory"
            )
        return
    refuse_in_grid(disk, target)
    if strays:
        what = "a run" if CONFIG in strays else repr(strays[0])
        raise RunDirectoryError(f"{target} holds {what} already; a merge makes a new directory, name another one")


def _empty(disk: Disk, layout: Layout) -> None:
    """Take back what a merge that was broken off has left: first what makes it a run directory."""
    disk.remove(layout.config)
    disk.sync_directory(layout.directory)
    for directory in layout.swept:
        disk.sweep(directory)
    for directory in (layout.journal, layout.transcripts, layout.traces, layout.attempts):
        for name in disk.names(directory):
            disk.remove(directory / name)


def _copy(disk: Disk, layout: Layout, source: _Source, clock: Clock) -> Iterator[str]:
    """Copy the journal and all results of a run; yields what a user should know of it."""
    run, name = source.run, source.directory.resolve().name
    for row in chain(run.rows(), source.adopted):
        path, copy = run.layout.transcript(row_id(row)), layout.transcript(row_id(row))
        if TRACES in row:
            _copy_file(disk, traces_beside(path), traces_beside(copy))
        _copy_file(disk, path, copy)
        if result_flaw(disk, copy, row) is not None:
            raise RunDirectoryError(f"{path} was changed while it was copied; merge again")
    for attempt in disk.names(run.layout.attempts):
        path, task_id = run.layout.attempts / attempt, attempted_task_of(attempt)
        if task_id is not None and run.layout.holds(task_id) and disk.is_file(path):
            _copy_file(disk, path, layout.attempts / attempt)
    disk.make_directory(layout.journal)
    if damaged := journal.copy_sessions(disk, run.layout, layout, run=name):
        yield f"{source.directory}: {damaged} damaged lines of its journal stay behind"
    if source.adopted:
        with closing(journal.Segment(disk, layout, started_at=iso(clock.utc_now()), run=name)) as segment:
            segment.write([*map(journal.done_frame, source.adopted)])
        yield (
            f"{source.directory}: {len(source.adopted)} results that its journal does not acknowledge are taken over "
            f"by their transcripts\n{listed([*map(row_id, source.adopted)])}"
        )


def _copy_file(disk: Disk, path: Path, copy: Path) -> None:
    disk.make_directory(copy.parent)
    disk.publish_once(copy, disk.read(path))


def _write(disk: Disk, layout: Layout, runs: Sequence[_Source], fork: ForkRecord | None, clock: Clock) -> Iterator[str]:
    """Write what follows from the copies, and the settings last; yields which copies are damaged."""
    for directory in filter(disk.exists, (layout.transcripts, layout.traces, layout.attempts)):
        disk.sync_directory(directory)
    state = read_state(disk, layout)
    planned = {task_id: index for source in runs for task_id, index in source.run.planned().items()}
    manifest = state.manifest(layout.experiment_name, planned)
    write_index(disk, layout, state.json_rows(disk, layout), manifest)
    write_manifest(disk, layout, manifest, updated_at=iso(clock.utc_now()))
    lines = in_time_order([source.run.event_lines() for source in runs])
    merged = event_line(EVENT_RUN_MERGED, clock.utc_now(), 0.0, {"runs": [_about(source) for source in runs]})
    disk.write_atomic(layout.events, chain(lines, [merged]))
    if fork is not None:
        disk.write_atomic(layout.directory / FORK, [encode_transcript(fork.as_json())])
    disk.write_atomic(layout.config, [encode_config(runs[0].run.resolved)])
    for *_, flaw in attempt_flaws(disk, layout, state.attempts):
        yield f"{flaw}, of a failed attempt; {repair_advice(layout.directory)}"


def _about(source: _Source) -> JsonObject:
    shard = source.run.shard
    return {
        "run": source.directory.resolve().name,
        "shard": None if shard is None else str(shard),
        **source.run.counts._asdict(),
        **({"adopted": [*map(row_id, source.adopted)]} if source.adopted else {}),
    }
