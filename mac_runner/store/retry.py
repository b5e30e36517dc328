"""Retries: failed conversations opened again, each attempt kept.

A retry continues before the turn that the conversation failed on: what was said until then stays, and that turn is
asked again. So an engine that did not answer costs one turn, not a conversation.

::

    attempts/ID.N.json, sync ──▶ `retry` frame, the replies that stay, sync ──▶ transcripts/ID.json is removed

Each arrow is a promise, as in a publication. At whatever instant this stops, the conversation has either failed as
before or is open again, and its failed transcript exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from mac_runner.errors import RunDirectoryError
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.identity import listed, repair_advice
from mac_runner.store.layout import Layout, traces_beside
from mac_runner.store.records import row_id
from mac_runner.store.run_state import RunState
from mac_runner.store.trace_log import TraceLog
from mac_runner.store.traces import TRACES, read_traces
from mac_runner.store.transcripts import (
    Attempts,
    is_acknowledged,
    put,
    read_published,
    remove_superseded,
    replies_before_failure,
    result_flaw,
)
from mac_runner.types import JsonObject, RecordedReply


def failed_rows(disk: Disk, layout: Layout, state: RunState, is_wanted: Callable[[str], bool]) -> dict[str, JsonObject]:
    """The rows of the wanted failed conversations, which can be opened again.

    Raises RunDirectoryError naming every transcript that is not what was acknowledged.
    """
    failed = {task_id for task_id, ending in state.endings.items() if ending.status == "failed" and is_wanted(task_id)}
    if not failed:
        return {}
    rows = {task_id: row for row in state.rows(disk, layout) if (task_id := row_id(row)) in failed}
    flaws = [flaw for task_id, row in rows.items() if (flaw := result_flaw(disk, layout.transcript(task_id), row))]
    if flaws:
        raise RunDirectoryError(f"{listed(flaws)}\n{repair_advice(layout.directory)}; then retry")
    return rows


def kept_replies(disk: Disk, layout: Layout, task_id: str) -> list[RecordedReply]:
    """The replies of a failed conversation that stay when it is opened again."""
    transcript = read_published(disk, layout, task_id).transcript
    traces = read_traces(layout, transcript, disk=disk)
    return [recorded.traced(traces) for recorded in replies_before_failure(transcript)]


def reopen(disk: Disk, layout: Layout, attempts: Attempts, task_ids: Collection[str], segment: journal.Segment) -> None:
    """Open failed conversations again; the rows of their last `attempts` are those that failed."""
    disk.make_directory(layout.attempts)
    frames = [frame for task_id in task_ids for frame in _kept(disk, layout, attempts[task_id])]
    disk.sync_directory(layout.attempts)
    segment.write(frames)
    remove_superseded(disk, layout, attempts, task_ids)


def _kept(disk: Disk, layout: Layout, failed: Sequence[JsonObject]) -> Iterator[bytes]:
    """Keep the transcript of the last attempt; yields the frames that open its conversation again.

    The file of an earlier attempt of this number, which the journal has lost, is set aside. There are no frames where
    another process, which a broken lock let in, opened it again meanwhile.
    """
    row = failed[-1]
    task_id = row_id(row)
    path, transcript = layout.attempt(task_id, len(failed)), layout.transcript(task_id)
    if is_acknowledged(disk, path, row) and not is_acknowledged(disk, transcript, row):
        return
    if TRACES in row:
        put(disk, layout, traces_beside(path), disk.read(traces_beside(transcript)))
    put(disk, layout, path, disk.read(transcript))
    yield journal.retry_frame(row)
    log = TraceLog()
    for n, recorded in enumerate(kept_replies(disk, layout, task_id)):
        yield journal.reply_frame(task_id, n, recorded, log)
