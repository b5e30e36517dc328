"""Retries: failed conversations opened again, each attempt kept.

A retry continues before the turn that the conversation failed on: what was said until then stays, and that turn is
asked again. So an engine that did not answer costs one turn, not a conversation.

::

    attempts/ID.N.json, sync ──▶ `retry` frame, the replies that stay, sync ──▶ transcripts/ID.json is removed

Each arrow is a promise, as in a publication. At whatever instant this stops, the conversation has either failed as
before or is open again, and its failed transcript exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mac_runner.errors import RunDirectoryError
from mac_runner.store import journal
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.identity import listed, repair_advice
from mac_runner.store.layout import Layout, traces_beside
from mac_runner.store.records import row_id
from mac_runner.store.run_state import RunState, read_state
from mac_runner.store.trace_log import TraceLog
from mac_runner.store.traces import TRACES, read_traces, traces_flaw
from mac_runner.store.transcripts import (
    read_acknowledged,
    read_published,
    remove_superseded,
    replies_before_failure,
    set_aside,
)
from mac_runner.types import JsonObject


def reopen_failed(
    disk: Disk, layout: Layout, is_wanted: Callable[[str], bool], *, log: OpenFile
) -> dict[str, JsonObject]:
    """Open the wanted failed conversations again, by frames in `log`; returns the rows of the failed attempts.

    Raises RunDirectoryError naming every transcript that is not what was acknowledged; then nothing was changed.
    """
    state = read_state(disk, layout)
    failed = {task_id for task_id, ending in state.endings.items() if ending.status == "failed" and is_wanted(task_id)}
    if not failed:
        return {}
    rows = {task_id: row for row in state.rows(disk, layout) if (task_id := row_id(row)) in failed}
    _check_all(disk, layout, rows.values())
    disk.make_directory(layout.attempts)
    frames = [frame for row in rows.values() for frame in _kept(disk, layout, row, state)]
    disk.sync_directory(layout.attempts)
    disk.append(log, b"".join(frames))
    disk.sync(log)
    remove_superseded(disk, layout, {task_id: [row] for task_id, row in rows.items()}, rows)
    return rows


def _check_all(disk: Disk, layout: Layout, rows: Iterable[JsonObject]) -> None:
    flaws: list[str] = []
    for row in rows:
        path = layout.transcript(row_id(row))
        try:
            read_acknowledged(disk, path, row)
        except ValueError as fault:
            flaws.append(f"{path} {fault}")
        if (flaw := traces_flaw(disk, traces_beside(path), row)) is not None:
            flaws.append(f"{traces_beside(path)} {flaw}")
    if flaws:
        raise RunDirectoryError(f"{listed(flaws)}\n{repair_advice(layout.directory)}; then retry")


def _kept(disk: Disk, layout: Layout, row: JsonObject, state: RunState) -> Iterator[bytes]:
    """Keep the transcript of an attempt; yields the frames that open its conversation again."""
    task_id = row_id(row)
    data = disk.read(layout.transcript(task_id))
    path = layout.attempt(task_id, len(state.attempts.get(task_id, ())) + 1)
    if TRACES in row:
        _keep(disk, layout, traces_beside(path), disk.read(traces_beside(layout.transcript(task_id))))
    _keep(disk, layout, path, data)
    yield journal.retry_frame(row)
    transcript = read_published(disk, layout, task_id).transcript
    log, traces = TraceLog(), read_traces(layout, transcript, disk=disk)
    for n, recorded in enumerate(replies_before_failure(transcript)):
        yield journal.reply_frame(task_id, n, recorded.traced(traces), log)


def _keep(disk: Disk, layout: Layout, path: Path, data: bytes) -> None:
    if not disk.publish_once(path, data) and (not disk.is_file(path) or disk.read(path) != data):
        # The journal has lost an earlier attempt of this number; the file of that one stays in `damaged/`.
        set_aside(disk, layout, path)
        disk.publish_once(path, data)
