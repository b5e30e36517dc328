"""Reading a run directory without a lock: for reports, status, dry runs and the curious. Writes nothing.

Everything is derived from the journal, so it is right while the run is under way and after a kill, when index and
manifest lag behind. `read_run` opens what is there, `read_standing` says how far a run is, `survey` says what a run
would find.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from mac_runner.config import Difference, recorded_speakers
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan, Shard
from mac_runner.printable import counted
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.fork import ForkRecord, read_fork
from mac_runner.store.head import ended_by_manifest, event_logs, places_of_work, read_head, read_planned
from mac_runner.store.identity import (
    begun_with,
    describe,
    listed,
    read_shard,
    repair_advice,
)
from mac_runner.store.layout import Layout, Lease
from mac_runner.store.lock import Holder, most_alive
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Counts, Manifest, in_task_order, read_manifest
from mac_runner.store.records import in_time_order, lines, origin_of, row_id
from mac_runner.store.recovery import trace_flaws, trace_strays
from mac_runner.store.rows import CountedRows, DoneRow
from mac_runner.store.run_state import RunState, SessionStanding, read_state
from mac_runner.store.traces import Traces, read_traces
from mac_runner.store.transcripts import (
    check_acknowledged,
    decode_transcript,
    read_acknowledged,
    read_published,
    result_flaw,
    salvaged_task,
    transcript_sizes,
)
from mac_runner.store.workers import ShardsStanding, shards_standing
from mac_runner.types import JsonObject, JsonValue, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContents:
    """What a run directory held when it was read."""

    layout: Layout
    resolved: JsonObject
    counts: Counts
    state: RunState
    disk: Disk

    @property
    def experiment_name(self) -> str:
        """The name of the experiment."""
        return self.layout.experiment_name

    @property
    def environment_name(self) -> str:
        """The environment, as the experiment names it; empty where that is damaged."""
        conversation = self.resolved.get("conversation_config")
        return str(conversation.get("environment")) if isinstance(conversation, dict) else ""

    @property
    def accounting(self) -> JsonObject:
        """What the sessions used and ended (`RunState.accounting`)."""
        self.state.count_recorded(self.disk, self.layout)
        return self.state.accounting()

    @property
    def lost(self) -> int:
        """How many conversations have ended by the manifest, and their endings are not in the journal."""
        ended = ended_by_manifest(self.disk, self.layout)
        # Those that ended after this was read are in the journal by now.
        return len(lost_endings(ended, self.state) and lost_endings(ended, read_state(self.disk, self.layout)))

    @property
    def shard(self) -> Shard | None:
        """The part of the experiment this is; None for all of it."""
        return read_shard(self.disk, self.layout.root)

    @property
    def fork(self) -> ForkRecord | None:
        """Where its conversations come from, if it is a fork."""
        return read_fork(self.disk, self.layout.directory)

    def rows(self) -> Iterator[JsonObject]:
        """The index rows of all ended conversations, read one by one."""
        return self.state.rows(self.disk, self.layout)

    def rows_in_task_order(self) -> Iterator[JsonObject]:
        """The same in the order of their tasks."""
        return (found.whole() for found in self.json_rows_in_task_order())

    def json_rows_in_task_order(self) -> Iterator[DoneRow]:
        """The same as JSON; few of them are held at a time.

        The forks of one conversation stand together, also where forks were merged.
        """
        endings, left = self.state.endings, self.json_rows()

        def order(task_id: str) -> tuple[str, int, str]:
            origin = origin_of(task_id)
            return "" if origin == task_id else origin, endings[task_id].task_index, task_id

        waiting: dict[str, DoneRow] = {}
        for task_id in sorted(endings, key=order):
            if task_id in waiting:
                yield waiting.pop(task_id)
                continue
            for found in left:
                if found.task_id == task_id:
                    yield found
                    break
                waiting[found.task_id] = found

    def json_rows(self) -> Iterator[DoneRow]:
        """The index rows as JSON, in the order in which their conversations ended."""
        return self.state.json_rows(self.disk, self.layout)

    def planned(self) -> dict[str, int]:
        """Every planned task, with its index."""
        done = {task_id: ending.task_index for task_id, ending in self.state.endings.items()}
        return {**read_planned(self.disk, self.layout), **done}

    def failed(self) -> set[str]:
        """The tasks whose conversations have failed."""
        return {task_id for task_id, ending in self.state.endings.items() if ending.status == "failed"}

    def under_retry(self) -> set[str]:
        """The tasks that have failed, are retried, and have not ended yet."""
        return self.state.reopened

    def transcript(self, task_id: str) -> JsonObject:
        """The transcript of a conversation that has ended. Raises RunDirectoryError as `acknowledged` does."""
        if task_id not in self.state.endings:
            raise self._missing(task_id)
        return self.acknowledged(self._ended(task_id))

    def shown(self, task_id: str) -> tuple[JsonObject, str]:
        """A transcript as it is, and how it differs from what was acknowledged, with the remedy; empty if it does not.

        For people alone: it may be of a conversation that has not ended for this reader, and then it is not compared.
        Raises RunDirectoryError when there is none or it cannot be read.
        """
        path = self.layout.transcript(task_id)
        if not self.disk.exists(path):
            raise self._missing(task_id)
        try:
            transcript, data = read_published(self.disk, self.layout, task_id)
        except ValueError as fault:
            raise RunDirectoryError(f"{path} cannot be read ({fault}); {self.repair_advice(task_id)}") from fault
        try:
            if task_id in self.state.endings:
                check_acknowledged(data, self._ended(task_id))
        except ValueError as fault:
            return transcript, f"{path} {fault}; {self.repair_advice(task_id)}"
        return transcript, ""

    def _missing(self, task_id: str) -> RunDirectoryError:
        """The error for a task without a transcript, or for a name that is none."""
        self.layout.transcript(task_id)
        ended = f"{self.counts.done} of {self.counts.planned} conversations have ended so far"
        return RunDirectoryError(f"{self.layout.directory} has no transcript of {task_id!r}: {ended}")

    def _ended(self, task_id: str) -> JsonObject:
        """What the index row of a task says of its transcript."""
        return {"task_id": task_id, "sha256": self.state.endings[task_id].sha256.hex()}

    def acknowledged(self, row: JsonObject) -> JsonObject:
        """The transcript of a row. Raises RunDirectoryError when it is not what was acknowledged."""
        path = self.layout.transcript(row_id(row))
        try:
            return decode_transcript(read_acknowledged(self.disk, path, row))
        except ValueError as fault:
            raise RunDirectoryError(f"{path} {fault}; {self.repair_advice(row_id(row))}") from fault

    def traces(self, transcript: JsonObject) -> Traces:
        """The token traces of a transcript by turn; empty where there are none. Raises as `read_traces`."""
        return read_traces(self.layout, transcript, disk=self.disk)

    def repair_advice(self, task_id: str) -> str:
        """The command that restores the transcript of a task."""
        return repair_advice(self.layout.directory)

    def flaw(self, row: JsonObject) -> str | None:
        """How the transcript of a row differs from what is acknowledged there; None when it does not."""
        return result_flaw(self.disk, self.layout.transcript(row_id(row)), row)

    def failed_transcripts(self, wanted: Collection[str]) -> Iterator[JsonObject]:
        """The transcripts of the wanted conversations that failed, or whose last attempt failed and is retried.

        After the last one, raises RunDirectoryError naming all that are not what was acknowledged.
        """
        flaws: list[str] = []
        for path, row in self._failures(wanted):
            try:
                yield decode_transcript(read_acknowledged(self.disk, path, row))
            except ValueError as fault:
                flaws.append(f"{path} {fault}")
        if flaws:
            raise RunDirectoryError(f"{listed(flaws)}\n{repair_advice(self.layout.directory)}; then retry")

    def recorded_material(self, task_id: str) -> JsonObject | None:
        """The material of a task, from any of its transcripts, damaged ones too; None when none has it.

        Not to be trusted without comparing a digest.
        """
        layout, prefix = self.layout, f"{task_id}."
        places = [layout.transcript(task_id)]
        for directory in (layout.damaged, layout.attempts):
            named = (name for name in self.disk.names(directory) if name.startswith(prefix))
            places += [directory / name for name in named]
        for path in filter(self.disk.is_file, places):
            if (task := salvaged_task(self.disk.read(path))) is not None and task.task_id == task_id:
                return None if task.material is None else dict(task.material)
        return None

    def answers(self, task_id: str) -> Iterator[JsonObject]:
        """The events of the replies of one conversation, in the order in which they came.

        An event is logged after its reply, so one may be missing after a kill. A torn line is skipped.
        """
        named = task_id.encode()
        for event in self.events("EVENT_INFER_DONE", is_wanted=lambda line: named in line):
            if event["task"] == task_id and not event["is_dropped"]:
                yield event

    def events(self, *names: str, is_wanted: Callable[[bytes], bool] = lambda _line: True) -> Iterator[JsonObject]:
        """The events of these names, in the order in which they were logged. A torn line is skipped."""
        quoted = [f'"{name}"'.encode() for name in names]
        for line in self.event_lines():
            # Most lines are about other things, and parsing costs far more than looking.
            if is_wanted(line) and any(name in line for name in quoted):
                with suppress(ValueError):
                    yield json.loads(line)

    def event_lines(self) -> Iterator[bytes]:
        """The lines of its event logs, in the order of their times. A torn one is skipped."""
        logs = event_logs(self.layout.directory, disk=self.disk)
        return filter(self.layout.has_event, in_time_order([self.disk.chunks(log) for log in logs]))

    def _failures(self, wanted: Collection[str]) -> Iterator[tuple[Path, JsonObject]]:
        """The transcript and the row of the last attempt at each wanted conversation."""
        for row in self.rows():
            if (task_id := row_id(row)) in wanted:
                yield self.layout.transcript(task_id), row
        for task_id in self.state.attempts:
            if task_id in wanted and task_id not in self.state.endings:
                failed = self.state.attempts[task_id]
                yield self.layout.attempt(task_id, len(failed)), failed[-1]


def read_run(directory: Path, *, disk: Disk | None = None) -> RunContents:
    """Read a run directory. Raises RunDirectoryError when there is none.

    What counts as planned is what is planned now: an earlier plan is not kept.
    """
    disk = disk or Disk()
    head = read_head(directory, disk=disk)
    state = read_state(disk, head.layout)
    statuses = Counter(ending.status for ending in state.endings.values())
    planned = len(head.planned.keys() | state.endings.keys())
    counts = Counts(planned=planned, finished=statuses["finished"], failed=statuses["failed"])
    return RunContents(layout=head.layout, resolved=head.resolved, counts=counts, state=state, disk=disk)


def lost_endings(ended: frozenset[str], state: RunState) -> frozenset[str]:
    """The tasks that have `ended` by the manifest, which was read first, and have no ending in the journal.

    There are none where the journal is whole: the manifest is behind it, and never ahead.
    """
    return ended - state.endings.keys() - state.reopened


def lost_words(directory: Path, lost: int) -> str:
    """What to say of a run whose journal has lost the endings of so many conversations."""
    return (
        f"{directory}: the endings of {counted(lost, 'conversations')} are not in the journal, which was cut off or "
        "damaged; run the experiment again: it takes over their transcripts, or plays them again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a run is. `latest` is its last session, and `usage` is what all of them used.

    `holder` is who left a note, of several one that is alive.
    """

    directory: Path
    experiment_name: str
    shard: Shard | None
    planned: int
    finished: int
    failed: int
    half_done: int
    failures: tuple[JsonObject, ...]
    sessions: int
    latest: SessionStanding | None
    usage: JsonObject
    holder: Holder
    counts: JsonObject = field(default_factory=dict)
    """Over all that ended, what `transcripts` counts: `turns`, `corrections`, `defaults`, and by agent definition."""
    policies: JsonObject = field(default_factory=dict)
    """`RunState.policies_json`."""
    speakers: Mapping[str, str] = field(default_factory=dict)
    """The model of each agent definition."""
    lost: int = 0
    """`RunContents.lost`."""
    shards: ShardsStanding | None = None
    """While workers claim its shards, how far these are."""

    @property
    def ended(self) -> int:
        """How many conversations have ended, finished or failed."""
        return self.finished + self.failed


