"""The journal: everything a run may not lose, in the order it happened.

Each session appends to a segment of its own and never touches another one. So a torn tail stays where the kill left it,
recognised by its missing newline, and two runners that a broken lock let in cannot damage each other.

| `kind` | record |
|---|---|
| `session` | number, start, format version; first in its segment. A merged one has its `run`, and its number there |
| `reply` | the `n`-th reply of a task, and the model that gave it |
| `policy` | a model has weights of another version from here on; before the first reply of that version |
| `death` | an engine died while it worked on a turn of a task; counts until the task is done |
| `done` | a conversation whose transcript is durable, with its index row; the last one of a task counts |
| `retry` | a failed conversation is open again, with the row of the failed attempt; its replies are those after this |
| `checkpoint` | what the session has used so far; the last one of a session counts |

A lost reply frame ends what can be used of its task in that session; a later session that continued from there writes
the numbers again, and what it wrote counts.

Keys are sorted, so each frame begins with `id` and `kind`. A reader searches for the beginnings of the frames it wants:
nearly all of a journal are replies of conversations that are done, and those are skipped in bulk. Every frame that is
used has its checksum compared. Reading streams: memory follows what the caller keeps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.layout import Layout, session_of
from mac_runner.store.records import (
    CHECKSUM_CHARS,
    Line,
    encode_frame,
    encode_json,
    entry,
    foreign_format,
    is_intact,
    lines,
    lines_with,
    recorded_from_json,
    recorded_json,
    records_of,
    row_id,
)
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.store.trace_log import TraceLog
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue, PolicyVersion, RecordedReply

JOURNAL_FORMAT = 3
"""Each segment has its own."""

_OF_SESSIONS = frozenset({"session", "checkpoint"})
KINDS: Final = frozenset({*_OF_SESSIONS, "reply", "policy", "death", "done", "retry"})

# No key of a frame may sort before "id", or before "kind". Possessive, because an id can be read in one way only: a
# search takes a third of the time.
_ID = r""" \{"id":"([^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+)","kind":"""
MARK = re.compile(rf'{_ID}"(?!reply")([a-z]+)",'.encode())
FRAME: Final = re.compile(rf'{_ID}"([a-z]+)",'.encode())
START: Final = b' {"id":"'
"""How a frame begins after its checksum. The text occurs nowhere else."""
_OF_TASK = re.compile(rf'{_ID}"(reply|retry)",'.encode())
REPLY = re.compile(rf'{_ID}"reply",'.encode())
_SESSION = re.compile(rf'{_ID}"session",'.encode())
_DONE = re.compile(rf'{_ID}"done",'.encode())
_ROW = b'"row":'


def session_frame(
    session: int,
    *,
    started_at: str,
    run: str | None = None,
    engines: Mapping[str, str] | None = None,
    shard: Shard | None = None,
    planned: Sequence[int] | None = None,
) -> bytes:
    """The first frame of a segment; `run` names the run directory of a merged session, `shard` what a worker claimed.

    `planned` are the indexes of the tasks of a session of a part: the manifest is that of the whole.

    With `engines` they are accounted for elsewhere, as those of a combination are in its grid: their names there, by
    model.
    """
    frame: JsonObject = {
        "id": str(session),
        "kind": "session",
        "session": session,
        "started_at": started_at,
        "version": JOURNAL_FORMAT,
        **({} if engines is None else {"served_by": dict(engines)}),
        **({} if shard is None else {"shard": [*shard]}),
        **({} if planned is None else {"planned": [*stretches(planned)]}),
    }
    return encode_frame(frame if run is None else {**frame, "run": run})


def reply_frame(task_id: str, n: int, recorded: RecordedReply, log: TraceLog | None = None) -> bytes:
    """The frame of the `n`-th reply of a task; `log` has the traces of its earlier replies."""
    found = recorded_json(recorded)
    if (trace := (TraceLog() if log is None else log).add(n, recorded)) is not None:
        found["reply"] = {**entry(found, "reply", dict), "trace": trace}
    return encode_frame({"id": task_id, "kind": "reply", "n": n, **found})


def policy_frame(model: str, policy: PolicyVersion) -> bytes:
    """The frame of the weights that a model has from here on."""
    return encode_frame({"id": model, "kind": "policy", **policy._asdict()})


def death_frame(task_id: str, turn_key: str) -> bytes:
    """The frame of a death of an engine over one turn."""
    return encode_frame({"id": task_id, "kind": "death", "turn": turn_key})


def done_frame(row: JsonObject) -> bytes:
    """The frame that makes a conversation done."""
    return encode_frame({"id": row_id(row), "kind": "done", "row": row})


def retry_frame(row: JsonObject) -> bytes:
    """The frame that opens a failed conversation again; `row` is that of the failed attempt."""
    return encode_frame({"id": row_id(row), "kind": "retry", "row": row})


def checkpoint_frame(session: int, *, elapsed_s: float, accounting: JsonObject) -> bytes:
    """The frame of what a session has used so far: `wall_s` in all, of that `played_s` (0 by default).

    A `wall_s` of the accounting is that of other processes, and is added. What was recorded later counts besides
    (`run_state.counted`).
    """
    others_s = accounting.get("wall_s")
    wall_s = elapsed_s + (others_s if isinstance(others_s, int | float) else 0.0)
    usage: JsonObject = {"played_s": 0.0, **accounting, "wall_s": round(wall_s, 6)}
    return encode_frame({"id": str(session), "kind": "checkpoint", "session": session, "usage": usage})


def stretches(indexes: Sequence[int]) -> Iterator[JsonValue]:
    """Ascending indexes in short, as first, last and step: 0, 1, 2, 7, 11, 15 are [0, 2, 1] and [7, 15, 4]."""
    place = 0
    while place < len(indexes):
        last = place
        step = indexes[place + 1] - indexes[place] if place + 1 < len(indexes) else 1
        while last + 1 < len(indexes) and indexes[last + 1] - indexes[last] == step:
            last += 1
        # Any two numbers have some step, which says nothing.
        if step > 1 and last == place + 1:
            last, step = place, 1
        yield [indexes[place], indexes[last], step]
        place = last + 1


def sessions(disk: Disk, layout: Layout) -> list[int]:
    """The sessions that have a segment, in order; under a lease those that may have records of its shard."""
    found = _numbers(disk, layout)
    lease = layout.lease
    return found if lease is None else [number for number in found if lease.may_hold(_shard(disk, layout, number))]


def _numbers(disk: Disk, layout: Layout) -> list[int]:
    return sorted(number for name in disk.names(layout.journal) if (number := session_of(name)) is not None)


def _shard(disk: Disk, layout: Layout, number: int) -> Shard | None:
    """The shard of a session; None for one of the whole run, and where its first frame is not there or damaged."""
    heads = {} if layout.lease is None else layout.lease.heads
    if number not in heads:
        head = _head(disk, layout.segment(number))
        if head is None:
            return None  # It may be there at the next look.
        heads[number] = None if head.shard is None else Shard(*head.shard)
    return heads[number]


def heads(disk: Disk, layout: Layout) -> Iterator[SessionHead]:
    """The first frame of each session that has an intact one."""
    for number in sessions(disk, layout):
        if (head := _head(disk, layout.segment(number))) is not None:
            yield head


def _head(disk: Disk, path: Path) -> SessionHead | None:
    first = next(lines(disk.chunks(path)), None)
    found = [] if first is None or not first.is_ended else records_of(first)[0]
    is_head = bool(found) and found[0].get("kind") == "session"
    return convert(check_record(path, found[0]), SessionHead) if is_head else None


class Segment:
    """The journal segment of a new session. It is made with the first frames that are written."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        *,
        started_at: str,
        engines: Mapping[str, str] | None = None,
        run: str | None = None,
        planned: Sequence[int] | None = None,
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._started_at = started_at
        self._engines = engines
        self._run = run
        self._planned = planned
        self._file: OpenFile | None = None
        self.number = 0
        """The number of the session, once its segment is made."""

    def write(self, frames: Sequence[bytes] = ()) -> None:
        """Append frames, durably, after the frame of the session."""
        if self._file is None:
            self._disk.make_directory(self._layout.journal)
            self.number = max(_numbers(self._disk, self._layout), default=0) + 1
            while (file := self._disk.create(self._layout.segment(self.number))) is None:
                self.number += 1
            self._file = file
            lease = self._layout.lease
            shard = None if lease is None else lease.shard
            head = session_frame(
                self.number,
                started_at=self._started_at,
                run=self._run,
                engines=self._engines,
                shard=shard,
                planned=self._planned,
            )
            frames = [head, *frames]
        if frames:
            self._disk.append(self._file, b"".join(frames))
            self._disk.sync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._disk.close(self._file)


def marks(disk: Disk, layout: Layout, *kinds: str) -> Iterator[JsonObject]:
    """Every record except replies, in order; with `kinds` only those."""
    for session in sessions(disk, layout):
        yield from marks_of(disk, layout, session, *kinds)


def marks_of(disk: Disk, layout: Layout, session: int, *kinds: str) -> Iterator[JsonObject]:
    """The `marks` of one session."""
    looked_for = re.compile(rf'{_ID}"(?:{"|".join(kinds)})",'.encode()) if kinds else MARK
    path = layout.segment(session)
    for record in _records(path, lines_with(looked_for, disk.chunks(path))):
        if record["kind"] in kinds or (not kinds and record["kind"] != "reply"):
            yield record


class _Record(msgspec.Struct):
    """What every record has."""

    id: str
    kind: str


class _Numbered(_Record):
    n: int


class SessionHead(_Record):
    """The first frame of a session, as far as readers of a part look at it."""

    version: int
    shard: tuple[int, int] | None = None
    planned: Sequence[tuple[int, int, int]] = ()


def done_row(line: Line, kind: type[RecordedRow] = RecordedRow) -> DoneRow | None:
    """What a line says that is one intact `done` frame; None for any other line. Nothing is parsed."""
    match = _DONE.match(line.data, CHECKSUM_CHARS)
    if match is None or not line.data.startswith(_ROW, match.end()) or not is_intact(line.data):
        return None
    # No key of the frame comes after the row.
    return DoneRow(id_of(match), line.data[match.end() + len(_ROW) : -1], kind)


def done_rows(disk: Disk, layout: Layout, session: int) -> Iterator[DoneRow]:
    """Each `done` record of a session."""
    path = layout.segment(session)
    for line in lines_with(_DONE, disk.chunks(path)):
        if (found := done_row(line)) is not None:
            yield found
        else:
            yield from (
                DoneRow(str(record["id"]), encode_json(entry(record, "row", dict)))
                for record in _checked_records(path, line)
                if record["kind"] == "done"
            )


def replies_from(path: Path, chunks: Iterable[bytes]) -> Iterator[RecordedReply]:
    """The replies in a part of a segment, without their tokens, to be counted."""
    for record in _records(path, lines_with(REPLY, chunks)):
        if record["kind"] == "reply":
            try:
                yield recorded_from_json(record, has_trace=False)
            except ValueError as fault:
                raise unreadable(path, record, fault) from fault


def replies(disk: Disk, layout: Layout, wanted: Callable[[str], bool]) -> dict[str, list[RecordedReply]]:
    """The replies to continue from, for each `wanted` task that has any."""
    return _replies(disk, layout, wanted, lambda _task_id, _replies: None)


def replies_of_attempts(disk: Disk, layout: Layout, wanted: Container[str]) -> dict[str, list[list[RecordedReply]]]:
    """The replies of each retried attempt, in their order, for each `wanted` task."""
    found: dict[str, list[list[RecordedReply]]] = {}
    _replies(disk, layout, wanted.__contains__, lambda task_id, had: found.setdefault(task_id, []).append(had))
    return found


def _replies(
    disk: Disk,
    layout: Layout,
    wanted: Callable[[str], bool],
    on_retry: Callable[[str, list[RecordedReply]], None],
) -> dict[str, list[RecordedReply]]:
    found: dict[str, list[RecordedReply]] = {}
    for path in _segments(disk, layout):
        mine = lines_with(_OF_TASK, disk.chunks(path), lambda match: match[2] == b"retry" or wanted(id_of(match)))
        for record in _records(path, mine):
            task_id = entry(record, "id", str)
            if record["kind"] not in {"reply", "retry"} or not wanted(task_id):
                continue
            if record["kind"] == "retry":
                on_retry(task_id, found.pop(task_id, []))
                continue
            known = found.setdefault(task_id, [])
            n = entry(record, "n", int)
            if n <= len(known):
                del known[n:]
                known.append(as_reply(path, record, known))
    return found


def is_blank(disk: Disk, layout: Layout) -> bool:
    """Whether the journal is about sessions only: no frame, intact or damaged, is about a conversation."""
    for path in _segments(disk, layout):
        for line in lines(disk.chunks(path)):
            found, is_damaged = records_of(line) if line.is_ended else ((), False)
            if is_damaged or any(check_record(path, record)["kind"] not in _OF_SESSIONS for record in found):
                return False
    return True


def replied(disk: Disk, layout: Layout) -> set[str]:
    """The tasks that have a recorded reply. Only ids are read, so a damaged frame may count too."""
    found: set[str] = set()

    def note(match: re.Match[bytes]) -> bool:
        found.add(id_of(match))
        return False

    for path in _segments(disk, layout):
        for _ in lines_with(REPLY, disk.chunks(path), note):
            pass
    return found


def copy_sessions(disk: Disk, source: Layout, target: Layout, *, run: str) -> int:
    """Copy the sessions of a run behind those of another one; how many damaged lines stay behind.

    Their first frames name the `run` they come from. Everything else is as it is there, with the number there too.
    """
    damaged = 0

    def copied(session: int) -> Iterator[bytes]:
        nonlocal damaged
        for line in lines(disk.chunks(source.segment(session))):
            if not line.is_ended:
                continue
            if is_intact(line.data) and not _SESSION.match(line.data, CHECKSUM_CHARS):
                yield line.data + b"\n"
                continue
            records, is_damaged = records_of(line)
            damaged += is_damaged
            for record in records:
                yield encode_frame({"run": run, **record} if record["kind"] == "session" else record)

    first = max(_numbers(disk, target), default=0) + 1
    for number, session in enumerate(sessions(disk, source), start=first):
        disk.write_atomic(target.segment(number), copied(session))
    return damaged


def _segments(disk: Disk, layout: Layout) -> Iterator[Path]:
    return (layout.segment(session) for session in sessions(disk, layout))


def _records(path: Path, found: Iterable[Line]) -> Iterator[JsonObject]:
    """The intact records of some lines of one segment."""
    for line in found:
        yield from _checked_records(path, line)


def _checked_records(path: Path, line: Line) -> Iterator[JsonObject]:
    return (check_record(path, record) for record in records_of(line)[0])


def id_of(match: re.Match[bytes]) -> str:
    """The id at the beginning of a frame, before its checksum is compared."""
    text = match[1].decode("ascii", "replace")
    with suppress(ValueError):
        return text if "\\" not in text else str(json.loads(f'"{text}"'))
    return text


def check_record(path: Path, record: JsonObject) -> JsonObject:
    """The record. Raises RunDirectoryError for a format of another version, and for one without id, kind or number."""
    kind = record.get("kind")
    try:
        convert(record, _Numbered if kind == "reply" else SessionHead if kind == "session" else _Record)
    except ValueError as fault:
        raise unreadable(path, record, fault) from fault
    if kind == "session" and (found := record["version"]) != JOURNAL_FORMAT:
        raise RunDirectoryError(f"{path}: {foreign_format('version', found, JOURNAL_FORMAT)}")
    return record


def unreadable(path: Path, record: JsonObject | DoneRow, fault: ValueError) -> RunDirectoryError:
    """The error for a record of another form, whose checksum is right: no damage, but the work of another program."""
    kind, task_id = ("done", record.task_id) if isinstance(record, DoneRow) else (record.get("kind"), record.get("id"))
    return RunDirectoryError(
        f"{path} holds a record ({kind!s:.20}) of {task_id!s:.80} that cannot be read: {fault}; put back the file that "
        "the run wrote, or remove that line: what it held is restored or played again"
    )


def as_reply(path: Path, record: JsonObject, earlier: Sequence[RecordedReply] = ()) -> RecordedReply:
    """The reply of a record. Raises RunDirectoryError."""
    try:
        return recorded_from_json(record, earlier=earlier)
    except ValueError as fault:
        raise unreadable(path, record, fault) from fault
