"""Reading a run directory: for reports, viewers and the curious. Takes no lock and writes nothing.

Everything is derived from the journal, so it is right while the run is under way and after a kill, when the index and
the manifest lag behind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.frames import lines
from mac_runner.store.identity import read_config, read_shard
from mac_runner.store.layout import Layout, manifest_path, summary_path
from mac_runner.store.manifest import Counts, decode_manifest
from mac_runner.store.publishing import read_published
from mac_runner.store.records import entry
from mac_runner.store.sessions import accounting
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
                f"{path} cannot be read ({fault}); remove it and run the same command again: it is written anew"
            ) from fault

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


def read_run(directory: Path, *, disk: Disk | None = None) -> RunContents:
    """Read a run directory. Raises RunDirectoryError when it is none."""
    disk = disk or Disk()
    resolved = read_config(disk, directory)
    path = manifest_path(directory)
    if not disk.exists(path):
        raise RunDirectoryError(f"{directory} was never started fully; run the same command again")
    planned = decode_manifest(disk.chunks(path), str(path))
    layout = Layout(directory=directory, experiment_name=planned.experiment_name)
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


def read_summary(directory: Path, *, disk: Disk | None = None) -> JsonObject:
    """The summary that stands in a run directory. Raises RunDirectoryError when there is none or it is none."""
    path = summary_path(directory)
    try:
        summary = json.loads((disk or Disk()).read(path))
        if not isinstance(summary, dict):
            raise ValueError("it is no object")
    except (StoreError, ValueError, RecursionError) as fault:
        raise RunDirectoryError(
            f"{path} cannot be read ({fault}); remove it and run the same command again: it is written anew"
        ) from fault
    return summary


def _count(disk: Disk, layout: Layout, planned: dict[str, int]) -> Counts:
    """How far the run is, by what the journal says; what is done counts as planned."""
    statuses = Counter[str]()
    for row in journal.rows(disk, layout):
        planned.setdefault(entry(row, "task_id", str), entry(row, "index", int))
        statuses[entry(row, "status", str)] += 1
    return Counts(planned=len(planned), finished=statuses["finished"], failed=statuses["failed"])
