"""What a run would find in its directory: for a dry run, and to leave a finished run alone. Touches nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from mac_runner.config import Difference
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Plan, Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.frames import lines
from mac_runner.store.identity import changes, check_shard, describe, is_untouched
from mac_runner.store.layout import Layout
from mac_runner.store.manifest import Manifest, decode_manifest
from mac_runner.store.publishing import transcript_sizes
from mac_runner.store.records import entry
from mac_runner.store.session import in_task_order, settle
from mac_runner.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """How far the tasks of one invocation are.

    `half_done` have recorded replies to go on from. `is_complete` means that running would change nothing: all
    is done, and written down in its final form.
    """

    planned: int
    finished: int
    failed: int
    half_done: int
    recorded_replies: int
    changed_settings: tuple[str, ...]
    is_complete: bool

    @property
    def left(self) -> int:
        """How many have not ended."""
        return self.planned - self.finished - self.failed

    @property
    def untouched(self) -> int:
        """How many have not begun."""
        return self.planned - self.finished - self.failed - self.half_done


def survey(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Plan,
    shard: Shard | None = None,
    disk: Disk | None = None,
) -> Survey:
    """Look at a directory as `open_run` would, with the same refusals, and leave it as it is."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=experiment_name)
    changed: tuple[Difference, ...] = ()
    if not is_untouched(disk, directory):
        changed = sum(changes(disk, layout, resolved), start=())
        check_shard(disk, directory, shard)
    sizes = transcript_sizes(disk, layout)
    endings = {
        task_id: entry(row, "status", str)
        for row in journal.rows(disk, layout)
        if sizes.get(task_id := entry(row, "task_id", str)) == row["size_bytes"]
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
        changed_settings=tuple(describe(change) for change in changed),
        is_complete=not changed and _is_final(disk, layout, tasks),
    )


def is_complete(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Plan,
    shard: Shard | None = None,
    disk: Disk | None = None,
) -> bool:
    """What `survey` says of this, with the same refusals; where something is left to do it is soon known."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=experiment_name)
    if is_untouched(disk, directory):
        return False
    found = changes(disk, layout, resolved)
    check_shard(disk, directory, shard)
    return not any(found) and _is_final(disk, layout, tasks)


def _is_final(disk: Disk, layout: Layout, tasks: Plan) -> bool:
    """Whether all is done, and manifest, index and summary say what they will say for ever.

    What is cheap to find out is asked first.
    """
    if not disk.exists(layout.summary) or not disk.exists(layout.manifest):
        return False
    try:
        listed = decode_manifest(disk.chunks(layout.manifest), str(layout.manifest))
    except RunDirectoryError:
        return False
    if any(listed.statuses.get(task_id, "pending") == "pending" for task_id, _ in tasks.ids()):
        return False
    manifest = Manifest(layout.experiment_name, listed.planned)
    sizes = transcript_sizes(disk, layout)
    for row in journal.rows(disk, layout):
        task_id = entry(row, "task_id", str)
        settle(manifest, task_id, entry(row, "status", str))
        if sizes.pop(task_id, None) != row["size_bytes"]:
            return False
    if sizes or any(manifest.status(task_id) != status for task_id, status in listed.statuses.items()):
        return False
    return _is_index_final(disk, layout, manifest)


def _is_index_final(disk: Disk, layout: Layout, manifest: Manifest) -> bool:
    found = (line.data + b"\n" for line in lines(disk.chunks(layout.index)))
    right = in_task_order(journal.rows(disk, layout), manifest.done())
    return all(line == other for line, other in zip_longest(found, right))
