"""Merging: several run directories of one experiment made into one, as `--shard` needs.

The new directory is what a single run would have left: its transcripts, byte for byte those of the sources; their
journal segments, one after the other as sessions of its own; their events, in the order of their times. It can be
verified, continued and extended like any other. The sources are only read.

Before anything is written, every result that a source names is accounted for: its transcript is what the journal
acknowledges, or it is adopted as a resume would. Otherwise the merge is refused, naming each such conversation.

`experiment.yaml` is written last except for the summary, so a killed merge leaves no run directory. The same command
does it again: what it wrote is replaced, and transcripts that are there already stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path

from mac_runner.clock import Clock, iso
from mac_runner.config import differences
from mac_runner.errors import IdentityError, RunDirectoryError, RunLockedError
from mac_runner.plan import Plan, Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.fork import ForkRecord, merged_fork
from mac_runner.store.head import event_logs, places_of_work
from mac_runner.store.identity import describe, encode_config, listed, read_shard, repair_advice, run_command
from mac_runner.store.layout import (
    CONFIG,
    FORK,
    MERGE_MARK,
    Layout,
    task_id_of,
    traces_beside,
)
from mac_runner.store.lock import locked, most_alive
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Manifest, read_manifest, write_index, write_manifest
from mac_runner.store.reader import RunContents, read_run
from mac_runner.store.records import encode_json, entry, event_line, in_time_order, row_id
from mac_runner.store.recovery import adoptable, claimed_rows
from mac_runner.store.run_state import RunState, read_state
from mac_runner.store.session import write_summary
from mac_runner.store.traces import TRACES, traces_flaw
from mac_runner.store.transcripts import encode_transcript, is_acknowledged, read_acknowledged
from mac_runner.types import JsonObject

EVENT_RUN_MERGED = "EVENT_RUN_MERGED"

_TASKS_NAMED_MAX = 3

Summarise = Callable[[RunContents], JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was merged. `missing` are the shards that were not among the sources, as far as known.

    `notes` say what was repaired on the way, `warnings` what was copied damaged or left out.
    """

    contents: RunContents
    summary: JsonObject
    missing: tuple[Shard, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A run directory to merge. `adopted` are the rows of results that its journal does not acknowledge."""

    run: RunContents
    adopted: tuple[JsonObject, ...]
    damage: Counter[str] = field(default_factory=Counter)

    @property
    def directory(self) -> Path:
        return self.run.layout.directory

    @property
    def adopted_ids(self) -> list[str]:
        return [row_id(row) for row in self.adopted]

    def on_damage(self) -> None:
        """Note a damaged line of its journal."""
        self.damage["lines"] += 1

    def rows(self) -> Iterator[JsonObject]:
        """The rows of all its results."""
        return chain(self.run.rows(), self.adopted)


def merge_runs(
    target: Path,
    sources: Sequence[Path],
    *,
    summarise: Summarise,
    plan: Callable[[RunContents], Plan],
    clock: Clock,
    disk: Disk | None = None,
) -> Merged:
    """Make the run directory `target` from the run directories `sources`; `plan` gives the plan of each.

    Raises IdentityError naming the fields when they are not of one experiment, RunDirectoryError when two of them
    worked on one conversation, when a result of one is damaged or lost, or when a directory cannot be used as it is,
    RunLockedError when another process is at work in `target`, StoreError when it cannot be written.
    """
    disk = disk or Disk()
    found = [read_run(source, disk=disk) for source in sources]
    _check_distinct(target, sources)
    _check_at_rest(disk, sources)
    _check_experiment(found)
    fork = merged_fork([(run.layout.directory, run.fork) for run in found])
    runs = _accounted([(run, plan(run)) for run in found])
    _check_disjoint(runs)
    mark = encode_json({"sources": [_named(source, target) for source in sources]}) + b"\n"
    # Before the lock, because its note would be the first thing to touch a directory in use.
    _check_free(disk, target, mark)
    disk.make_directory(target)
    with locked(disk, target, clock):
        _check_free(disk, target, mark)
        disk.write_atomic(target / MERGE_MARK, [mark])
        layout = Layout(directory=target, experiment_name=found[0].experiment_name)
        warnings = _write(disk, layout, runs, fork, clock)
        contents = read_run(target, disk=disk)
        summary = summarise(contents)
        write_summary(disk, layout, summary)
        disk.remove(target / MERGE_MARK)
    return Merged(
        contents=contents,
        summary=summary,
        missing=missing_shards(disk, sources),
        notes=tuple(_notes(runs)),
        warnings=tuple(warnings),
    )


def missing_shards(disk: Disk, sources: Iterable[Path]) -> tuple[Shard, ...]:
    """The shards that are not among the sources, if all sources are shards of the same number."""
    shards = [read_shard(disk, source) for source in sources]
    found = {shard for shard in shards if shard is not None}
    if None in shards or len({shard.of for shard in found}) != 1:
        return ()
    of = next(iter(found)).of
    return tuple(shard for number in range(1, of + 1) if (shard := Shard(number, of)) not in found)


def _named(source: Path, target: Path) -> str:
    """A source in the mark of a merge. One inside the target has another path on another machine."""
    source, target = source.resolve(), target.resolve()
    return str(source.relative_to(target) if source.is_relative_to(target) else source)


def _check_distinct(target: Path, sources: Sequence[Path]) -> None:
    places = [path.resolve() for path in (target, *sources)]
    for first, second in combinations(range(len(places)), 2):
        if places[first] == places[second]:
            raise RunDirectoryError(
                f"{sources[second - 1]} is named twice; name the new directory first, then each run once"
            )


def _check_at_rest(disk: Disk, sources: Sequence[Path]) -> None:
    """Raises RunLockedError when a process of this machine is at work in a source: it would be merged half done."""
    machine = Machine()
    for source in sources:
        holder = most_alive(disk, places_of_work(source, disk=disk), machine)
        if holder.is_alive:
            raise RunLockedError(f"{source} is being run: {holder.owner}; wait for it, or stop it, and then merge")


def _check_experiment(runs: Sequence[RunContents]) -> None:
    first = runs[0]
    for other in runs[1:]:
        if changed := differences(first.resolved, other.resolved).identity:
            here, there = str(first.layout.directory), str(other.layout.directory)
            fields = "".join(f"\n  {describe(item, old=f'in {here}', new=f'in {there}')}" for item in changed)
            raise IdentityError(
                f"{here} and {there} are of different experiments:{fields}\nmerge runs of one experiment only"
            )


def _accounted(runs: Iterable[tuple[RunContents, Plan]]) -> list[_Source]:
    """The runs with all of their results. Raises RunDirectoryError naming every result that is damaged or lost."""
    sources: list[_Source] = []
    refusals: list[str] = []
    for run, plan in runs:
        source, flaws = _account(run, plan)
        sources.append(source)
        if flaws:
            refusals.append(_refusal(run, flaws))
    if refusals:
        raise RunDirectoryError("\n".join(refusals))
    return sources


def _account(run: RunContents, plan: Plan) -> tuple[_Source, list[str]]:
    """A run with all of its results, and in words each result that cannot be merged."""
    disk, layout = run.disk, run.layout
    flaws: dict[str, str] = {}
    acknowledged, attempts, open_again = run.state.endings.keys(), run.state.attempts, run.state.reopened
    for row in run.rows():
        if (flaw := run.flaw(row)) is not None:
            flaws[row_id(row)] = flaw
    # The transcript of a failed attempt may be there until the next session removes it.
    superseded = {
        task_id for task_id in open_again if is_acknowledged(disk, layout.transcript(task_id), attempts[task_id][-1])
    }
    present = set(filter(None, map(task_id_of, disk.names(layout.transcripts))))
    orphans = sorted(present - acknowledged - superseded)
    claims = claimed_rows(disk, layout, acknowledged.__contains__)
    seeds = {task.task_id: task.seed for task in plan.those(orphans.__contains__)} if orphans else {}
    adopted: list[JsonObject] = []
    for task_id, judged in adoptable(disk, layout, orphans, claims=claims, seeds=seeds, attempts=attempts):
        if isinstance(judged, str):
            flaws[task_id] = f"{layout.transcript(task_id)} is not acknowledged by the journal, and {judged}"
        else:
            adopted.append(judged)
    for task_id, place in _endings(run, claims).items():
        if task_id not in acknowledged | present | open_again:
            flaws[task_id] = f"{task_id} has ended by {place}, and has neither a transcript nor a record in the journal"
    return _Source(run=run, adopted=tuple(adopted)), [flaws[task_id] for task_id in sorted(flaws)]


def _endings(run: RunContents, claims: Iterable[str]) -> dict[str, str]:
    """The tasks that have ended by the manifest or the index, each with the one that says so."""
    statuses = read_manifest(run.disk, run.layout).statuses
    ended = (task_id for task_id, status in statuses.items() if status != "pending")
    return dict.fromkeys(ended, "the manifest") | dict.fromkeys(claims, "the index")


def _refusal(run: RunContents, flaws: Sequence[str]) -> str:
    directory = run.layout.directory
    shard = "" if run.shard is None else f", shard {run.shard},"
    return (
        f"{directory}{shard} cannot be merged; damaged or lost results: {len(flaws)}\n{listed(flaws)}\n"
        f"{repair_advice(directory)}; what that has not is played again by `{run_command(run.disk, directory)}`; "
        "then merge"
    )


def _check_disjoint(runs: Sequence[_Source]) -> None:
    """Raises RunDirectoryError when two runs worked on one conversation: a program cannot choose between them."""
    owners: dict[str, Path] = {}
    for source in runs:
        here = source.directory
        run = source.run
        begun = journal.replied(run.disk, run.layout) | run.state.endings.keys() | {*source.adopted_ids}
        if shared := sorted(task_id for task_id in begun if task_id in owners):
            names = ", ".join(shared[:_TASKS_NAMED_MAX])
            more = f" and {len(shared) - _TASKS_NAMED_MAX} more" if len(shared) > _TASKS_NAMED_MAX else ""
            raise RunDirectoryError(
                f"{owners[shared[0]]} and {here} have both worked on {names}{more}; "
                "a merge takes each conversation from one run: leave one of the two out"
            )
        owners |= dict.fromkeys(begun, here)


def _check_free(disk: Disk, target: Path, mark: bytes) -> None:
    """Raises RunDirectoryError when `target` is in use, except by the same merge, broken off."""
    # The names first: a merge at the same time writes its mark before everything else, and removes it last.
    names = disk.names(target)
    if found := b"".join(disk.chunks(target / MERGE_MARK)):
        if found != mark:
            raise RunDirectoryError(
                f"{target} holds a merge of other runs that was broken off; name those again, in their order, or "
                "another directory"
            )
        return
    strays = [name for name in names if not name.startswith(".")]
    if strays:
        what = "a run" if CONFIG in strays else repr(strays[0])
        raise RunDirectoryError(f"{target} holds {what} already; a merge makes a new directory, name another one")


def _write(disk: Disk, layout: Layout, runs: Sequence[_Source], fork: ForkRecord | None, clock: Clock) -> list[str]:
    """Write everything except the summary; returns what was copied damaged or left out."""
    for directory in (layout.journal, layout.transcripts):
        disk.make_directory(directory)
    for directory in layout.swept:
        disk.sweep(directory)
    warnings: list[str] = []
    for source in runs:
        _copy_transcripts(disk, layout, source)
        warnings += _copy_attempts(disk, layout, source.run)
    for directory in filter(disk.exists, (layout.transcripts, layout.traces, layout.attempts)):
        disk.sync_directory(directory)
    _copy_journals(disk, layout, runs, clock)
    state = read_state(disk, layout)
    manifest = _manifest(layout, runs, state)
    write_index(disk, layout, state.rows(disk, layout), manifest)
    _copy_events(disk, layout, runs, clock)
    write_manifest(disk, layout, manifest, updated_at=iso(clock.utc_now()))
    if fork is not None:
        disk.write_atomic(layout.directory / FORK, [encode_transcript(fork.as_json())])
    disk.write_atomic(layout.config, [encode_config(runs[0].run.resolved)])
    return warnings


def _copy_transcripts(disk: Disk, layout: Layout, source: _Source) -> None:
    for row in source.rows():
        task_id = row_id(row)
        path = source.run.layout.transcript(task_id)
        try:
            data = read_acknowledged(disk, path, row)
        except ValueError as fault:
            raise RunDirectoryError(f"{path} {fault}; it was when the merge began: merge again") from fault
        if TRACES in row:
            disk.make_directory(layout.traces)
            _put(disk, traces_beside(layout.transcript(task_id)), disk.read(traces_beside(path)))
        _put(disk, layout.transcript(task_id), data)


def _copy_attempts(disk: Disk, layout: Layout, run: RunContents) -> Iterator[str]:
    """Copy the retried attempts as they are; yields those that are damaged or gone, in words."""
    if run.state.attempts:
        disk.make_directory(layout.attempts)
    for task_id, failed in run.state.attempts.items():
        for number, row in enumerate(failed, start=1):
            path, target = run.layout.attempt(task_id, number), layout.attempt(task_id, number)
            for source, copy in ((path, target), (traces_beside(path), traces_beside(target))):
                if disk.is_file(source):
                    _put(disk, copy, disk.read(source))
            try:
                read_acknowledged(disk, path, row)
            except ValueError as fault:
                yield f"{path}, a failed attempt, {fault}; {repair_advice(layout.directory)}"
            if (flaw := traces_flaw(disk, traces_beside(path), row)) is not None:
                yield f"{traces_beside(path)}, of a failed attempt, {flaw}; {repair_advice(layout.directory)}"


def _put(disk: Disk, target: Path, data: bytes) -> None:
    # A merge that was broken off may have copied it already, whole; the name is synced with all others.
    if not disk.publish_once(target, data) and disk.read(target) != data:
        disk.write_atomic(target, [data])


def _copy_journals(disk: Disk, layout: Layout, runs: Sequence[_Source], clock: Clock) -> None:
    """Copy the sessions; the last one of each run gets the results that its journal had lost."""
    number = 0
    for source in runs:
        run, name = source.run, source.directory.resolve().name
        sessions = journal.sessions(disk, run.layout)
        adopted = [journal.done_frame(row) for row in source.adopted]
        if adopted and not sessions:
            number += 1
            began = journal.session_frame(number, started_at=iso(clock.utc_now()), run=name)
            disk.write_atomic(layout.segment(number), [began, *adopted])
        for session in sessions:
            number += 1
            frames = journal.transplanted(disk, run.layout, session, to=number, run=name, on_damage=source.on_damage)
            more = adopted if session == sessions[-1] else []
            disk.write_atomic(layout.segment(number), chain(frames, more))


def _copy_events(disk: Disk, layout: Layout, runs: Sequence[_Source], clock: Clock) -> None:
    merged = event_line(EVENT_RUN_MERGED, clock.utc_now(), 0.0, {"runs": [_about(source) for source in runs]})
    lines = in_time_order([disk.chunks(log) for source in runs for log in event_logs(source.directory, disk=disk)])
    disk.write_atomic(layout.events, chain(lines, [merged]))


def _about(source: _Source) -> JsonObject:
    shard = source.run.shard
    counts: JsonObject = dict(source.run.counts._asdict())
    adopted: JsonObject = {"adopted": [*source.adopted_ids]} if source.adopted else {}
    return {
        "run": source.directory.resolve().name,
        "shard": None if shard is None else str(shard),
        **counts,
        **adopted,
    }


def _notes(runs: Sequence[_Source]) -> Iterator[str]:
    """What a user should know about adopted results and records that were left out."""
    for source in runs:
        if source.adopted:
            yield (
                f"{source.directory}: {len(source.adopted)} results that its journal does not acknowledge are taken "
                f"over by their transcripts\n{listed(source.adopted_ids)}"
            )
        if source.damage:
            yield f"{source.directory}: {source.damage.total()} damaged lines of its journal stay behind"


def _manifest(layout: Layout, runs: Sequence[_Source], state: RunState) -> Manifest:
    planned = {task_id: index for source in runs for task_id, index in source.run.planned().items()}
    planned |= {row_id(row): entry(row, "index", int) for source in runs for row in source.adopted}
    manifest = Manifest(layout.experiment_name, planned)
    for task_id, ending in state.endings.items():
        manifest.settle(task_id, ending.status)
    return manifest
