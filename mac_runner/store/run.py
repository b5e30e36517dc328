"""Reading a run directory without a lock: for reports, status, pages and the curious. Writes nothing.

Everything is derived from the journal, so it is right while the run is under way and after a kill, when index and
manifest lag behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.files import Mark, mark_of
from mac_runner.plan import Shard
from mac_runner.printable import counted
from mac_runner.results import section
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.fork import ForkRecord, read_fork
from mac_runner.store.identity import listed, read_head, read_shard
from mac_runner.store.layout import Layout, repair_advice
from mac_runner.store.leases import at_work, event_logs, read_planned
from mac_runner.store.lock import Holder
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import Counts, ended_by_manifest, in_task_order
from mac_runner.store.records import in_time_order, origin_of, row_id
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.store.run_state import (
    RECORDED,
    JournalTail,
    News,
    RunState,
    merge_accounting,
    never,
    read_state,
    unnoted,
)
from mac_runner.store.traces import Traces, read_traces
from mac_runner.store.transcripts import (
    check_acknowledged,
    decode_transcript,
    read_acknowledged,
    read_published,
    result_flaw,
    salvaged_task,
)
from mac_runner.types import JsonObject, JsonValue, RecordedReply


class Run:
    """A run directory, or a combination of a grid, as it was when it was last read.

    Nothing is locked and nothing is written. `follow` reads what is new: what was read once is kept. Not for two
    threads at once.
    """

    def __init__(
        self,
        layout: Layout,
        resolved: JsonObject,
        *,
        disk: Disk | None = None,
        machine: Machine | None = None,
        keeps_replies: bool = False,
        tail: JournalTail | None = None,
    ) -> None:
        """Nothing is read yet, or what `tail` has read of its journal.

        With `keeps_replies` it knows the replies of conversations that have not ended.
        """
        self.layout = layout
        self.resolved = resolved
        self.disk = disk or Disk()
        self.machine = machine or Machine()
        self.is_whole = False
        """Whether the journal was read to its end."""
        self._keeps_replies = keeps_replies
        self._tail = tail or self._from_the_start()
        self._marks: object = None
        self._plan: object = None
        self._planned: Mapping[str, int] = {}
        self._tasks: tuple[Mapping[str, int], int, AbstractSet[str]] | None = None
        self._lost: tuple[Mark | None, int] | None = None

    @classmethod
    def at(
        cls,
        directory: Path,
        *,
        disk: Disk | None = None,
        machine: Machine | None = None,
        keeps_replies: bool = False,
        tail: JournalTail | None = None,
    ) -> Run:
        """The run in a directory. Raises RunDirectoryError when there is none."""
        layout, resolved = read_head(directory, disk=disk)
        return cls(layout, resolved, disk=disk, machine=machine, keeps_replies=keeps_replies, tail=tail)

    def _from_the_start(self) -> JournalTail:
        return JournalTail(self.disk, self.layout, keeps_replies=self._keeps_replies)

    # Reading.

    def follow(
        self,
        on_row: Callable[[DoneRow], object] = unnoted,
        is_over: Callable[[], bool] = never,
        kind: type[RecordedRow] = RecordedRow,
    ) -> News:
        """Read what is new; `on_row` takes the index row of each conversation that ended, read as `kind`.

        `is_over` is asked now and then: where it says so, the next call reads on from there. Where the directory holds
        another run by now, `state` is another object. Raises RunDirectoryError or StoreError where it cannot be read.
        """
        layout = self.layout
        marks = mark_of(layout.config), mark_of(layout.manifest), mark_of(layout.leases)
        if marks != self._marks:
            head = read_head(layout.directory, disk=self.disk)
            if head != (layout, self.resolved):
                self.layout, self.resolved = head
                self._tail = self._from_the_start()
            self._marks, self._plan = marks, None
        news = self._tail.read_on(on_row, is_over, kind)
        self.is_whole = news.is_whole
        # The segment of a session may be there before what it plans is.
        begun = self.state, sum(session.started_at is not None for session in self.state.sessions)
        if begun != self._plan:
            self._planned, self._plan = read_planned(self.disk, self.layout, self.state), begun
        return news

    @property
    def state(self) -> RunState:
        """What its journal says, as far as it was read."""
        return self._tail.state

    # What there is.

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
    def counts(self) -> Counts:
        """How many conversations are planned, and how many of them have ended."""
        failed, ended = self.state.failed, len(self.state.endings)
        return Counts(planned=len(self.tasks), finished=ended - failed, failed=failed)

    @property
    def tasks(self) -> AbstractSet[str]:
        """The tasks that are planned now, and all that have ended: an earlier plan is not kept."""
        known = self._planned, len(self.state.endings)
        if self._tasks is None or self._tasks[0] is not known[0] or self._tasks[1] != known[1]:
            self._tasks = (*known, self._planned.keys() | self.state.endings.keys())
        return self._tasks[2]

    @property
    def accounting(self) -> JsonObject:
        """What the sessions used and ended (`RunState.accounting`)."""
        return self._counted.accounting()

    @property
    def usage(self) -> JsonObject:
        """What the sessions used (`RunState.usage`); those of a grid, which a merge may bring, what they recorded."""
        usage = self._counted.usage
        return merge_accounting({key: usage[key] for key in usage if key != RECORDED}, section(usage, RECORDED))

    @property
    def bounds(self) -> JsonObject:
        """Of an experiment with `limits` these, and `model_definitions` with the prices; else nothing."""
        is_bound = self.resolved.get("limits") is not None
        return {key: self.resolved[key] for key in ("limits", "model_definitions")} if is_bound else {}

    @property
    def share(self) -> JsonObject:
        """What a combination adds to the use of its grid (`RunState.share`)."""
        return self._counted.share

    @property
    def _counted(self) -> RunState:
        self.state.count_recorded(self.disk, self.layout)
        return self.state

    @property
    def lost(self) -> int:
        """How many conversations have ended by the manifest, and their endings are not in the journal."""
        mark = mark_of(self.layout.manifest)
        if self._lost is None or self._lost[0] != mark or self._lost[1]:
            ended = ended_by_manifest(self.disk, self.layout)
            # Those that ended after the journal was read are there by now.
            lost = lost_endings(ended, self.state) and lost_endings(ended, read_state(self.disk, self.layout))
            self._lost = mark, len(lost)
        return self._lost[1]

    @property
    def holder(self) -> Holder:
        """Who has left a note that it works on it; of several one that is alive."""
        return at_work(self.disk, self.layout.directory, self.machine)

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
        endings = self.state.endings

        def order(task_id: str) -> tuple[str, int, str]:
            origin = origin_of(task_id)
            return "" if origin == task_id else origin, endings[task_id].task_index, task_id

        return in_task_order(self.json_rows(), sorted(endings, key=order))

    def json_rows(self) -> Iterator[DoneRow]:
        """The index rows as JSON, in the order in which their conversations ended."""
        return self.state.json_rows(self.disk, self.layout)

    def planned(self) -> dict[str, int]:
        """Every planned task, with its index."""
        return {**self._planned, **{task_id: ending.task_index for task_id, ending in self.state.endings.items()}}

    def index_of(self, task_id: str) -> int | None:
        """The index of a task; None for one that is not planned."""
        ending = self.state.endings.get(task_id)
        return self._planned.get(task_id) if ending is None else ending.task_index

    @property
    def replied(self) -> AbstractSet[str]:
        """The tasks that have a reply and have not ended, where replies are kept."""
        return self._tail.replied

    def reply_count(self, task_id: str) -> int:
        """How many replies of an open conversation are recorded, where replies are kept."""
        return self._tail.reply_count(task_id)

    def replies(self, task_id: str) -> Sequence[RecordedReply]:
        """The recorded replies of a conversation that has not ended."""
        if self._keeps_replies:
            return self._tail.replies(task_id)
        return journal.replies(self.disk, self.layout, task_id.__eq__).get(task_id, ())

    def open_replies(self) -> Mapping[str, Sequence[RecordedReply]]:
        """Those of all conversations that have not ended, by task."""
        return journal.replies(self.disk, self.layout, lambda task_id: task_id not in self.state.endings)

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
        return RunDirectoryError(
            f"{self.layout.directory} has no transcript of {task_id!r}: {self.counts.in_words} so far"
        )

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


def read_run(directory: Path, *, disk: Disk | None = None, tail: JournalTail | None = None) -> Run:
    """Read a run directory, its journal on from what `tail` has read. Raises RunDirectoryError when there is none."""
    run = Run.at(directory, disk=disk, tail=tail)
    run.follow()
    return run


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


def damaged_words(lines: int) -> str:
    """What to say of a run or a grid with so many damaged lines in its journals."""
    return f"the journal has {counted(lines, 'damaged lines')}, which count for nothing; `mac-run verify` names them"


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
