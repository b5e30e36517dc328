"""A run under way: what is left to do, and where to put what was done.

Everything but `open_run` and `close` is cheap and never waits for the disk: frozen objects are handed to the writer
thread, which encodes and commits them. What is *acknowledged* (`written`, `counts`) is what that thread has made
durable, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from mac_runner.clock import Clock, iso
from mac_runner.config import Difference
from mac_runner.errors import StoreError
from mac_runner.plan import Plan, Shard
from mac_runner.store import journal
from mac_runner.store.closing import Closing
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.identity import (
    changes,
    check_shard,
    describe,
    encode_config,
    encode_shard,
    is_untouched,
)
from mac_runner.store.layout import Layout, merge_path, shard_path
from mac_runner.store.lock import RunLock
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Counts
from mac_runner.store.reader import RunContents, read_run
from mac_runner.store.recovery import Recovered, Repairs, Restore, prepare, recover
from mac_runner.store.retrying import reopen_failed
from mac_runner.store.session import (
    AccountingItem,
    DeathItem,
    EventItem,
    Item,
    ReplyItem,
    Session,
    SessionFiles,
    SummaryItem,
    TranscriptItem,
    open_events,
    write_manifest,
)
from mac_runner.store.space import Need, check_room, need_of, telling_the_need
from mac_runner.store.trial import TrialDisk, back_out, lock_on_trial
from mac_runner.store.unplayed import forget_plan
from mac_runner.store.writer import Writer
from mac_runner.types import JsonObject, RecordedReply, Task

EVENT_RUN_REPAIRED = "EVENT_RUN_REPAIRED"
EVENT_CONVERSATION_RETRIED = "EVENT_CONVERSATION_RETRIED"
EVENT_NETWORK_FILESYSTEM = "EVENT_NETWORK_FILESYSTEM"
EVENT_SETTINGS_CHANGED = "EVENT_SETTINGS_CHANGED"

_NO_DEATHS: Mapping[str, int] = {}


class Run(Closing):
    """An open run directory. All methods are for one thread, that of the event loop; `close` ends it."""

    def __init__(self, *, session: Session, recovered: Recovered, tasks: Plan, lock: RunLock, repairs: Repairs) -> None:
        self.repairs = repairs
        """What was put right when it was opened."""
        self._session = session
        self._manifest = recovered.manifest
        self._replies = recovered.replies
        self._deaths = recovered.deaths
        self._next_reply: dict[str, int] = {}
        self._tasks = tasks
        self._lock = lock
        self._writer: Writer[Item] = Writer(session)
        self.has_begun = False
        """Whether anything was handed over."""

    @property
    def counts(self) -> Counts:
        """How many tasks are planned in this directory, and how many are done, over all sessions."""
        return self._manifest.counts

    @property
    def written(self) -> int:
        """How many conversations are acknowledged, over all sessions."""
        return self._manifest.counts.done

    @property
    def backlog(self) -> int:
        """How many items wait for the disk."""
        return self._writer.backlog

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is written any more."""
        return self._writer.failure

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Have `callback` called once when a write fails, on the writer's thread; at once if one has failed."""
        self._writer.on_failure(callback)

    async def flow(self) -> None:
        """Wait until little enough waits for the disk. Raises StoreError when a write has failed."""
        await self._writer.flow()

    def unfinished(self) -> Iterator[tuple[Task, tuple[RecordedReply, ...]]]:
        """The tasks of this invocation that are not done, in plan order, each with the replies recorded so far."""
        for task in self._tasks.those(lambda task_id: not self._manifest.is_done(task_id)):
            replies = tuple(self._replies.pop(task.task_id, ()))
            self._next_reply[task.task_id] = len(replies)
            yield task, replies

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Put a reply into the journal, behind those that `unfinished` gave."""
        n = self._next_reply.get(task.task_id, 0)
        self._submit(ReplyItem(task.task_id, n, recorded))
        self._next_reply[task.task_id] = n + 1

    def death(self, task: Task, turn_key: str) -> None:
        """Note that an engine died while it worked on this turn."""
        self._submit(DeathItem(task.task_id, turn_key))
        self._deaths.setdefault(task.task_id, Counter())[turn_key] += 1

    def deaths(self, task: Task) -> Mapping[str, int]:
        """How often an engine died on each turn of a conversation that is not over, in all sessions."""
        return self._deaths.get(task.task_id, _NO_DEATHS)

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Publish the transcript of an ended conversation; it counts as done once it is `written`."""
        self._submit(TranscriptItem(task.task_id, transcript))
        self._next_reply.pop(task.task_id, None)
        self._deaths.pop(task.task_id, None)

    def event(self, name: str, fields: JsonObject) -> None:
        """Put an event into the event log, with the time."""
        self._submit(EventItem(name, self._session.clock.utc_now(), self._session.elapsed_s, fields))

    def checkpoint(self, accounting: JsonObject) -> None:
        """Note what this session has used up so far; `wall_s` is added, and the last note of a session stands."""
        self._submit(AccountingItem(self._session.elapsed_s, accounting))

    def write_summary(self, summary: JsonObject) -> None:
        """Write `summary.json`, behind everything handed over before."""
        self._submit(SummaryItem(summary))

    def contents(self) -> RunContents:
        """What the run directory holds once everything handed over so far is written, which this waits for.

        Raises StoreError when it cannot be written.
        """
        self._writer.drain()
        return read_run(self._session.layout.directory, disk=self._session.disk)

    def withdraw(self) -> None:
        """Leave the directory as it was found, and let the next process in: nothing has come of this start.

        For a run to which nothing was handed over.
        """
        assert not self.has_begun, "what was handed over is kept"
        self._session.is_withdrawn = True
        with suppress(StoreError):
            self._writer.close()
        back_out(self._session.disk, self._lock)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None and not self.has_begun:
            self.withdraw()
        else:
            super().__exit__(kind, fault, trace)

    def _submit(self, item: Item) -> None:
        self.has_begun = True
        self._writer.submit(item)

    def close(self) -> None:
        """Write all that was handed over, bring manifest and index up to date, let the next process in.

        Raises StoreError when something could not be written; safe to call twice.
        """
        try:
            self._writer.close()
            self._lock.sign_off()
        finally:
            self._lock.release()


