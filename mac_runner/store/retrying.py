"""Failed conversations opened again, each attempt kept.

A retry goes on before the turn that the conversation failed on: what was said until then stands, and that turn is asked
again. So an engine that did not answer costs one turn and not a conversation, and no more is drawn anew than must be.

::

    attempts/ID.N.json, sync ──▶ `retry` frame, the replies that stand, sync ──▶ transcripts/ID.json is taken away

Each arrow is a promise, as it is when a conversation is published. Whatever instant this stops at, the conversation has
either failed as before or is open again, and its failed transcript is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mac_runner.errors import RunDirectoryError
from mac_runner.store import journal
from mac_runner.store.advice import listed, repair_advice
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.layout import Layout
from mac_runner.store.publishing import read_acknowledged, read_published, set_aside
from mac_runner.store.records import entry
from mac_runner.store.transcripts import replies_before_failure
from mac_runner.types import JsonObject

Attempts = Mapping[str, Sequence[JsonObject]]
"""The rows of the attempts that failed and were tried again, by task."""


def reopen_failed(
    disk: Disk, layout: Layout, is_wanted: Callable[[str], bool], *, log: OpenFile
) -> dict[str, JsonObject]:
    """Open those failed conversations again that are wanted; their rows until now. Noted in `log`."""
    before = journal.attempts(disk, layout)
    failed = {
        task_id: row
        for row in journal.rows(disk, layout)
        if row["status"] == "failed" and is_wanted(task_id := entry(row, "task_id", str))
    }
    if not failed:
        return {}
    _check_all(disk, layout, failed.values())
    disk.make_directory(layout.attempts)
    frames = [frame for row in failed.values() for frame in _kept(disk, layout, row, before)]
    disk.sync_directory(layout.attempts)
    disk.append(log, b"".join(frames))
    disk.sync(log)
    remove_superseded(disk, layout, {task_id: [row] for task_id, row in failed.items()}, failed)
    return failed


def remove_superseded(disk: Disk, layout: Layout, attempts: Attempts, open_again: Iterable[str]) -> None:
    """Take away the transcripts of failed attempts that still stand where the next attempt's will."""
    for task_id in open_again:
        path = layout.transcript(task_id)
        if disk.is_file(path) and _sha256(disk.read(path)) == attempts[task_id][-1]["sha256"]:
            disk.remove(path)


def _check_all(disk: Disk, layout: Layout, rows: Iterable[JsonObject]) -> None:
    """Raises RunDirectoryError naming every transcript that is not what its row says, before any is moved."""
    flaws: list[str] = []
    for row in rows:
        path = layout.transcript(entry(row, "task_id", str))
        try:
            read_acknowledged(disk, path, row)
        except ValueError as fault:
            flaws.append(f"{path} {fault}")
    if flaws:
        raise RunDirectoryError(f"{listed(flaws)}\n{repair_advice(layout.directory)}; then retry")


def _kept(disk: Disk, layout: Layout, row: JsonObject, before: Attempts) -> Iterator[bytes]:
    """Keep the transcript of an attempt; the frames that open its conversation again."""
    task_id = entry(row, "task_id", str)
    data = disk.read(layout.transcript(task_id))
    path = layout.attempt(task_id, len(before.get(task_id, ())) + 1)
    if not disk.publish_once(path, data) and (not disk.is_file(path) or disk.read(path) != data):
        # The journal has lost an earlier attempt of this number; the transcript of that stays beside.
        set_aside(disk, layout, path)
        disk.publish_once(path, data)
    yield journal.retry_frame(row)
    for n, recorded in enumerate(replies_before_failure(read_published(disk, layout, task_id).transcript)):
        yield journal.reply_frame(task_id, n, recorded)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
