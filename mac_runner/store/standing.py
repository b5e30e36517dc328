"""How far a run, a grid and its shards are. Changes nothing.

`read_run_standing` is for readers, `survey` for who would play it. `read_workers` lists the processes that claim
shards: each has a directory of its own in `workers/`, with the lock, the note and the lease of a run directory, and
with its events and the accounts of its engines. What it holds is read off the notes in the leases. `read_lanes` reads
the lanes of a fleet off the event log: the latest event of each, and how often it died.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mac_runner.config import Difference, recorded_speakers
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan, Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import Invocation, begun_with, describe
from mac_runner.store.layout import GRID, LEASE_DIRECTORIES, Layout
from mac_runner.store.leases import lease_places, read_leases, worker_directories
from mac_runner.store.lock import Holder, Owner, holder_of, read_owner
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Manifest, read_manifest
from mac_runner.store.records import Line, decode_json, lines, lines_with
from mac_runner.store.recovery import trace_flaws, trace_strays, transcripts_found
from mac_runner.store.rows import RowTotals
from mac_runner.store.run import Run, read_run
from mac_runner.store.run_state import JournalTail, RunState, SessionStanding, digest_of, read_state
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue, PolicyVersion


class Combination(NamedTuple):
    """A combination of a grid that is asked for; its standing is None where it has not begun."""

    slug: str
    values: Mapping[str, JsonValue]
    standing: Standing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a run or a grid is. `latest` is its last session, and `usage` is what all of them used.

    That of a grid adds up the combinations that have begun; its sessions are those of the grid and of its workers.

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
    share: JsonObject = field(default_factory=dict)
    """`RunState.share`."""
    bounds: JsonObject = field(default_factory=dict)
    """Of an experiment with `limits` these, and `model_definitions` with the prices."""
    lost: int = 0
    """`Run.lost`."""
    damaged_lines: int = 0
    """`RunState.damaged_lines`."""
    shards: ShardsStanding | None = None
    """While workers claim its shards, how far these are."""

    combinations: tuple[Combination, ...] | None = None
    """Of a grid, those that are asked for."""

    @property
    def ended(self) -> int:
        return self.finished + self.failed

    @property
    def not_begun(self) -> int:
        return sum(one.standing is None for one in self.combinations or ())

    @property
    def complete(self) -> int:
        found = (one.standing for one in self.combinations or () if one.standing is not None)
        return sum(standing.ended == standing.planned for standing in found)


def read_run_standing(directory: Path, *, disk: Disk, machine: Machine) -> Standing:
    """How far a run is, also while it is under way. Raises RunDirectoryError when there is none.

    Opens no transcript and parses no reply, so it takes seconds at a hundred thousand conversations.
    """
    run, totals = Run.at(directory, disk=disk, machine=machine, keeps_replies=True), RowTotals()
    if run.follow(totals.add).is_anew:
        totals = RowTotals()
        for row in run.json_rows():
            totals.add(row)
    return standing_of(run, totals)


def standing_of(run: Run, totals: RowTotals) -> Standing:
    """How far a run is that keeps replies; `totals` are of the rows that it has."""
    state, counts = run.state, run.counts
    if run.is_whole:
        # While a run is being read, this would go through the rest of its journal each time.
        state.count_recorded(run.disk, run.layout)
    return Standing(
        directory=run.layout.directory,
        experiment_name=run.experiment_name,
        shard=run.shard,
        planned=counts.planned,
        finished=counts.finished,
        failed=counts.failed,
        half_done=len(run.replied),
        failures=tuple(totals.failures.values()),
        sessions=len(state.sessions),
        latest=state.latest,
        usage=state.usage,
        share=state.share,
        holder=run.holder,
        counts=totals.counts.as_json(),
        policies=state.policies_json(),
        speakers=recorded_speakers(run.resolved),
        bounds=run.bounds,
        lost=run.lost if run.is_whole else 0,
        damaged_lines=state.damaged_lines,
        shards=shards_standing(run.disk, run.machine, run.layout, state),
    )


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
    share: JsonObject = field(default_factory=dict)
    """`RunState.share`."""

    @property
    def left(self) -> int:
        return self.planned - self.finished - self.failed

    @property
    def untouched(self) -> int:
        return self.left - self.half_done


def survey(asked: Invocation) -> Survey:
    """Look at a directory as `open_run` would, with the same refusals, and change nothing."""
    disk = Disk()
    layout, tasks = asked.layout, asked.tasks
    changed = _changes(disk, asked)
    tail = _unread(disk, layout)
    tail.read_on()
    state = tail.state
    state.count_recorded(disk, layout)
    endings = _ended(disk, layout, tasks, state)
    found = Counter(endings.get(task_id) for task_id, _ in tasks.ids())
    # They are looked for in the whole journal.
    recorded = journal.replies(disk, layout, lambda task_id: task_id not in endings) if found[None] else {}
    half_done = [task_id for task_id, _ in tasks.ids() if task_id in recorded]
    return Survey(
        planned=len(tasks),
        finished=found["finished"],
        failed=found["failed"],
        half_done=len(half_done),
        recorded_replies=sum(len(recorded[task_id]) for task_id in half_done),
        changed_settings=tuple(describe(change) for change in changed or ()),
        is_complete=changed == () and _is_final(disk, layout, tasks, tail),
        policies=state.policies,
        share=state.share,
    )


def ended_tasks(asked: Invocation) -> Container[str]:
    """The tasks whose conversations have ended, with their transcripts there."""
    disk = Disk()
    return _ended(disk, asked.layout, asked.tasks, read_state(disk, asked.layout)).keys()


def is_complete(asked: Invocation, *, despite_settings: bool = False, disk: Disk | None = None) -> bool:
    """`Survey.is_complete`, with the same refusals; soon known where something is left to do.

    With `despite_settings` it does not count that settings outside the identity have changed. Of a combination, and
    under a lease, it is about these conversations and their transcripts alone.
    """
    disk = disk or Disk()
    changed = _changes(disk, asked)
    if changed is None or (changed and not despite_settings):
        return False
    return _is_final(disk, asked.layout, asked.tasks, _unread(disk, asked.layout))


def complete_run(asked: Invocation) -> Run | None:
    """The run if it `is_complete`, which is read once for both."""
    disk = Disk()
    tail = _unread(disk, asked.layout)
    if _changes(disk, asked) != () or not _is_final(disk, asked.layout, asked.tasks, tail):
        return None
    return read_run(asked.layout.directory, disk=disk, tail=tail)


def _unread(disk: Disk, layout: Layout) -> JournalTail:
    return JournalTail(disk, layout, with_digests=layout.is_whole)


def _changes(disk: Disk, asked: Invocation) -> tuple[Difference, ...] | None:
    """The settings that changed since the run was started; None when there is no run."""
    found = begun_with(disk, asked)
    return None if found is None else (*found.identity, *found.runtime)


def _ended(disk: Disk, layout: Layout, tasks: Plan, state: RunState) -> dict[str, str]:
    """How conversations have ended, of those whose transcripts are there."""
    unsound = transcripts_found(disk, layout, tasks, state).unsound
    return {task_id: ending.status for task_id, ending in state.endings.items() if task_id not in unsound}


def _is_final(disk: Disk, layout: Layout, tasks: Plan, tail: JournalTail) -> bool:
    """Whether all is done, and manifest and index are in their final form. Checks what is cheap first.

    `tail` has digests of a whole run. A process that was killed while it wrote them a last time left a temporary file,
    which a start removes.
    """
    if not layout.is_whole:  # Manifest and index are of the whole.
        if layout.lease is None and disk.exists(layout.leases):
            return False
        tail.read_on()
        ended = _ended(disk, layout, tasks, tail.state)
        is_done = all(task_id in ended for task_id, _ in tasks.ids())
        return is_done and not any(trace_flaws(disk, layout, tail.state, is_thorough=False))
    if disk.exists(layout.leases) or not disk.exists(layout.manifest) or any(map(disk.strays, layout.swept)):
        return False
    try:
        known = read_manifest(disk, layout)
    except RunDirectoryError:
        return False
    if any(known.statuses.get(task_id, "pending") == "pending" for task_id, _ in tasks.ids()):
        return False
    tail.read_on()
    state = tail.state
    manifest = Manifest(layout.experiment_name, known.planned)
    for task_id, ending in state.endings.items():
        manifest.settle(task_id, ending.status)
    if any(manifest.status(task_id) != status for task_id, status in known.statuses.items()):
        return False
    right = (state.endings[task_id].digest for task_id in manifest.done())
    found = (digest_of(line.data) if line.is_ended else 0 for line in lines(disk.chunks(layout.index)))
    if not all(digest == other for digest, other in zip_longest(found, right)):
        return False
    if any(transcripts_found(disk, layout, tasks, state)) or trace_strays(disk, layout, state):
        return False
    return not any(trace_flaws(disk, layout, state, is_thorough=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker that came. Its holder has no owner once it has left in good order."""

    name: str
    holder: Holder
    holds: tuple[Path, ...] = ()
    """The shards that it has claimed: in a grid, each in its combination."""
    usage: JsonObject = field(default_factory=dict)
    """What it and its engines used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsStanding:
    """How far the shards of a run are, or of all combinations of a grid, and who works on them."""

    of: int
    complete: int
    held: int
    """Claimed by a worker that is alive, as far as known."""
    half_done: int
    """Begun, and free to be claimed."""
    workers: tuple[Worker, ...]

    @property
    def not_begun(self) -> int:
        return self.of - self.complete - self.held - self.half_done

    @staticmethod
    def of_grid(parts: Sequence[ShardsStanding], workers: tuple[Worker, ...]) -> ShardsStanding | None:
        """Those of the combinations whose shards are claimed; None where there are none."""
        if not parts:
            return None
        return ShardsStanding(
            of=sum(part.of for part in parts),
            complete=sum(part.complete for part in parts),
            held=sum(part.held for part in parts),
            half_done=sum(part.half_done for part in parts),
            workers=workers,
        )


def read_workers(directory: Path, *, disk: Disk | None = None, machine: Machine | None = None) -> tuple[Worker, ...]:
    """The workers that came to a run or to a grid, by name."""
    disk, machine = disk or Disk(), machine or Machine()
    held: dict[Owner, list[Path]] = {}
    for place in lease_places(disk, directory):
        if (owner := read_owner(disk, place)) is not None:
            held.setdefault(_process(owner), []).append(place.relative_to(directory / LEASE_DIRECTORIES))
    found = []
    for place in worker_directories(disk, directory):
        holder = holder_of(disk, place, machine)
        holds = () if holder.owner is None else tuple(held.get(_process(holder.owner), ()))
        usage = read_state(disk, Layout(directory=place, experiment_name=place.name)).total
        found.append(Worker(name=place.name, holder=holder, holds=holds, usage=usage))
    return tuple(found)


def shards_standing(disk: Disk, machine: Machine, layout: Layout, state: RunState) -> ShardsStanding | None:
    """How far the shards of a run are, by its journal and the notes of those who hold them; None where none are."""
    record = read_leases(disk, layout)
    if record is None:
        return None
    samples, total = record.samples_per_task, record.conversations
    planned = Counter(Shard.holding(index // samples, record.of) for index in range(total))
    indexes = [ending.task_index for ending in state.endings.values() if ending.task_index < total]
    ended = Counter(Shard.holding(index // samples, record.of) for index in indexes)
    begun = {session.shard for session in state.sessions}

    def stage(shard: Shard) -> str:
        if holder_of(disk, layout.lease_directory(shard), machine).may_work:
            return "held"
        if ended[shard] == planned[shard]:
            return "complete"
        return "half done" if ended[shard] or shard in begun else "not begun"

    stages = Counter(map(stage, record.shards()))
    return ShardsStanding(
        of=record.filled,
        complete=stages["complete"],
        held=stages["held"],
        half_done=stages["half done"],
        workers=() if layout.grid else read_workers(layout.root, disk=disk, machine=machine),
    )


def _process(owner: Owner) -> Owner:
    """The process alone, which signs each directory at another time."""
    return replace(owner, started_at="", command="")


# Lanes.


_LANE_MARK: Final = re.compile(rb'"event":"EVENT_LANE_')
_LANE_HEAD_BYTES: Final = 1 << 20
"""A run's lanes start before its first request. A log without them in its head is not read further."""
STATES: Final = {
    "EVENT_LANE_START": "starting",
    "EVENT_LANE_RESTART": "starting",
    "EVENT_LANE_UP": "up",
    "EVENT_LANE_SWAP": "up",
    "EVENT_LANE_DRAIN": "draining",
    "EVENT_LANE_SUSPECT": "suspect",
    "EVENT_LANE_DEAD": "resting",
    "EVENT_LANE_RETIRED": "retired",
}
"""What a lane is after an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord:
    """One lane, as of its latest event."""

    name: str
    model: str
    place: str
    state: str
    at: str
    """When that event was."""
    deaths: int = 0
    restarts: int = 0
    reason: str = ""
    """Why it last ended, or is not in service."""


def read_lanes(directory: Path) -> tuple[LaneRecord, ...]:
    """The lanes of the latest fleet of a run or a grid, by name; none where no model was on a fleet."""
    disk = Disk()
    path = Layout.at(disk, directory).events
    head = disk.chunks(path, size_bytes=_LANE_HEAD_BYTES)
    if not disk.exists(directory / GRID) and next(lines_with(_LANE_MARK, head), None) is None:
        return ()
    return lanes_of(_lane_events(lines_with(_LANE_MARK, disk.chunks(path))))


class LaneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the event log about a lane; `next` is the lane that takes its turn."""

    event: str
    lane: str
    time: str = ""
    model: str | None = None
    place: str | None = None
    reason: str | None = None
    next: str | None = None


def lanes_of(events: Iterable[LaneEvent]) -> tuple[LaneRecord, ...]:
    """The lanes after these events."""
    lanes: dict[str, LaneRecord] = {}
    for event in events:
        kind, before = event.event, lanes.get(event.lane)
        if kind == "EVENT_LANE_START" and before is not None and before.state != "draining":
            lanes, before = {}, None  # Another session, with a fleet of its own.
        before = before or LaneRecord(name=event.lane, model="", place="", state="", at="")
        state = "asleep" if event.next is not None else STATES.get(kind, before.state)
        lanes[event.lane] = replace(
            before,
            model=event.model or before.model,
            place=event.place or before.place,
            state=state,
            at=event.time,
            deaths=before.deaths + (kind == "EVENT_LANE_DEAD"),
            restarts=before.restarts + (kind == "EVENT_LANE_RESTART"),
            reason="" if state == "up" else event.reason or before.reason,
        )
    return tuple(lanes[name] for name in sorted(lanes))


def _lane_events(lines: Iterable[Line]) -> Iterator[LaneEvent]:
    for line in lines:
        with suppress(ValueError, RecursionError):  # A kill may have cut it short.
            yield convert(decode_json(line.data), LaneEvent)
