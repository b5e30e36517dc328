"""The manifest and the index: the list of planned tasks, and the rows of those that ended.

The manifest is written whole, and therefore rarely: at the start, at the end, and in between only when both some time
has passed and a fair share of the tasks has ended, so its cost per conversation does not grow with the plan. Between
two writings the journal is the truth, and a resume reads both. What was planned once stays planned: an invocation that
plans fewer tasks does not shrink it.

The index has one row per ended conversation: in the order of ending while the run goes on, in task order at its end.
Both can be derived again from the journal.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.files import mark_of
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout, transcript_path
from mac_runner.store.records import encode_json, entry, lines, lines_with, objects
from mac_runner.store.rows import DoneRow
from mac_runner.structs import convert, decode
from mac_runner.types import JsonObject

MANIFEST_FORMAT = 1

_TASK = re.compile(rb'\{"task_id": .*\},?')
_ENDED = re.compile(rb'\{"task_id": ("[^"]*"), .*"status": "(?:finished|failed)"\}')
_quoted = json.JSONEncoder(ensure_ascii=True).encode

Status: TypeAlias = Literal["finished", "failed"]


class Counts(NamedTuple):
    """How many tasks are planned, and how many of them finished or failed."""

    planned: int
    finished: int
    failed: int

    @property
    def done(self) -> int:
        return self.finished + self.failed

    @property
    def in_words(self) -> str:
        return f"{self.done} of {self.planned} conversations have ended"


class Manifest:
    """Planned tasks in the order of their index, and how those that are done ended."""

    def __init__(self, experiment_name: str, planned: Mapping[str, int], *, is_ordered: bool = False) -> None:
        """The tasks are put in the order of their indexes, unless it `is_ordered`: those of several experiments."""
        self._experiment_name = experiment_name
        if not is_ordered and any(one >= other for one, other in pairwise(planned.values())):
            planned = dict(sorted(planned.items(), key=lambda item: (item[1], item[0])))
        self._indexes = dict(planned)
        self._endings: dict[str, Status] = {}
        self._failed = 0

    @property
    def counts(self) -> Counts:
        return Counts(len(self._indexes), len(self._endings) - self._failed, self._failed)

    def plan(self, tasks: Mapping[str, int]) -> None:
        self._indexes |= tasks

    def settle(self, task_id: str, status: str) -> None:
        """Note that a task is done. Raises StoreError unless `status` is finished or failed."""
        if status not in {"finished", "failed"}:
            raise StoreError(f"task {task_id} ended as {status!r}; a conversation is either finished or failed")
        if task_id not in self._endings:
            self._failed += status == "failed"
            self._endings[task_id] = "failed" if status == "failed" else "finished"

    def reopen(self, task_id: str) -> None:
        del self._endings[task_id]
        self._failed -= 1

    def status(self, task_id: str) -> str:
        """How a task ended; "pending" when it has not."""
        return self._endings.get(task_id, "pending")

    def statuses(self) -> Iterator[tuple[str, str]]:
        """Each planned task and how it ended, in their order."""
        return ((task_id, self.status(task_id)) for task_id in self._indexes)

    def is_done(self, task_id: str) -> bool:
        return task_id in self._endings

    def is_pending(self, task_id: str) -> bool:
        """Whether a task is planned and needs work."""
        return task_id in self._indexes and task_id not in self._endings

    def done(self) -> Iterator[str]:
        return (task_id for task_id in self._indexes if task_id in self._endings)

    def encode(self, updated_at: str) -> Iterator[bytes]:
        head: JsonObject = {
            "format": MANIFEST_FORMAT,
            "experiment_name": self._experiment_name,
            "counts": dict(self.counts._asdict()),
            "timing": {"updated_at": updated_at},
        }
        rows = b",\n".join(encode_json(key) + b": " + encode_json(value) for key, value in head.items())
        yield b"{\n" + rows + b',\n"tasks": ['
        separator = "\n"
        for task_id, index in self._indexes.items():
            yield (separator + self._line(task_id, index)).encode("ascii")
            separator = ",\n"
        yield b"\n]\n}\n"

    def _line(self, task_id: str, index: int) -> str:
        status = self.status(task_id)
        names = f'"task_id": {_quoted(task_id)}, "index": {index}, "transcript": {_quoted(transcript_path(task_id))}'
        return f'{{{names}, "status": "{status}"}}'


class ManifestFile(NamedTuple):
    """A manifest on disk: what was planned, and each task's status when it was written."""

    experiment_name: str
    planned: dict[str, int]
    statuses: dict[str, str]


