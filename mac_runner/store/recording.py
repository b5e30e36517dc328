"""A run under way: what is left to do, and where the results go.

Only `open_run`, `contents` and `close` wait for the disk. Everything else hands frozen objects to the writer thread,
which encodes and commits them. *Acknowledged* (`written`, `counts`) is what that thread has made durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from mac_runner.clock import Clock, iso
from mac_runner.config import IdentityDiff
from mac_runner.plan import Plan
from mac_runner.store.disk import Disk
from mac_runner.store.grid import refresh
from mac_runner.store.identity import (
    Invocation,
    begun_with,
    describe,
    encode_config,
    encode_shard,
    forget_plan,
    is_untouched,
)
from mac_runner.store.journal import Segment
from mac_runner.store.layout import MERGE_MARK, SHARD, Layout
from mac_runner.store.leases import rivals
from mac_runner.store.lock import LeaseWatch, LockAbove, RunLock
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Counts, write_index
from mac_runner.store.recovery import Recovered, Repairs, Restore, prepare, recover, reopen
from mac_runner.store.run import Run, read_run
from mac_runner.store.run_state import read_state
from mac_runner.store.session import (
    DeathItem,
    PolicyItem,
    Recorder,
    ReplyItem,
    Session,
    SummaryItem,
    TranscriptItem,
)
from mac_runner.store.space import Need, check_room, full_disk_named, need_of
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Task

EVENT_RUN_REPAIRED = "EVENT_RUN_REPAIRED"
EVENT_CONVERSATION_RETRIED = "EVENT_CONVERSATION_RETRIED"
EVENT_NETWORK_FILESYSTEM = "EVENT_NETWORK_FILESYSTEM"
EVENT_SETTINGS_CHANGED = "EVENT_SETTINGS_CHANGED"

_NO_DEATHS: Mapping[str, int] = {}


class RunRecorder(Recorder):
    """An open run directory. All methods are for the event loop's thread; `close` ends it."""

    def __init__(
        self, *, session: Session, recovered: Recovered, tasks: Plan, lock: RunLock | LockAbove, repairs: Repairs
    ) -> None:
        super().__init__(session, lock)
        self.repairs = repairs
        """What was repaired when it was opened."""
        self._manifest = recovered.manifest
        self.policies = recovered.policies
        """The versions of each model that the journal names, when it was opened."""
        self._replies = recovered.replies
        self._deaths = recovered.deaths
        self._next_reply: dict[str, int] = {}
        self._tasks = tasks
        self._tail = recovered.tail

    @property
    def counts(self) -> Counts:
        return self._manifest.counts

    @property
    def written(self) -> int:
        """How many conversations are acknowledged, over all sessions."""
        return self._manifest.counts.done

    @property
    def backlog(self) -> int:
        return self._writer.backlog

    async def flow(self) -> None:
        """Wait until few items wait for the disk. Raises StoreError when a write has failed."""
        await self._writer.flow()

    def unfinished(self) -> Iterator[tuple[Task, tuple[RecordedReply, ...]]]:
        """The tasks of this invocation that are not done, in plan order, each with the replies recorded so far."""
        for task in self._tasks.those(lambda task_id: not self._manifest.is_done(task_id)):
            # What is written next refers to their tokens, which nothing else needs.
            replies = tuple(recorded.traceless() for recorded in self._replies.pop(task.task_id, ()))
            self._next_reply[task.task_id] = len(replies)
            yield task, replies

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Put a reply into the journal, after those that `unfinished` gave."""
        n = self._next_reply.get(task.task_id, 0)
        self._submit(ReplyItem(task.task_id, n, recorded))
        self._next_reply[task.task_id] = n + 1

    def half_done(self) -> Iterator[tuple[Task, Sequence[RecordedReply]]]:
        """The tasks of this invocation that have replies, as long as `unfinished` has not given them."""
        if self._replies:
            yield from ((task, self._replies[task.task_id]) for task in self._tasks.those(self._replies.__contains__))

    def policy(self, model: str, policy: PolicyVersion) -> None:
        """Put the weights that a model has from now on into the journal, before the replies that follow."""
        self._submit(PolicyItem(model, policy))

    def death(self, task: Task, turn_key: str) -> None:
        self._submit(DeathItem(task.task_id, turn_key))
        self._deaths.setdefault(task.task_id, Counter())[turn_key] += 1

    def deaths(self, task: Task) -> Mapping[str, int]:
        """How often an engine died on each turn of an open conversation, in all sessions."""
        return self._deaths.get(task.task_id, _NO_DEATHS)

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Publish the transcript of an ended conversation; it counts as done once it is `written`."""
        self._submit(TranscriptItem(task.task_id, transcript))
        self._next_reply.pop(task.task_id, None)
        self._deaths.pop(task.task_id, None)

    def write_summary(self, summary: JsonObject) -> None:
        """Write `summary.json`, after everything handed over before."""
        self._submit(SummaryItem(summary))

    def contents(self) -> Run:
        """What the run directory holds once all that was handed over is written, which this waits for.

        Raises StoreError when it cannot be written.
        """
        self.begin()
        self.drain()
        return read_run(self._log.layout.directory, disk=self._log.disk, tail=self._tail)


