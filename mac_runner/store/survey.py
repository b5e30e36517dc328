"""What a run would find in its directory: for a dry run, and to leave a finished run alone. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mac_runner.config import Difference
from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.frames import lines
from mac_runner.store.identity import check_shard, describe, is_untouched, runtime_changes
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.manifest import decode_manifest
from mac_runner.store.records import entry
from mac_runner.store.session import in_task_order
from mac_runner.types import JsonObject, Task


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
    def untouched(self) -> int:
        """How many have not begun."""
        return self.planned - self.finished - self.failed - self.half_done


def survey(
    directory: Path,
    *,
    experiment_name: str,
    resolved: JsonObject,
    tasks: Callable[[], Iterator[Task]],
    shard: Shard | None = None,
    disk: Disk | None = None,
) -> Survey:
    """Look at a directory as `open_run` would, with the same refusals, and leave it as it is."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=experiment_name)
    changes: tuple[Difference, ...] = ()
    if not is_untouched(disk, directory):
        changes = runtime_changes(disk, directory, resolved)
        check_shard(disk, directory, shard)
    present = {task_id_of(name) for name in disk.names(layout.transcripts)}
    statuses = {entry(row, "task_id", str): entry(row, "status", str) for row in journal.rows(disk, layout)}
    endings = {task_id: status for task_id, status in statuses.items() if task_id in present}
    recorded = journal.replies(disk, layout, lambda task_id: task_id not in endings)
    planned = [task.task_id for task in tasks()]
    found = [endings.get(task_id) for task_id in planned]
    half_done = [task_id for task_id in planned if task_id not in endings and task_id in recorded]
    is_tidy = not changes and statuses.keys() == present and _is_final(disk, layout, statuses, planned)
    return Survey(
        planned=len(planned),
        finished=found.count("finished"),
        failed=found.count("failed"),
        half_done=len(half_done),
        recorded_replies=sum(len(recorded[task_id]) for task_id in half_done),
        changed_settings=tuple(describe(change) for change in changes),
        is_complete=is_tidy and None not in found,
    )


def _is_final(disk: Disk, layout: Layout, statuses: dict[str, str], planned: list[str]) -> bool:
    """Whether manifest, index and summary say what they will say for ever."""
    if not disk.exists(layout.summary) or not disk.exists(layout.manifest):
        return False
    try:
        manifest = decode_manifest(disk.read(layout.manifest), str(layout.manifest))
    except RunDirectoryError:
        return False
    if manifest.statuses != {**dict.fromkeys([*manifest.statuses, *planned], "pending"), **statuses}:
        return False
    index = [line.data + b"\n" for line in lines(disk.chunks(layout.index))]
    return index == in_task_order(journal.rows(disk, layout))
