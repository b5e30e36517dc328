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
from typing import Any, Final, TypeAlias, cast

import msgspec

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store.disk import Disk, OpenFile
from mac_runner.store.layout import Layout, session_of
from mac_runner.store.records import (
    CHECKSUM_CHARS,
    Line,
    Recorded,
    encode_frame,
    encode_json,
    entry,
    foreign_format,
    is_intact,
    lines,
    lines_with,
    recorded_json,
    records_of,
    row_id,
)
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.store.traces import TraceLog
from mac_runner.structs import convert, decode
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply

JOURNAL_FORMAT = 3
"""Each segment has its own."""

# No key of a frame may sort before "id", or before "kind". Possessive, because an id can be read in one way only: a
# search takes a third of the time.
_ID = r""" \{"id":"([^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+)","kind":"""
MARK = re.compile(rf'{_ID}"(?!reply")([a-z]+)",'.encode())
FRAME: Final = re.compile(rf'{_ID}"([a-z]+)",'.encode())
START: Final = b' {"id":"'
"""How a frame begins after its checksum. The text occurs nowhere else."""
_OF_TASK = re.compile(rf'{_ID}"(reply|retry)",'.encode())
REPLY = re.compile(rf'{_ID}"reply",'.encode())
IN_REPLIES: Final = b'","kind":"reply",'
"""What each frame of a reply has, to count them where they are skipped."""
_SESSION = re.compile(rf'{_ID}"session",'.encode())
_DONE = re.compile(rf'{_ID}"done",'.encode())
_ROW = b'"row":'


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """A record of the journal. `id` is a task, or what else the record is about."""

    id: str


class SessionFrame(Frame, frozen=True, kw_only=True, tag="session"):
    """The first one of a segment.

    `run` is the run directory of a merged session, `shard` what a worker claimed. `planned` are the `stretches` of the
    tasks of a session of a part: the manifest is that of the whole. With `served_by` its engines are accounted for
    elsewhere, as those of a combination are in its grid: their names there, by model.
    """

    session: int
    version: int
    started_at: str
    run: str | None = None
    served_by: dict[str, str] | None = None
    shard: Shard | None = None
    planned: list[tuple[int, int, int]] | None = None


class ReplyFrame(Recorded, frozen=True, kw_only=True, tag_field="kind", tag="reply"):
    """The `n`-th reply of a task."""

    id: str
    n: int


class PolicyFrame(Frame, frozen=True, kw_only=True, tag="policy"):
    """The weights that a model has from here on."""

    version: int
    sha256: str | None
    path: str | None


class DeathFrame(Frame, frozen=True, kw_only=True, tag="death"):
    """An engine died while it worked on a turn."""

    turn: str


class DoneFrame(Frame, frozen=True, kw_only=True, tag="done"):
    """A conversation is done. Readers take it as a `DoneRow`."""

    row: dict[str, Any]


class RetryFrame(Frame, frozen=True, kw_only=True, tag="retry"):
    """A failed conversation is open again; `row` is that of the failed attempt."""

    row: dict[str, Any]


class CheckpointFrame(Frame, frozen=True, kw_only=True, tag="checkpoint"):
    """What a session has used so far."""

    session: int
    usage: dict[str, Any]


Entry: TypeAlias = DoneRow | SessionFrame | ReplyFrame | PolicyFrame | DeathFrame | RetryFrame | CheckpointFrame
"""What a reader takes of a line."""
_Frames: TypeAlias = SessionFrame | ReplyFrame | PolicyFrame | DeathFrame | DoneFrame | RetryFrame | CheckpointFrame


def _encoded(frame: Frame) -> bytes:
    return encode_frame(msgspec.to_builtins(frame))


def session_frame(
    session: int,
    *,
    started_at: str,
    run: str | None = None,
    engines: Mapping[str, str] | None = None,
    shard: Shard | None = None,
    planned: Sequence[int] | None = None,
) -> bytes:
    """The first frame of a segment; `planned` are the indexes of the tasks of a session of a part."""
    return _encoded(
        SessionFrame(
            id=str(session),
            session=session,
            version=JOURNAL_FORMAT,
            started_at=started_at,
            run=run,
            served_by=None if engines is None else dict(engines),
            shard=shard,
            planned=None if planned is None else [*stretches(planned)],
        )
    )