def open_run(
    asked: Invocation,
    *,
    clock: Clock,
    disk: Disk | None = None,
    machine: Machine | None = None,
    is_retried: Callable[[str], bool] | None = None,
    is_guarded: bool = False,
    engines: Mapping[str, str] | None = None,
    watch: LeaseWatch | None = None,
    transcript_bytes_min: int = 0,
    restore: Restore | None = None,
    is_thorough: bool = False,
    on_ended: Callable[[JsonObject], None] = lambda _row: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunRecorder:
    """Begin what is asked for in its directory, or continue the one there.

    The start reads, and makes whole what it finds damaged. What it changes is written once there is something to write
    (`Recorder.begin`), or at the end. So a start that is refused leaves no trace where no run was, and a run as it was.

    Under a lease its tasks are those of a shard that was claimed in a run of several workers (`begin_leases`). Failed
    tasks are retried where `is_retried`. `is_guarded` says that the caller holds the lock. With `engines` they are
    accounted for elsewhere, under these names by model. The lock is not waited for with `watch`. A transcript takes at
    least `transcript_bytes_min`. `restore` makes damaged and lost ones again; `is_thorough` compares the digests of all
    of them. `on_ended` receives the row of each conversation that is acknowledged, on the writer's thread; here and now
    of those that were recovered. `say` receives what takes time or may surprise.

    Raises RunLockedError when another process is at work there, IdentityError when it belongs to another experiment or
    another part, RunDirectoryError when it is something else, StoreError when it cannot be written.
    """
    disk = disk or Disk()
    layout, tasks = asked.layout, asked.tasks
    with full_disk_named(lambda: _need(disk, layout, tasks, transcript_bytes_min)):
        is_untouched(disk, layout)
        lock = (
            LockAbove()
            if is_guarded
            else RunLock(
                disk,
                layout.place,
                clock=clock,
                machine=machine,
                say=say,
                watch=watch,
                rivals=lambda: rivals(disk, layout),
            )
        )
        with ExitStack() as refused:
            refused.callback(lock.back_out)
            found = begun_with(disk, asked)
            disk.check_regular(layout.summary)  # It is written at the very end, too late to find a directory there.
            repairs = Repairs()
            prepare(disk, layout, repairs)
            planned = None if layout.is_whole else tasks.indexes
            segment = Segment(disk, layout, started_at=iso(clock.utc_now()), engines=engines, planned=planned)
            refused.callback(segment.close)
            recovered = recover(
                disk,
                layout,
                tasks,
                segment=segment,
                repairs=repairs,
                restore=restore,
                is_thorough=is_thorough,
                is_retried=is_retried,
                is_anew=found is not None and bool(found.identity),
            )
            need = need_of(recovered.sizes, recovered.left, transcript_bytes_min)
            check_room(disk, layout, need)

            def start() -> None:
                disk.sync_directory(layout.root)  # It may have been deleted, and would be made again in part.
                if layout.lease is None:
                    _take_over(disk, asked, found)
                disk.make_directory(layout.transcripts)
                segment.write()
                if recovered.retried:
                    reopen(disk, layout, recovered.attempts, recovered.retried, segment)
                    if layout.is_whole:
                        recovered.tail.read_on()
                        write_index(disk, layout, recovered.tail.state.json_rows(disk, layout), recovered.manifest)

            def finish() -> None:
                if layout.grid is not None and not (layout.lease or is_guarded):
                    refresh(disk, layout.grid, at=iso(clock.utc_now()))

            session = Session(
                disk=disk,
                layout=layout,
                clock=clock,
                segment=segment,
                recovered=recovered,
                need=need,
                show_life=lock.show_life_if_due,
                start=start,
                on_ended=on_ended,
                engines=engines,
                finish=finish,
            )
            for line in repairs.in_words():
                say(line)
            for row in recovered.acknowledged:
                on_ended(row)
            run = RunRecorder(session=session, recovered=recovered, tasks=tasks, lock=lock, repairs=repairs)
            for name, fields in _opening_events(repairs, recovered, lock, found):
                run.early_event(name, fields)
            refused.pop_all()
            return run


def _need(disk: Disk, layout: Layout, tasks: Plan, transcript_bytes_min: int) -> Need:
    """What is left to do, found by reading alone: for a disk that is full at the start."""
    endings = read_state(disk, layout).endings
    left = sum(task_id not in endings for task_id, _ in tasks.ids())
    return need_of((ending.size_bytes for ending in endings.values()), left, transcript_bytes_min)


def _take_over(disk: Disk, asked: Invocation, found: IdentityDiff | None) -> None:
    layout = asked.layout
    if found is None:
        if asked.shard is None:
            disk.remove(layout.root / SHARD)
        else:
            disk.write_atomic(layout.root / SHARD, [encode_shard(asked.shard)])
    else:
        # A merge that was killed at its very end is complete; what comes now makes it a run of its own.
        disk.remove(layout.root / MERGE_MARK)
        if found.identity:
            forget_plan(disk, layout)
    if found is None or found.identity or found.runtime:
        # Last, because it is what makes it a run directory.
        disk.make_directory(layout.config.parent)
        disk.write_atomic(layout.config, [encode_config(asked.resolved)])


def _opening_events(
    repairs: Repairs, recovered: Recovered, lock: RunLock | LockAbove, found: IdentityDiff | None
) -> Iterator[tuple[str, JsonObject]]:
    """What happened at the start, as events."""
    if fields := repairs.as_json():
        yield EVENT_RUN_REPAIRED, fields
    for task_id, row in recovered.retried.items():
        attempt = len(recovered.attempts[task_id])
        yield EVENT_CONVERSATION_RETRIED, {"task": task_id, "attempt": attempt, "failure": row["failure"]}
    if lock.network_filesystem is not None:
        yield EVENT_NETWORK_FILESYSTEM, {"type": lock.network_filesystem}
    if found is not None and (changed := (*found.identity, *found.runtime)):
        yield EVENT_SETTINGS_CHANGED, {"changes": [describe(change) for change in changed]}
