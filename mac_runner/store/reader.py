"""Reading a run directory: for reports, viewers and the curious. Takes no lock and writes nothing.

Everything is derived from the journal, so it is right while the run is under way and after a kill, when the index and
the manifest lag behind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import journal
from mac_runner.store.advice import listed, repair_advice
from mac_runner.store.disk import Disk
from mac_runner.store.frames import lines
from mac_runner.store.identity import read_config, read_shard
from mac_runner.store.layout import Layout, manifest_path
from mac_runner.store.manifest import Counts, decode_manifest
from mac_runner.store.publishing import read_acknowledged, read_published
from mac_runner.store.records import entry
from mac_runner.store.sessions import accounting
from mac_runner.store.transcripts import decode_transcript, salvaged_task
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContents:
    """What a run directory holds at the moment it was read."""

    layout: Layout
    resolved: JsonObject
    counts: Counts
    accounting: JsonObject
    disk: Disk

    @property
    def experiment_name(self) -> str:
        """What the run is called."""
        return self.layout.experiment_name

    def rows(self) -> Iterator[JsonObject]:
        """The index rows of all ended conversations, read one by one."""
        return journal.rows(self.disk, self.layout)

    def planned(self) -> dict[str, int]:
        """Every task that is planned, with its index."""
        manifest = decode_manifest(self.disk.chunks(self.layout.manifest), str(self.layout.manifest))
        done = {entry(row, "task_id", str): entry(row, "index", int) for row in self.rows()}
        return {**manifest.planned, **done}

    @property
    def shard(self) -> Shard | None:
        """Which part of the experiment this is; None for all of it."""
        return read_shard(self.disk, self.layout.directory)

    def failed(self) -> set[str]:
        """The tasks whose conversations have failed."""
        return {entry(row, "task_id", str) for row in self.rows() if row["status"] == "failed"}

    def under_retry(self) -> set[str]:
        """The tasks that have failed, are tried again, and have not ended yet."""
        attempts = journal.attempts(self.disk, self.layout)
        return attempts.keys() - {entry(row, "task_id", str) for row in self.rows()} if attempts else set()

    def transcript(self, task_id: str) -> JsonObject:
        """One transcript. Raises RunDirectoryError when there is none or it cannot be read."""
        path = self.layout.transcript(task_id)
        if not self.disk.exists(path):
            raise RunDirectoryError(f"{self.layout.directory} has no transcript of {task_id!r}: {self._endings()}")
        try:
            return read_published(self.disk, self.layout, task_id).transcript
        except ValueError as fault:
            raise RunDirectoryError(
                f"{path} cannot be read ({fault}); {repair_advice(self.layout.directory)}"
            ) from fault

    def flaw(self, row: JsonObject) -> str | None:
        """How the transcript of a row differs from what is acknowledged there; None where it does not."""
        path = self.layout.transcript(entry(row, "task_id", str))
        try:
            read_acknowledged(self.disk, path, row)
        except ValueError as fault:
            return f"{path} {fault}"
        return None

    def failed_transcripts(self, wanted: Collection[str]) -> Iterator[JsonObject]:
        """The transcripts of conversations that have failed, or whose last attempt has and that are open again.

        Raises RunDirectoryError behind the last one, naming all that are not what was acknowledged.
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
        """What the conversation of a task is about, by any of its transcripts, damaged ones too; None where none says.

        Not to be believed without comparing a digest.
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

    def _failures(self, wanted: Collection[str]) -> Iterator[tuple[Path, JsonObject]]:
        """Where the transcript of the last attempt at each conversation is, and its row."""
        ended: set[str] = set()
        for row in self.rows():
            task_id = entry(row, "task_id", str)
            ended.add(task_id)
            if task_id in wanted:
                yield self.layout.transcript(task_id), row
        for task_id, failed in journal.attempts(self.disk, self.layout).items():
            if task_id in wanted and task_id not in ended:
                yield self.layout.attempt(task_id, len(failed)), failed[-1]

    def answers(self, task_id: str) -> Iterator[JsonObject]:
        """What the event log tells of the replies of one conversation, in the order in which they came.

        An event is logged behind the reply it tells of, so one may be missing after a kill. A torn line is passed over.
        """
        for line in lines(self.disk.chunks(self.layout.events)):
            # Most lines are about other things, and parsing costs far more than looking.
            if b'"EVENT_INFER_DONE"' in line.data and task_id.encode() in line.data:
                try:
                    event = json.loads(line.data)
                except ValueError:
                    continue
                if event["task"] == task_id and not event["is_dropped"]:
                    yield event

    def _endings(self) -> str:
        return f"{self.counts.done} of {self.counts.planned} conversations have ended so far"


def read_run(directory: Path, *, disk: Disk | None = None, sessions: int | None = None) -> RunContents:
    """Read a run directory, or what its first `sessions` sessions left. Raises RunDirectoryError when it is none.

    Planned is what is planned now: an earlier plan is not kept.
    """
    disk = disk or Disk()
    resolved = read_config(disk, directory)
    path = manifest_path(directory)
    if not disk.exists(path):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    planned = decode_manifest(disk.chunks(path), str(path))
    layout = Layout(directory=directory, experiment_name=planned.experiment_name, sessions=sessions)
    return RunContents(
        layout=layout,
        resolved=resolved,
        counts=_count(disk, layout, planned.planned),
        accounting=accounting(disk, layout),
        disk=disk,
    )


def has_run(directory: Path, *, disk: Disk | None = None) -> bool:
    """Whether a run was begun in a directory."""
    return (disk or Disk()).exists(manifest_path(directory))


def _count(disk: Disk, layout: Layout, planned: dict[str, int]) -> Counts:
    """How far the run is, by what the journal says; what is done counts as planned."""
    statuses = Counter[str]()
    for row in journal.rows(disk, layout):
        planned.setdefault(entry(row, "task_id", str), entry(row, "index", int))
        statuses[entry(row, "status", str)] += 1
    return Counts(planned=len(planned), finished=statuses["finished"], failed=statuses["failed"])