def reply_frame(task_id: str, n: int, recorded: RecordedReply, log: TraceLog | None = None) -> bytes:
    """The frame of the `n`-th reply of a task; `log` has the traces of its earlier replies."""
    found = recorded_json(recorded)
    if (trace := (TraceLog() if log is None else log).add(n, recorded)) is not None:
        found["reply"] = {**entry(found, "reply", dict), "trace": trace}
    # Every reply passes here, so no struct is made of it.
    return encode_frame({"id": task_id, "kind": "reply", "n": n, **found})


def policy_frame(model: str, policy: PolicyVersion) -> bytes:
    """The frame of the weights that a model has from here on."""
    return _encoded(PolicyFrame(id=model, **policy._asdict()))


def death_frame(task_id: str, turn_key: str) -> bytes:
    """The frame of a death of an engine over one turn."""
    return _encoded(DeathFrame(id=task_id, turn=turn_key))


def done_frame(row: JsonObject) -> bytes:
    """The frame that makes a conversation done."""
    return encode_frame({"id": row_id(row), "kind": "done", "row": row})


def retry_frame(row: JsonObject) -> bytes:
    """The frame that opens a failed conversation again; `row` is that of the failed attempt."""
    return _encoded(RetryFrame(id=row_id(row), row=row))


def checkpoint_frame(session: int, *, elapsed_s: float, accounting: JsonObject) -> bytes:
    """The frame of what a session has used so far: `wall_s` in all, of that `played_s` (0 by default).

    A `wall_s` of the accounting is that of other processes, and is added. What was recorded later counts besides
    (`run_state.counted`).
    """
    others_s = accounting.get("wall_s")
    wall_s = elapsed_s + (others_s if isinstance(others_s, int | float) else 0.0)
    usage: JsonObject = {"played_s": 0.0, **accounting, "wall_s": round(wall_s, 6)}
    return _encoded(CheckpointFrame(id=str(session), session=session, usage=usage))


