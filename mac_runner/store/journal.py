"""The journal: everything a run may not lose, in the order it happened.

Each session appends to a segment of its own and never touches another one, so a torn tail stays where the kill left
it, is known as such by its missing newline, and two runners that were let in by a broken lock cannot damage each other.

Records, by `kind`:

- `session`: number, start and format version; the first of each segment. `run` names the run directory that a merged
  session comes from.
- `reply`: the `n`-th reply of a task. A lost frame ends what can be used of its task in that session; a later session
  that went on from there writes the numbers again, and what it wrote stands.
- `death`: an engine died while it worked on a turn of a task. They count until the task is done.
- `done`: a conversation whose transcript is durable, with its index row. The last one of a task stands.
- `retry`: a failed conversation is to be tried again, with the index row of the attempt that failed. It is done no more
  until the next `done`, and its replies are those recorded behind this.
- `checkpoint`: what the session has used up so far. The last one of a session stands.

Keys are sorted, so every frame begins with `id` and `kind`, and a reader looks for the beginnings of the frames it
wants: nearly all of a journal is replies of conversations that are done, and those are passed over in bulk. Whatever is
looked at has its checksum compared. Reading streams: memory follows what the caller keeps.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import RunDirectoryError
from mac_runner.store.disk import Disk
from mac_runner.store.frames import Damage, Line, encode_frame, is_intact, lines, lines_with, records_of
from mac_runner.store.layout import Layout, session_of
from mac_runner.store.records import entry, recorded_from_json, recorded_json
from mac_runner.types import JsonObject, RecordedReply

JOURNAL_FORMAT = 2
"""Format 1 has `cached` of the token counts outside `timing`. Each segment has its own."""

_READABLE = frozenset({1, JOURNAL_FORMAT})

_OF_SESSIONS = frozenset({"session", "checkpoint"})

# Possessive, for there is one way only to read an id: a search is over a frame in a third of the time.
_ID = r""" \{"id":"([^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+)","kind":"""
_MARK = re.compile(rf'{_ID}"(?!reply")([a-z]+)",'.encode())
_OF_TASK = re.compile(rf'{_ID}"(reply|retry)",'.encode())
_REPLY = re.compile(rf'{_ID}"reply",'.encode())


class Head(NamedTuple):
    """How a frame begins: whose it is, and of what kind."""

    id: str
    kind: str


def session_frame(session: int, *, started_at: str, run: str | None = None) -> bytes:
    """The first frame of a segment; `run` names the run directory that a merged session comes from."""
    frame: JsonObject = {
        "id": str(session),
        "kind": "session",
        "session": session,
        "started_at": started_at,
        "version": JOURNAL_FORMAT,
    }
    return encode_frame(frame if run is None else {**frame, "run": run})


def reply_frame(task_id: str, n: int, recorded: RecordedReply) -> bytes:
    """The frame of the `n`-th reply of a task."""
    return encode_frame({"id": task_id, "kind": "reply", "n": n, **recorded_json(recorded)})


def death_frame(task_id: str, turn_key: str) -> bytes:
    """The frame of a death of an engine over one turn."""
    return encode_frame({"id": task_id, "kind": "death", "turn": turn_key})


def done_frame(row: JsonObject) -> bytes:
    """The frame that makes a conversation count as done."""
    return encode_frame({"id": entry(row, "task_id", str), "kind": "done", "row": row})


def retry_frame(row: JsonObject) -> bytes:
    """The frame that makes a conversation count as not done yet; `row` is that of the attempt that failed."""
    return encode_frame({"id": entry(row, "task_id", str), "kind": "retry", "row": row})


def checkpoint_frame(session: int, *, elapsed_s: float, accounting: JsonObject) -> bytes:
    """The frame of what a session has used up so far: all its time, and of that `played_s`, none before it begins."""
    usage: JsonObject = {"played_s": 0.0, **accounting, "wall_s": round(elapsed_s, 6)}
    return encode_frame({"id": str(session), "kind": "checkpoint", "session": session, "usage": usage})


def sessions(disk: Disk, layout: Layout) -> list[int]:
    """The sessions that have a segment, in order, as far as the layout goes."""
    found = sorted(number for name in disk.names(layout.journal) if (number := session_of(name)) is not None)
    return found[: layout.sessions]


def marks(disk: Disk, layout: Layout, *kinds: str) -> Iterator[JsonObject]:
    """Every record but the replies, in order; or only those of some kinds, the others passed over."""
    for session in sessions(disk, layout):
        yield from marks_of(disk, layout, session, *kinds)


def marks_of(disk: Disk, layout: Layout, session: int, *kinds: str) -> Iterator[JsonObject]:
    """The same of one session."""
    looked_for = re.compile(rf'{_ID}"(?:{"|".join(kinds)})",'.encode()) if kinds else _MARK
    path = layout.segment(session)
    for record in _records(path, lines_with(looked_for, disk.chunks(path))):
        if record["kind"] in kinds or (not kinds and record["kind"] != "reply"):
            yield record


def heads(disk: Disk, layout: Layout) -> Iterator[Head]:
    """What `marks` gives, less everything but id and kind: for that an intact frame is not taken apart."""
    for path in _segments(disk, layout):
        for line in lines_with(_MARK, disk.chunks(path)):
            match = _MARK.search(line.data)
            if match and match[2] != b"session" and is_intact(line.data):
                yield Head(_id(match), match[2].decode())
            else:
                found = (Head(str(record["id"]), str(record["kind"])) for record in _records(path, [line]))
                yield from (head for head in found if head.kind != "reply")


def rows(disk: Disk, layout: Layout) -> Iterator[JsonObject]:
    """The index rows of all conversations that are done, one for each, in the order they were done."""
    left = Counter[str]()
    retried: dict[str, int] = {}
    for head in heads(disk, layout):
        if head.kind == "done":
            left[head.id] += 1
        elif head.kind == "retry":
            retried[head.id] = left[head.id]
    open_again = {task_id for task_id, count in retried.items() if count == left[task_id]}
    for record in marks(disk, layout, "done"):
        task_id = str(record["id"])
        # A frame more than were counted was appended by a run under way since then; it is left for the next reading.
        if left[task_id]:
            left[task_id] -= 1
            if not left[task_id] and task_id not in open_again:
                yield entry(record, "row", dict)


def attempts(disk: Disk, layout: Layout) -> dict[str, list[JsonObject]]:
    """The rows of the attempts that failed and were tried again, for each task that has any, in their order."""
    found: dict[str, list[JsonObject]] = {}
    # Made before the first frame of this kind is written, so most runs need not be searched for one.
    if not disk.exists(layout.attempts):
        return found
    for record in marks(disk, layout, "retry"):
        found.setdefault(entry(record, "id", str), []).append(entry(record, "row", dict))
    return found


def replies(disk: Disk, layout: Layout, wanted: Callable[[str], bool]) -> dict[str, list[RecordedReply]]:
    """What can be gone on from, for each task that is `wanted`."""
    return _replies(disk, layout, wanted, lambda _task_id, _replies: None)


def replies_of_attempts(disk: Disk, layout: Layout, wanted: Container[str]) -> dict[str, list[list[RecordedReply]]]:
    """What each attempt that failed and was tried again had, in their order, for each task that is `wanted`."""
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
        mine = lines_with(_OF_TASK, disk.chunks(path), lambda match: match[2] == b"retry" or wanted(_id(match)))
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
                known.append(_reply(path, record))
    return found


def is_blank(disk: Disk, layout: Layout) -> bool:
    """Whether the journal tells of sessions alone: none of its frames, intact or damaged, is of a conversation."""
    for path in _segments(disk, layout):
        for line in lines(disk.chunks(path)):
            found, is_damaged = records_of(line) if line.is_ended else ((), False)
            if is_damaged or any(_checked(path, record)["kind"] not in _OF_SESSIONS for record in found):
                return False
    return True


def ended_in(disk: Disk, layout: Layout, session: int) -> set[str]:
    """The tasks that a session, or one behind it, has ended."""
    behind = (number for number in sessions(disk, layout) if number >= session)
    return {str(record["id"]) for number in behind for record in marks_of(disk, layout, number, "done")}


def begun(disk: Disk, layout: Layout) -> set[str]:
    """The tasks that have a reply recorded or are done. A damaged frame may count as well."""
    return replied(disk, layout) | {entry(row, "task_id", str) for row in rows(disk, layout)}


def replied(disk: Disk, layout: Layout) -> set[str]:
    """The tasks that have a reply recorded. Only ids are read, so a damaged frame may count as well."""
    found: set[str] = set()

    def note(match: re.Match[bytes]) -> bool:
        found.add(_id(match))
        return False

    for path in _segments(disk, layout):
        for _ in lines_with(_REPLY, disk.chunks(path), note):
            pass
    return found


def transplanted(
    disk: Disk, layout: Layout, session: int, *, to: int, run: str, on_damage: Callable[[], None]
) -> Iterator[bytes]:
    """The frames of one session as those of session `to` of another run directory.

    Damage stays behind, and `on_damage` is called for each damaged line. Replies are handed on as they stand, without
    being parsed: they say nothing of the session.
    """
    for line in lines(disk.chunks(layout.segment(session))):
        if not line.is_ended:
            continue
        if _REPLY.search(line.data) and is_intact(line.data):
            yield line.data + b"\n"
            continue
        records, is_damaged = records_of(line)
        if is_damaged:
            on_damage()
        for record in records:
            moved: JsonObject = {**record}
            if record["kind"] in {"session", "checkpoint"}:
                moved |= {"id": str(to), "session": to}
            if record["kind"] == "session":
                moved |= {"run": record.get("run", run)}
            yield encode_frame(moved)


def deaths(disk: Disk, layout: Layout) -> dict[str, Counter[str]]:
    """How often an engine died on each turn, of the tasks that are not done."""
    found: dict[str, Counter[str]] = {}
    # Deaths are rare, and without any the endings tell nothing.
    has_any = next(marks(disk, layout, "death"), None) is not None
    for record in marks(disk, layout, "death", "done") if has_any else ():
        task_id = str(record["id"])
        if record["kind"] == "done":
            found.pop(task_id, None)
        else:
            found.setdefault(task_id, Counter())[entry(record, "turn", str)] += 1
    return found


def damage(disk: Disk, layout: Layout) -> Iterator[tuple[Path, Damage]]:
    """Every damaged line of the journal; a torn tail is none."""
    for path in _segments(disk, layout):
        for line in lines(disk.chunks(path)):
            if line.is_ended and records_of(line)[1]:
                yield path, Damage(line.offset, line.size_bytes)


def _segments(disk: Disk, layout: Layout) -> Iterator[Path]:
    return (layout.segment(session) for session in sessions(disk, layout))


def _records(path: Path, found: Iterable[Line]) -> Iterator[JsonObject]:
    """The intact records of some lines of one segment."""
    for line in found:
        for record in records_of(line)[0]:
            yield _checked(path, record)


def _id(match: re.Match[bytes]) -> str:
    """The id that a frame begins with, whose checksum nobody has compared yet."""
    text = match[1].decode("ascii", "replace")
    with suppress(ValueError):
        return text if "\\" not in text else str(json.loads(f'"{text}"'))
    return text


def _checked(path: Path, record: JsonObject) -> JsonObject:
    if record.get("kind") == "session" and record.get("version") not in _READABLE:
        raise RunDirectoryError(
            f"{path} is of format {record.get('version')!r}; this version reads 1 and {JOURNAL_FORMAT}: "
            "go on with the version that wrote it, or start anew in another directory with --out"
        )
    if not {"id", "kind"} <= record.keys():
        raise RunDirectoryError(f"{path} holds a record without id and kind: it is no journal of this program")
    return record


def _reply(path: Path, record: JsonObject) -> RecordedReply:
    try:
        return recorded_from_json(record)
    except ValueError as fault:
        raise RunDirectoryError(f"{path} holds a reply of task {record['id']} that cannot be read: {fault}") from fault