def read_standing(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> Standing:
    """How far a run is, also while it is under way. Raises RunDirectoryError when there is none.

    Opens no transcript and parses no reply, so it takes seconds at a hundred thousand conversations.
    """
    disk, machine = disk or Disk(), machine or Machine()
    head = read_head(directory, disk=disk)
    layout = head.layout
    ended = ended_by_manifest(disk, layout)
    state = read_state(disk, layout)
    state.count_recorded(disk, layout)
    failures: list[JsonObject] = []
    counts = CountedRows()
    for found in state.json_rows(disk, layout):
        counts.add(found.parsed.counts)
        if found.parsed.status == "failed":
            failures.append(found.whole())
    return Standing(
        directory=directory,
        experiment_name=layout.experiment_name,
        shard=read_shard(disk, layout.root),
        planned=len(head.planned.keys() | state.endings.keys()),
        finished=len(state.endings) - len(failures),
        failed=len(failures),
        half_done=len(journal.replied(disk, layout) - state.endings.keys()),
        failures=tuple(failures),
        sessions=len(state.sessions),
        latest=state.latest,
        usage=state.usage,
        holder=most_alive(disk, places_of_work(directory, disk=disk), machine),
        counts=counts.as_json(),
        policies=state.policies_json(),
        speakers=recorded_speakers(head.resolved),
        lost=len(lost_endings(ended, state)),
        shards=shards_standing(disk, machine, layout, state),
    )


def added_counts(total: JsonObject, counts: JsonValue) -> JsonObject:
    """The counts of two parts of a run; nothing for what is not a count."""
    found = dict(total)
    for key, value in (counts if isinstance(counts, dict) else {}).items():
        here = found.get(key, 0)
        if isinstance(value, dict):
            found[key] = added_counts(here if isinstance(here, dict) else {}, value)
        elif isinstance(value, int) and isinstance(here, int):
            found[key] = here + value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """How far the tasks of one invocation are.

    `half_done` have recorded replies to continue from. `is_complete` means that running would change nothing: all is
    done, and every file is in its final form but for the summary, which is written again where it is not right.
    """

    planned: int
    finished: int
    failed: int
    half_done: int
    recorded_replies: int
    changed_settings: tuple[str, ...]
    is_complete: bool
    policies: Mapping[str, Sequence[PolicyVersion]] = field(default_factory=dict)
    """The versions that each model had."""
    ended: Container[str] = ()
    """The tasks whose conversations have ended, with their transcripts there."""

    def has_ended(self, tasks: Plan) -> bool:
        """Whether all these conversations have."""
        return all(task_id in self.ended for task_id, _ in tasks.ids())

    @property
    def left(self) -> int:
        """How many have not ended."""
        return self.planned - self.finished - self.failed

    @property
    def untouched(self) -> int:
        """How many have not begun."""
        return self.left - self.half_done


def survey(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Plan,
    shard: Shard | None = None,
    grid: Path | None = None,
    disk: Disk | None = None,
) -> Survey:
    """Look at a directory as `open_run` would, with the same refusals, and change nothing."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=experiment_name, grid=grid)
    changed = _changes(disk, layout, resolved, shard)
    sizes = transcript_sizes(disk, layout, (task_id for task_id, _ in tasks.ids()))
    state = read_state(disk, layout)
    endings = {
        task_id: ending.status for task_id, ending in state.endings.items() if sizes.get(task_id) == ending.size_bytes
    }
    recorded = journal.replies(disk, layout, lambda task_id: task_id not in endings)
    found = Counter(endings.get(task_id) for task_id, _ in tasks.ids())
    half_done = [task_id for task_id, _ in tasks.ids() if task_id in recorded]
    return Survey(
        planned=len(tasks),
        finished=found["finished"],
        failed=found["failed"],
        half_done=len(half_done),
        recorded_replies=sum(len(recorded[task_id]) for task_id in half_done),
        changed_settings=tuple(describe(change) for change in changed or ()),
        is_complete=changed is not None
        and not changed
        and (_is_final(disk, layout, tasks) if layout.is_whole else _is_part_over(disk, layout, tasks, state, sizes)),
        policies=state.policies,
        ended=endings.keys(),
    )


def is_complete(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Plan,
    shard: Shard | None = None,
    grid: Path | None = None,
    lease: Lease | None = None,
    despite_settings: bool = False,
    disk: Disk | None = None,
) -> bool:
    """`Survey.is_complete`, with the same refusals; soon known where something is left to do.

    With `despite_settings` it does not count that settings outside the identity have changed. For a combination, and
    with `lease` for a shard, it is about these conversations and their transcripts alone.
    """
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=experiment_name, grid=grid, lease=lease)
    changed = _changes(disk, layout, resolved, shard)
    return changed is not None and (despite_settings or not changed) and _is_final(disk, layout, tasks)


def _changes(disk: Disk, layout: Layout, resolved: JsonObject, shard: Shard | None) -> tuple[Difference, ...] | None:
    """The settings that changed since the run was started; None when there is no run."""
    found = begun_with(disk, layout, resolved, shard)
    return None if found is None else (*found.identity, *found.runtime)


def _is_part_over(
    disk: Disk, layout: Layout, tasks: Plan, state: RunState, sizes: Mapping[str | None, int | None]
) -> bool:
    """Whether these conversations have ended, with their transcripts there: manifest and index are of the whole."""
    if layout.lease is None and disk.exists(layout.leases):
        return False
    ended = {task_id: ending.size_bytes for task_id, ending in state.endings.items()}
    is_done = all(task_id in ended and sizes.get(task_id) == ended[task_id] for task_id, _ in tasks.ids())
    return is_done and not any(trace_flaws(disk, layout, state, is_thorough=False))


def _is_final(disk: Disk, layout: Layout, tasks: Plan) -> bool:
    """Whether all is done, and manifest and index are in their final form. Checks what is cheap first.

    A process that was killed while it wrote them a last time left a temporary file, which a start removes.
    """
    if not layout.is_whole:
        sizes = transcript_sizes(disk, layout, (task_id for task_id, _ in tasks.ids()))
        return _is_part_over(disk, layout, tasks, read_state(disk, layout), sizes)
    if disk.exists(layout.leases) or not disk.exists(layout.manifest) or any(map(disk.strays, layout.swept)):
        return False
    try:
        known = read_manifest(disk, layout)
    except RunDirectoryError:
        return False
    if any(known.statuses.get(task_id, "pending") == "pending" for task_id, _ in tasks.ids()):
        return False
    manifest = Manifest(layout.experiment_name, known.planned)
    state, sizes = read_state(disk, layout), transcript_sizes(disk, layout)
    sizes.pop(None, None)
    for task_id, ending in state.endings.items():
        manifest.settle(task_id, ending.status)
        if sizes.pop(task_id, None) != ending.size_bytes:
            return False
    if trace_strays(disk, layout, state) or any(trace_flaws(disk, layout, state, is_thorough=False)):
        return False
    if sizes or any(manifest.status(task_id) != status for task_id, status in known.statuses.items()):
        return False
    found = (line.data + b"\n" for line in lines(disk.chunks(layout.index)))
    right = in_task_order(state.rows(disk, layout), manifest.done())
    return all(line == other for line, other in zip_longest(found, right))