class _Planned(msgspec.Struct):
    task_id: str
    index: int
    transcript: str
    status: str


def read_manifest(disk: Disk, layout: Layout) -> ManifestFile:
    """The manifest of a run directory. Raises RunDirectoryError when it cannot be read."""
    found = decode_manifest(disk.chunks(layout.manifest), str(layout.manifest))
    if found.experiment_name != layout.experiment_name:
        raise _unreadable(str(layout.manifest), f"it is of the experiment {found.experiment_name!r:.100}")
    return found


def decode_manifest(chunks: Iterable[bytes], where: str) -> ManifestFile:
    """A manifest from its file, given in pieces, line by line. Raises RunDirectoryError when it cannot be read."""
    planned: dict[str, int] = {}
    statuses: dict[str, str] = {}

    def note(task: _Planned) -> None:
        # With a letter changed it would be a task more: what was planned once stays planned.
        if task.transcript != transcript_path(task.task_id):
            raise ValueError(f"{task.task_id} has the transcript of another task")
        planned[task.task_id] = task.index
        statuses[task.task_id] = task.status

    # Without the lines of the tasks, what is left is a manifest without tasks, and small.
    frame: list[bytes] = []
    try:
        for line in lines(chunks):
            if _TASK.fullmatch(line.data):
                note(decode(line.data.removesuffix(b","), _Planned))
            else:
                frame.append(line.data)
        record = json.loads(b"\n".join(frame))
        if not isinstance(record, dict) or record.get("format") != MANIFEST_FORMAT:
            raise ValueError(f"it should be an object with format {MANIFEST_FORMAT}")
        # A manifest that another program formatted has its tasks here.
        for task in objects(record, "tasks"):
            note(convert(task, _Planned))
        # Nothing else says what was planned once, so a task less would go unseen.
        if (count := entry(entry(record, "counts", dict), "planned", int)) != len(planned):
            raise ValueError(f"it has {len(planned)} of {count} planned tasks")
        return ManifestFile(entry(record, "experiment_name", str), planned, statuses)
    except (ValueError, RecursionError) as fault:
        raise _unreadable(where, fault) from fault


def _unreadable(where: str, why: object) -> RunDirectoryError:
    return RunDirectoryError(
        f"{where} cannot be read ({why}); remove it and run the same command again: it is written again"
    )


def write_manifest(disk: Disk, layout: Layout, manifest: Manifest, *, updated_at: str) -> None:
    disk.write_atomic(layout.manifest, manifest.encode(updated_at))


def in_task_order(rows: Iterable[DoneRow], task_ids: Iterable[str]) -> Iterator[DoneRow]:
    """The `rows` in the order of `task_ids`, which is the task order.

    Conversations end nearly in the order they began, so few rows at a time wait for their turn.
    """
    waiting: dict[str, DoneRow] = {}
    left = iter(rows)
    for task_id in task_ids:
        while task_id not in waiting and (following := next(left, None)) is not None:
            waiting[following.task_id] = following
        if task_id in waiting:
            yield waiting.pop(task_id)


def write_index(disk: Disk, layout: Layout, rows: Iterable[DoneRow], manifest: Manifest) -> None:
    """Replace the index by the `rows` of all tasks that are done, in task order."""
    ordered = in_task_order(rows, manifest.done())
    del rows  # Only `ordered` holds them, so their file is closed after the last one, even if the writing fails.
    disk.write_atomic(layout.index, (row.json + b"\n" for row in ordered))


def ended_by_manifest(disk: Disk, layout: Layout) -> frozenset[str]:
    """The tasks of a run that have ended by its manifest; that of a grid counts however damaged it is."""
    if layout.grid is not None:
        # A manifest without a mark is gone, and its place is not known to stay empty.
        mark = mark_of(layout.manifest) or object()
        return _ended_in_grid(disk, layout.manifest, mark).get(layout.experiment_name, frozenset())
    found = read_manifest(disk, layout).statuses
    return frozenset(task_id for task_id, status in found.items() if status in ("finished", "failed"))


@lru_cache(maxsize=1)
def _ended_in_grid(disk: Disk, manifest: Path, _mark: object) -> dict[str, frozenset[str]]:
    """The tasks that have ended by the manifest of a grid, by experiment: read once for all combinations."""
    found = defaultdict[str, set[str]](set)
    for line in lines_with(_ENDED, disk.chunks(manifest)):
        if (match := _ENDED.search(line.data)) is not None:
            with suppress(ValueError):
                task_id = str(json.loads(match[1]))
                found[task_id.rpartition("-")[0]].add(task_id)
    return {name: frozenset(ended) for name, ended in found.items()}
