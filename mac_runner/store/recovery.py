"""Recovery: what a session finds when it begins, and what it repairs before it continues.

Nothing here depends on how the last session ended. It looks at what is on the disk and derives the rest:

- temporary files of a killed process are removed;
- what the last session wrote and never synced is synced now, before anything is built on it;
- a published transcript whose `done` frame was lost is adopted: the first publication wins;
- one that cannot be read, or is not what its row acknowledges, is set aside in `damaged/`;
- a conversation whose transcript is gone or set aside is restored: its recorded replies make the very bytes that its
  row acknowledges; where they do not, it is open again;
- token traces without an ended conversation are removed; those that an ended one lacks are written again from the
  journal;
- an index that is not exactly what the journal says is written again.

Names, types and sizes of transcripts are compared each time. Digests are compared only in a thorough check, which reads
all of them. A merge adopts by the same rules as a resume.

A retry opens failed conversations again, and keeps each attempt. It continues before the turn that the conversation
failed on: what was said until then stays, and that turn is asked again. So an engine that did not answer costs one
turn, not a conversation.

::

    attempts/ID.N.json, sync ──▶ `retry` frame, the replies that stay, sync ──▶ transcripts/ID.json is removed

Each arrow is a promise, as in a publication. At whatever instant this stops, the conversation has either failed as
before or is open again, and its failed transcript exists.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan
from mac_runner.printable import some_of
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import listed
from mac_runner.store.layout import Layout, repair_advice, task_id_of, traced_task_of, traces_beside
from mac_runner.store.leases import read_planned
from mac_runner.store.manifest import Manifest, read_manifest, write_index
from mac_runner.store.records import entry, lines, row_id
from mac_runner.store.run_state import JournalTail, RunState, digest_of, read_state
from mac_runner.store.space import SAMPLE_CONVERSATIONS
from mac_runner.store.traces import TRACES, TraceLog, Traces, encode_traces, read_traces, traces_flaw, with_traces
from mac_runner.store.transcripts import (
    Attempts,
    Finished,
    encode_transcript,
    index_row,
    is_acknowledged,
    publish_traces,
    put,
    read_published,
    remove_superseded,
    replies_before_failure,
    result_flaw,
    set_aside,
    sha256_of,
    transcript_sizes,
    with_attempts,
)
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Task

_NAMED_MAX = 20

Restore: TypeAlias = Callable[[Task, Sequence[RecordedReply], JsonObject], JsonObject | None]
"""From a task, its recorded replies and its row to the transcript that they make; None where they make none."""


@dataclass(slots=True, kw_only=True)
class Repairs:
    """What was repaired. The attempts are named by their files, everything else by task."""

    temporaries_removed: int = 0
    adopted: list[str] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    """Transcripts written again, byte for byte."""
    reopened: list[str] = field(default_factory=list)
    """Conversations to be played again."""
    attempts_restored: list[str] = field(default_factory=list)
    attempts_lost: list[str] = field(default_factory=list)
    traces_restored: list[str] = field(default_factory=list)
    traces_lost: list[str] = field(default_factory=list)
    index_rewritten: bool = False
    manifest_unreadable: bool = False

    def as_json(self) -> JsonObject | None:
        record: JsonObject = asdict(self)
        for key in ("traces_restored", "traces_lost"):  # Only where tokens were recorded.
            if not record[key]:
                del record[key]
        return record if any(record.values()) else None

    def in_words(self) -> list[str]:
        """A line for each kind of repair that a user should know."""
        kinds = (
            (self.adopted, "taken over, though the journal does not acknowledge it"),
            (self.set_aside, "damaged, its transcript set aside in damaged/"),
            (self.missing, "its transcript was gone"),
            (self.restored, "its transcript is written again from the journal, byte for byte"),
            (self.attempts_restored, "written again from the journal, byte for byte"),
            (self.attempts_lost, "damaged or gone, and the journal does not have its replies"),
            (self.traces_restored, "its token traces are written again from the journal"),
            (self.traces_lost, "its token traces are damaged or gone, and the journal does not have them all"),
            (self.reopened, "open again: its replies in the journal, or its question, are not all there"),
        )
        return [f"{some_of(names, _NAMED_MAX)}: {what}" for names, what in kinds if names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """How far the run is: what is planned and done, how many tasks of this plan are left, and their replies.

    `sizes` are a sample of the bytes of the transcripts so far.
    """

    manifest: Manifest
    left: int
    sizes: Sequence[int]
    replies: dict[str, list[RecordedReply]]
    attempts: Attempts
    deaths: dict[str, Counter[str]]
    policies: dict[str, list[PolicyVersion]]
    acknowledged: Sequence[JsonObject]
    """The rows of the conversations that this recovery acknowledged: adopted and restored ones."""
    retried: Mapping[str, JsonObject]
    """The rows of the failed attempts whose conversations are to be opened again."""
    tail: JournalTail
    """The journal as far as it was read; a conversation that is open again has ended there until it ends anew."""


def prepare(disk: Disk, layout: Layout, repairs: Repairs) -> None:
    """Remove what killed processes left, and make durable what the last session left unsynced."""
    for directory in layout.swept:
        repairs.temporaries_removed += disk.sweep(directory)
    for session in journal.sessions(disk, layout)[-1:]:
        disk.sync_file(layout.segment(session))
    for directory in filter(disk.is_directory, (layout.journal, layout.transcripts)):
        disk.sync_directory(directory)


def recover(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    *,
    segment: journal.Segment,
    repairs: Repairs,
    restore: Restore | None,
    is_thorough: bool,
    is_retried: Callable[[str], bool] | None,
    is_anew: bool,
) -> Recovered:
    """Find out how far the run is and repair what is damaged. What the journal did not acknowledge goes to `segment`.

    Failed tasks count as open where `is_retried`, before anything is written of that. With `is_anew` what was planned
    before does not count. Of a part of what is in the directory it is about these `tasks` alone, and leaves the index
    as it is.
    """
    tail = JournalTail(disk, layout, with_digests=True)
    tail.read_on()
    state = tail.state
    retried = {} if is_retried is None else failed_rows(disk, layout, state, is_retried)
    open_again = state.reopened
    remove_superseded(disk, layout, state.attempts, open_again)
    is_index_ours = layout.is_whole
    is_index_exact = not is_index_ours or _is_index_exact(disk, layout, state)
    claims = {} if is_index_exact else claimed_rows(disk, layout, state.endings.__contains__)
    found = _set_aside_unsound(disk, layout, tasks, state, repairs, is_thorough=is_thorough)
    unsound = found.unsound
    rows, refused = adopted(disk, layout, tasks, found.orphans, claims, state.attempts)
    repairs.adopted += map(row_id, rows)
    for task_id in refused:
        set_aside(disk, layout, layout.transcript(task_id))
        repairs.set_aside.append(task_id)
    if restore is not None:
        lost = {task_id: row for task_id, row in claims.items() if task_id not in {*repairs.adopted, *open_again}}
        rows_of_ended = state.rows(disk, layout) if unsound else ()
        lost |= {task_id: row for row in rows_of_ended if (task_id := row_id(row)) in unsound}
        rows += _restore(disk, layout, tasks, lost, state, restore, repairs)
        if is_thorough:
            _restore_attempts(disk, layout, tasks, state.attempts, restore, repairs)
    if rows:
        segment.write([*map(journal.done_frame, rows)])
        tail.read_on()
    undone = {task_id: state.endings.pop(task_id) for task_id in unsound - {*repairs.restored}}
    _mend_traces(disk, layout, state, repairs, is_thorough=is_thorough)
    manifest = _manifest(disk, layout, tasks, state, repairs, is_anew=is_anew)
    repairs.reopened += filter(manifest.is_pending, sorted((unsound | claims.keys()) - open_again))
    if is_index_ours and (rows or unsound):
        is_index_exact = _is_index_exact(disk, layout, state)
    if not is_index_exact:
        write_index(disk, layout, state.json_rows(disk, layout), manifest)
        repairs.index_rewritten = True
    sizes = [ending.size_bytes for ending in islice(state.endings.values(), SAMPLE_CONVERSATIONS)]
    state.endings |= undone
    attempts = {task_id: [*failed] for task_id, failed in state.attempts.items()}
    for task_id, row in retried.items():
        manifest.reopen(task_id)
        attempts.setdefault(task_id, []).append(row)
    return Recovered(
        manifest=manifest,
        left=sum(1 for task_id, _ in tasks.ids() if not manifest.is_done(task_id)),
        sizes=sizes,
        replies=journal.replies(disk, layout, lambda task_id: manifest.is_pending(task_id) and task_id not in retried)
        | {task_id: kept for task_id in retried if (kept := kept_replies(disk, layout, task_id))},
        attempts=attempts,
        deaths={task_id: Counter(turns) for task_id, turns in state.deaths.items()},
        policies={model: [*versions] for model, versions in state.policies.items()},
        acknowledged=rows,
        retried=retried,
        tail=tail,
    )


def is_sound(disk: Disk, layout: Layout) -> bool:
    """Whether a thorough check finds nothing to repair; reads every transcript."""
    state = read_state(disk, layout, with_digests=True)
    return (
        held_in(disk, layout) == state.endings.keys()
        and (not layout.is_whole or _is_index_exact(disk, layout, state))
        and not any(result_flaw(disk, layout.transcript(row_id(row)), row) for row in state.rows(disk, layout))
        and not any(attempt_flaws(disk, layout, state.attempts))
        and not trace_strays(disk, layout, state)
    )


def held_in(disk: Disk, layout: Layout) -> set[str]:
    """The tasks of all transcripts of a run, or of a whole grid, whatever was planned."""
    return set(filter(layout.holds, filter(None, map(task_id_of, disk.names(layout.transcripts)))))


def claimed_rows(disk: Disk, layout: Layout, is_known: Callable[[str], bool]) -> dict[str, JsonObject]:
    """The readable index rows of the tasks that are not `is_known`."""
    found: dict[str, JsonObject] = {}
    for line in lines(disk.chunks(layout.index)):
        with suppress(ValueError, RecursionError):
            row = json.loads(line.data)
            if isinstance(row, dict) and not is_known(task_id := row_id(row)):
                entry(row, "sha256", str)
                found[task_id] = row
    return found


def adopted(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    orphans: Collection[str],
    claims: Mapping[str, JsonObject],
    attempts: Attempts,
) -> tuple[list[JsonObject], dict[str, str]]:
    """The rows of the transcripts that the journal does not acknowledge; and why others cannot be adopted.

    Its task must have the seed that is planned, and its digest must be that of its index row, if there is one.
    """
    rows: list[JsonObject] = []
    refused: dict[str, str] = {}
    seeds = {task.task_id: task.seed for task in tasks.those(orphans.__contains__)} if orphans else {}
    for task_id in sorted(orphans):
        try:
            published = read_published(disk, layout, task_id)
            row, seed = published.row, entry(entry(published.transcript, "task", dict), "seed", int)
            if seed != seeds.get(task_id, seed):
                raise ValueError(f"its seed is {seed}, not {seeds[task_id]}")
            if task_id in claims and claims[task_id]["sha256"] != row["sha256"]:
                raise ValueError("its digest is not the one in the index")
            if (flaw := traces_flaw(disk, traces_beside(layout.transcript(task_id)), row)) is not None:
                raise ValueError(f"{traces_beside(layout.transcript(task_id)).name} {flaw}")
            rows.append(with_attempts(row, attempts.get(task_id, ())))
        except ValueError as fault:
            refused[task_id] = str(fault)
    return rows, refused


def _is_index_exact(disk: Disk, layout: Layout, state: RunState) -> bool:
    """Whether the index has the line of each ended task once, and no other, in whatever order."""
    count, total = 0, 0
    for line in lines(disk.chunks(layout.index)):
        count, total = count + 1, total + (digest_of(line.data) if line.is_ended else 0)
    return (count, total) == (len(state.endings), sum(ending.digest for ending in state.endings.values()))


class Transcripts(NamedTuple):
    """What the transcripts of a run are against its journal, by names, types and sizes."""

    missing: set[str]
    """The ended tasks that have none."""
    damaged: set[str]
    """The ended tasks whose transcripts are not what was acknowledged."""
    orphans: set[str]
    """The tasks of those that are not acknowledged."""

    @property
    def unsound(self) -> set[str]:
        return self.missing | self.damaged


def transcripts_found(
    disk: Disk, layout: Layout, tasks: Plan, state: RunState, more: Iterable[str] = ()
) -> Transcripts:
    """The transcripts of all that has ended and of `tasks`, and of `more` tasks."""
    missing, damaged, orphans = set(state.endings), set[str](), set[str]()
    looked_for = {
        *state.endings,
        *(task_id for task_id, _ in tasks.ids()),
        *more,
    }  # More may have been asked for before.
    for task_id, size_bytes in transcript_sizes(disk, layout, looked_for).items():
        if task_id is None:
            continue
        missing.discard(task_id)
        if task_id not in state.endings:
            orphans.add(task_id)
        elif size_bytes != state.endings[task_id].size_bytes:
            damaged.add(task_id)
    return Transcripts(missing, damaged, orphans)


def _set_aside_unsound(
    disk: Disk, layout: Layout, tasks: Plan, state: RunState, repairs: Repairs, *, is_thorough: bool
) -> Transcripts:
    """The transcripts of a run, once the damaged ones are set aside."""
    found = transcripts_found(disk, layout, tasks, state, held_in(disk, layout) if is_thorough else ())
    if is_thorough:
        known = found.unsound
        rows = (row for row in state.rows(disk, layout) if row_id(row) not in known)
        wrong = {row_id(row) for row in rows if not is_acknowledged(disk, layout.transcript(row_id(row)), row)}
        found = found._replace(damaged=found.damaged | wrong)
    for task_id in sorted(found.damaged):
        set_aside(disk, layout, layout.transcript(task_id))
    repairs.missing += sorted(found.missing)
    repairs.set_aside += sorted(found.damaged)
    return found


def _restore(
    disk: Disk,
    layout: Layout,
    tasks: Plan,
    lost: Mapping[str, JsonObject],
    state: RunState,
    restore: Restore,
    repairs: Repairs,
) -> list[JsonObject]:
    """Write the lost transcripts again that their replies make; returns the rows that the journal lacks."""
    rows: list[JsonObject] = []
    if not lost:
        return rows
    disk.make_directory(layout.transcripts)
    replies = journal.replies(disk, layout, lost.__contains__)
    for task in tasks.those(lost.__contains__):
        row, recorded = lost[task.task_id], replies.pop(task.task_id, [])
        if (ended := _remade(restore, task, recorded, row)) is None:
            continue
        publish_traces(disk, layout, [ended])
        data = encode_transcript(ended.transcript)
        disk.publish_once(layout.transcript(task.task_id), data)
        repairs.restored.append(task.task_id)
        if task.task_id not in state.endings:
            rows.append(with_attempts(index_row(ended.transcript, data), state.attempts.get(task.task_id, ())))
    disk.sync_directory(layout.transcripts)
    return rows


def _restore_attempts(
    disk: Disk, layout: Layout, tasks: Plan, attempts: Attempts, restore: Restore, repairs: Repairs
) -> None:
    """Write the damaged or lost transcripts of failed attempts again; leave those that cannot be made."""
    flaws = list(attempt_flaws(disk, layout, attempts))
    wanted = {task_id for task_id, _, _ in flaws}
    if not wanted:
        return
    replies = journal.replies_of_attempts(disk, layout, wanted)
    known = {task.task_id: task for task in tasks.those(wanted.__contains__)}
    disk.make_directory(layout.attempts)
    for task_id, number, _ in flaws:
        path, row = layout.attempt(task_id, number), attempts[task_id][number - 1]
        task = known.get(task_id)
        ended = None if task is None else _remade(restore, task, replies[task_id][number - 1], row)
        if ended is None:
            repairs.attempts_lost.append(path.name)
            continue
        if ended.traces is not None:
            put(disk, layout, traces_beside(path), ended.traces)
        put(disk, layout, path, encode_transcript(ended.transcript))
        repairs.attempts_restored.append(path.name)
    disk.sync_directory(layout.attempts)


def _remade(restore: Restore, task: Task, replies: Sequence[RecordedReply], row: JsonObject) -> Finished | None:
    """The transcript of a row and its traces, made again from replies; None where these make another one."""
    if (transcript := restore(task, replies, row)) is None:
        return None
    ended = Finished.of(row_id(row), transcript, TraceLog(replies).of(transcript))
    return ended if sha256_of(encode_transcript(ended.transcript)) == row["sha256"] else None


def trace_strays(disk: Disk, layout: Layout, state: RunState) -> list[str]:
    """The files of traces whose conversations have not ended, or have none: a process was killed before it ended them.

    Those of a published transcript are not among them, whether it is acknowledged or not.
    """
    names = ((name, traced_task_of(name)) for name in disk.names(layout.traces))
    endings = state.endings
    return [
        name
        for name, task_id in names
        if task_id is not None
        and layout.holds(task_id)
        and not (endings[task_id].has_traces if task_id in endings else disk.exists(layout.transcript(task_id)))
    ]


def trace_flaws(disk: Disk, layout: Layout, state: RunState, *, is_thorough: bool) -> Iterator[JsonObject]:
    """The rows of the conversations whose traces are not there, or, where it is thorough, not those acknowledged."""
    traced = {
        task_id: traces_beside(layout.transcript(task_id)) for task_id, one in state.endings.items() if one.has_traces
    }
    names = [path.name for path in traced.values()]
    present = {name for name, size_bytes in disk.sizes(layout.traces, names).items() if size_bytes is not None}
    missing = {task_id for task_id, path in traced.items() if path.name not in present}
    for row in state.rows(disk, layout) if missing or (is_thorough and traced) else ():
        task_id = row_id(row)
        if task_id in missing or (is_thorough and task_id in traced and traces_flaw(disk, traced[task_id], row)):
            yield row


def _mend_traces(disk: Disk, layout: Layout, state: RunState, repairs: Repairs, *, is_thorough: bool) -> None:
    """Remove traces of conversations that have not ended, and write again those that an ended one lacks."""
    for name in trace_strays(disk, layout, state):
        disk.remove(layout.traces / name)
        repairs.temporaries_removed += 1
    flawed = {row_id(row): row for row in trace_flaws(disk, layout, state, is_thorough=is_thorough)}
    if not flawed:
        return
    disk.make_directory(layout.traces)
    replies = journal.replies(disk, layout, flawed.__contains__)
    for task_id, row in flawed.items():
        traces: Traces = {}
        with suppress(ValueError):  # A damaged transcript has none; a thorough check finds it.
            traces = TraceLog(replies.pop(task_id, ())).of(read_published(disk, layout, task_id).transcript)
        if with_traces({}, traces).get(TRACES) != row[TRACES]:
            repairs.traces_lost.append(task_id)
            continue
        put(disk, layout, traces_beside(layout.transcript(task_id)), encode_traces(traces))
        repairs.traces_restored.append(task_id)
    disk.sync_directory(layout.traces)


def attempt_flaws(disk: Disk, layout: Layout, attempts: Attempts) -> Iterator[tuple[str, int, str]]:
    """The failed attempts, as task and number, that are not what was acknowledged, and how they differ."""
    for task_id, failed in attempts.items():
        for number, row in enumerate(failed, start=1):
            if (flaw := result_flaw(disk, layout.attempt(task_id, number), row)) is not None:
                yield task_id, number, flaw


def _manifest(disk: Disk, layout: Layout, tasks: Plan, state: RunState, repairs: Repairs, *, is_anew: bool) -> Manifest:
    """Everything that is planned now or was before, and how far it is."""
    planned: dict[str, int] = {}
    if not is_anew and layout.lease is None and layout.grid is not None:
        planned = read_planned(disk, layout, state)
    elif not is_anew and layout.is_whole and disk.exists(layout.manifest):
        try:
            planned = read_manifest(disk, layout).planned
        except RunDirectoryError:
            repairs.manifest_unreadable = True
    planned.update(tasks.ids())
    return state.manifest(layout.experiment_name, planned)


# Retries.


def failed_rows(disk: Disk, layout: Layout, state: RunState, is_wanted: Callable[[str], bool]) -> dict[str, JsonObject]:
    """The rows of the wanted failed conversations, which can be opened again.

    Raises RunDirectoryError naming every transcript that is not what was acknowledged.
    """
    failed = {task_id for task_id, ending in state.endings.items() if ending.status == "failed" and is_wanted(task_id)}
    if not failed:
        return {}
    rows = {task_id: row for row in state.rows(disk, layout) if (task_id := row_id(row)) in failed}
    flaws = [flaw for task_id, row in rows.items() if (flaw := result_flaw(disk, layout.transcript(task_id), row))]
    if flaws:
        raise RunDirectoryError(f"{listed(flaws)}\n{repair_advice(layout.directory)}; then retry")
    return rows


def kept_replies(disk: Disk, layout: Layout, task_id: str) -> list[RecordedReply]:
    """The replies of a failed conversation that stay when it is opened again."""
    transcript = read_published(disk, layout, task_id).transcript
    traces = read_traces(layout, transcript, disk=disk)
    return [recorded.traced(traces) for recorded in replies_before_failure(transcript)]


def reopen(disk: Disk, layout: Layout, attempts: Attempts, task_ids: Collection[str], segment: journal.Segment) -> None:
    """Open failed conversations again; the rows of their last `attempts` are those that failed."""
    disk.make_directory(layout.attempts)
    frames = [frame for task_id in task_ids for frame in _kept(disk, layout, attempts[task_id])]
    disk.sync_directory(layout.attempts)
    segment.write(frames)
    remove_superseded(disk, layout, attempts, task_ids)


def _kept(disk: Disk, layout: Layout, failed: Sequence[JsonObject]) -> Iterator[bytes]:
    """Keep the transcript of the last attempt; yields the frames that open its conversation again.

    The file of an earlier attempt of this number, which the journal has lost, is set aside. There are no frames where
    another process, which a broken lock let in, opened it again meanwhile.
    """
    row = failed[-1]
    task_id = row_id(row)
    path, transcript = layout.attempt(task_id, len(failed)), layout.transcript(task_id)
    if is_acknowledged(disk, path, row) and not is_acknowledged(disk, transcript, row):
        return
    if TRACES in row:
        put(disk, layout, traces_beside(path), disk.read(traces_beside(transcript)))
    put(disk, layout, path, disk.read(transcript))
    yield journal.retry_frame(row)
    log = TraceLog()
    for n, recorded in enumerate(kept_replies(disk, layout, task_id)):
        yield journal.reply_frame(task_id, n, recorded, log)