def open_run(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Plan,
    clock: Clock,
    shard: Shard | None = None,
    disk: Disk | None = None,
    machine: Machine | None = None,
    is_retried: Callable[[str], bool] | None = None,
    is_guarded: bool = False,
    transcript_bytes_min: int = 0,
    restore: Restore | None = None,
    is_thorough: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Run:
    """Begin a run in `directory`, or go on with the one there.

    `tasks` is the plan of this invocation, and `shard` says which part of the experiment that
    is, when it is not all of it. Tasks that have failed are tried again where `is_retried`. The directory `is_guarded`
    where the caller holds the lock of one around it. A transcript takes `transcript_bytes_min` or more. One that is
    damaged or gone is made again by `restore`; the digests of all are compared where the opening `is_thorough`. `say`
    is told of what takes time or may surprise. A start that is refused leaves the directory as it was.

    Raises RunLockedError when another process is at it, IdentityError when it is another experiment's or another
    part's, RunDirectoryError when it is something else, StoreError when it cannot be written.
    """
    trial = TrialDisk(disk or Disk())
    layout = Layout(directory=directory, experiment_name=experiment_name)
    with telling_the_need(lambda: _need(trial, layout, tasks, transcript_bytes_min)):
        is_untouched(trial, directory)
        lock = lock_on_trial(
            trial,
            directory,
            lambda: RunLock(trial, directory, clock=clock, machine=machine, say=say, is_guarded=is_guarded),
        )
        try:
            is_new = is_untouched(trial, directory)
            changed = _begin(layout, resolved, shard, trial) if is_new else _go_on(layout, resolved, shard, trial)
            return _open_locked(
                layout,
                changed=changed,
                tasks=tasks,
                clock=clock,
                disk=trial,
                lock=lock,
                is_retried=is_retried,
                transcript_bytes_min=transcript_bytes_min,
                restore=restore,
                is_thorough=is_thorough,
                say=say,
            )
        except BaseException:
            back_out(trial, lock)
            raise


def _need(disk: Disk, layout: Layout, tasks: Plan, transcript_bytes_min: int) -> Need:
    """What is left to do, as reading alone tells: for a disk that has no room to begin with."""
    done = {row["task_id"] for row in journal.rows(disk, layout)}
    return need_of(disk, layout, sum(task_id not in done for task_id, _ in tasks.ids()), transcript_bytes_min)


def _begin(layout: Layout, resolved: JsonObject, shard: Shard | None, disk: Disk) -> tuple[Difference, ...]:
    """Make it a run directory: the config comes last, because it is what makes it one."""
    if shard is None:
        disk.remove(shard_path(layout.directory))
    else:
        disk.write_atomic(shard_path(layout.directory), [encode_shard(shard)])
    disk.write_atomic(layout.config, [encode_config(resolved)])
    return ()


def _go_on(layout: Layout, resolved: JsonObject, shard: Shard | None, disk: Disk) -> tuple[Difference, ...]:
    """Take over the run directory as it is, with the settings of now; what they change."""
    found = changes(disk, layout, resolved)
    check_shard(disk, layout.directory, shard)
    # A merge that was killed at its very end is whole; what comes now makes it a run of its own.
    disk.remove(merge_path(layout.directory))
    if found.identity:
        forget_plan(disk, layout)
    if told := (*found.identity, *found.runtime):
        disk.write_atomic(layout.config, [encode_config(resolved)])
    return told


def _open_locked(
    layout: Layout,
    *,
    changed: tuple[Difference, ...],
    tasks: Plan,
    clock: Clock,
    disk: TrialDisk,
    lock: RunLock,
    is_retried: Callable[[str], bool] | None,
    transcript_bytes_min: int,
    restore: Restore | None,
    is_thorough: bool,
    say: Callable[[str], None],
) -> Run:
    disk.check_regular(layout.summary)  # It is written at the very end, which is no time to find a directory there.
    repairs = Repairs()
    prepare(disk, layout, repairs)
    with ExitStack() as opened:
        number, log = create_segment(disk, layout)
        opened.callback(disk.close, log)
        disk.append(log, journal.session_frame(number, started_at=iso(clock.utc_now())))
        disk.sync(log)
        retried = {} if is_retried is None else reopen_failed(disk, layout, is_retried, log=log)
        recovered = recover(disk, layout, tasks, log=log, repairs=repairs, restore=restore, is_thorough=is_thorough)
        need = need_of(disk, layout, recovered.left, transcript_bytes_min)
        check_room(disk, layout, need)
        write_manifest(disk, layout, clock, recovered.manifest)
        index = disk.open_append(layout.index)
        opened.callback(disk.close, index)
        events, is_events_torn = open_events(disk, layout)
        # From here on the writer thread owns the files and closes them.
        opened.pop_all()
    session = Session(
        disk=disk,
        layout=layout,
        clock=clock,
        manifest=recovered.manifest,
        number=number,
        files=SessionFiles(log=log, index=index, events=events, is_events_torn=is_events_torn),
        need=need,
        attempts=recovered.attempts,
        show_life=lock.show_life_if_due,
    )
    if fields := repairs.as_json():
        session.note(EVENT_RUN_REPAIRED, fields)
    for line in repairs.in_words():
        say(line)
    for task_id, row in retried.items():
        attempt = len(recovered.attempts[task_id])
        session.note(EVENT_CONVERSATION_RETRIED, {"task": task_id, "attempt": attempt, "failure": row["failure"]})
    if lock.network_filesystem is not None:
        session.note(EVENT_NETWORK_FILESYSTEM, {"type": lock.network_filesystem})
    if changed:
        session.note(EVENT_SETTINGS_CHANGED, {"changes": [describe(change) for change in changed]})
    return Run(session=session, recovered=recovered, tasks=tasks, lock=lock, repairs=repairs)


def create_segment(disk: Disk, layout: Layout) -> tuple[int, OpenFile]:
    """A segment that nobody else has."""
    number = max(journal.sessions(disk, layout), default=0) + 1
    while (log := disk.create(layout.segment(number))) is None:
        number += 1
    return number, log