def stretches(indexes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
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
        yield indexes[place], indexes[last], step
        place = last + 1


def sessions(disk: Disk, layout: Layout) -> list[int]:
    """The sessions that have a segment, in order; under a lease those that may have records of its shard."""
    found = _numbers(disk, layout)
    if (lease := layout.lease) is None:
        return found
    shards = (_shard(disk, layout.segment(number), number, lease.heads) for number in found)
    return [number for number, shard in zip(found, shards, strict=True) if lease.may_hold(shard)]


def _numbers(disk: Disk, layout: Layout) -> list[int]:
    return sorted(number for name in disk.names(layout.journal) if (number := session_of(name)) is not None)


def _shard(disk: Disk, path: Path, number: int, known: dict[int, Shard | None]) -> Shard | None:
    """The shard of a session; None for one of the whole run, and where its first frame is not there or damaged."""
    if number not in known:
        first = next(lines(disk.chunks(path)), None)
        found = None if first is None or not first.is_ended else next(iter(entries(path, first)[0]), None)
        if not isinstance(found, SessionFrame):
            return None  # It may be there at the next look.
        known[number] = found.shard
    return known[number]


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
        if self._file is not None:
            self._disk.close(self._file)


def entries(path: Path, line: Line, kind: type[RecordedRow] = RecordedRow) -> tuple[Iterable[Entry], bool]:
    """What a line says, and whether it is damaged.

    There is one entry where it is intact, whose row is not parsed but as `kind` when it is asked for.
    """
    if (found := _done_row(line, kind) or _reply(line)) is not None:
        return (found,), False
    records, is_damaged = records_of(line)
    return (entry_of(path, record) for record in records), is_damaged


def _done_row(line: Line, kind: type[RecordedRow]) -> DoneRow | None:
    """What a line says that is one intact `done` frame; None for any other line."""
    match = _DONE.match(line.data, CHECKSUM_CHARS)
    if match is None or not line.data.startswith(_ROW, match.end()) or not is_intact(line.data):
        return None
    # No key of the frame comes after the row.
    return DoneRow(id_of(match), line.data[match.end() + len(_ROW) : -1], kind)


def _reply(line: Line) -> ReplyFrame | None:
    """What a line says that is one intact frame of a reply; None for any other line, and for one of another form."""
    if REPLY.match(line.data, CHECKSUM_CHARS) is not None and is_intact(line.data):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # The slower decoder takes half a surrogate pair.
            return decode(line.data[CHECKSUM_CHARS + 1 :], ReplyFrame)
    return None


def done_rows(disk: Disk, layout: Layout, session: int) -> Iterator[DoneRow]:
    return (found for found in _entries(layout.segment(session), disk, _DONE) if isinstance(found, DoneRow))


def _entries(
    path: Path,
    disk: Disk,
    pattern: re.Pattern[bytes],
    wants: Callable[[re.Match[bytes]], bool] = lambda _match: True,
    start: int = 0,
) -> Iterator[Entry]:
    """The entries of the lines of a segment with a match of `pattern` that `wants` accepts."""
    for line in lines_with(pattern, disk.chunks(path, start), wants):
        yield from entries(path, line)[0]


def replies_from(disk: Disk, path: Path, start: int) -> Iterator[ReplyFrame]:
    """The replies of a segment from an offset on, to be counted."""
    return (found for found in _entries(path, disk, REPLY, start=start) if isinstance(found, ReplyFrame))


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
        mine = _entries(path, disk, _OF_TASK, lambda match: match[2] == b"retry" or wanted(id_of(match)))
        for record in mine:
            match record:
                case RetryFrame(id=task_id) if wanted(task_id):
                    on_retry(task_id, found.pop(task_id, []))
                case ReplyFrame(id=task_id) if wanted(task_id):
                    add_reply(path, found.setdefault(task_id, []), record)
    return found


def add_reply(path: Path, known: list[RecordedReply], record: ReplyFrame) -> None:
    """Add a reply to those before it, in place of those that were written again. Raises RunDirectoryError."""
    if record.n <= len(known):
        del known[record.n :]
        try:
            known.append(record.recorded(earlier=known))
        except ValueError as fault:
            raise unreadable(path, "reply", record.id, fault) from fault


def is_blank(disk: Disk, layout: Layout) -> bool:
    """Whether the journal is about sessions only: no frame, intact or damaged, is about a conversation."""
    for path in _segments(disk, layout):
        for line in lines(disk.chunks(path)):
            found, is_damaged = records_of(line) if line.is_ended else ((), False)
            of_sessions = (isinstance(entry_of(path, record), SessionFrame | CheckpointFrame) for record in found)
            if is_damaged or not all(of_sessions):
                return False
    return True


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


def id_of(match: re.Match[bytes]) -> str:
    """The id at the beginning of a frame, before its checksum is compared."""
    text = match[1].decode("ascii", "replace")
    if "\\" in text:
        with suppress(ValueError):
            return str(json.loads(f'"{text}"'))
    return text


def entry_of(path: Path, record: JsonObject) -> Entry:
    """A record as readers take it. Raises RunDirectoryError for another form, and for a format of another version."""
    kind, version = record.get("kind"), record.get("version")
    if kind == "session" and isinstance(version, int) and version != JOURNAL_FORMAT:
        raise RunDirectoryError(f"{path}: {foreign_format('version', version, JOURNAL_FORMAT)}")
    try:
        found: _Frames = convert(record, cast(Any, _Frames))
    except ValueError as fault:
        raise unreadable(path, kind, record.get("id"), fault) from fault
    return DoneRow(found.id, encode_json(found.row)) if isinstance(found, DoneFrame) else found


def unreadable(path: Path, kind: object, task_id: object, fault: ValueError) -> RunDirectoryError:
    """The error for a record of another form, whose checksum is right: no damage, but the work of another program."""
    return RunDirectoryError(
        f"{path} holds a record ({kind!s:.20}) of {task_id!s:.80} that cannot be read: {fault}; put back the file that "
        "the run wrote, or remove that line: what it held is restored or played again"
    )
