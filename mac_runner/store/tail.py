"""A journal that is read on while a run writes it: what ended, and where the replies of open conversations are.

A reader that looks at a run again and again must not read its journal each time. A `JournalTail` keeps how far it has
read in each segment. It folds what it reads into a `RunState`, and keeps the places of the replies of conversations
that have not ended, so one of them can be read without a search. No reply is parsed before it is asked for. Not for two
threads at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.errors import StoreError
from mac_runner.files import chunks_from
from mac_runner.store import journal
from mac_runner.store.disk import READ_CHUNK_BYTES, Disk
from mac_runner.store.layout import Layout
from mac_runner.store.records import Line, blocks, encode_json, entry, matched_lines, records_of
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.store.run_state import RunState
from mac_runner.types import JsonObject, RecordedReply

_FRAME: Final = re.compile(rb""" \{"id":"([^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+)","kind":"([a-z]+)",""")


class Place(NamedTuple):
    """Where a frame is."""

    session: int
    offset: int
    size_bytes: int


class News(NamedTuple):
    """What was new in a journal."""

    replied: frozenset[str]
    """The tasks that have a new reply."""
    is_anew: bool = False
    """Whether rows that were given out before count no more: `RunState.rows` has those that do."""
    is_whole: bool = True
    """Whether the journal was read to its end."""


def never() -> bool:
    """Read to the end."""
    return False


class _Segment:
    """How far one segment was read."""

    def __init__(self, session: int, inode: int) -> None:
        self.session = session
        self.inode = inode
        self.offset = 0


class JournalTail:
    """The journal of a run directory, as far as it was read; its index rows are read as `kind` where they fit."""

    def __init__(self, disk: Disk, layout: Layout, kind: type[RecordedRow] = RecordedRow) -> None:
        self._disk = disk
        self.layout = layout
        self._kind = kind
        self.state = RunState()
        self.replied: set[str] = set()
        """The tasks that have a reply and have not ended."""
        self._places: dict[str, list[Place]] = {}
        self._segments: dict[int, _Segment] = {}

    def read_on(self, on_row: Callable[[DoneRow], None], is_over: Callable[[], bool] = never) -> News:
        """Read what was appended since the last call; `on_row` takes the index row of each conversation that ended.

        `is_over` is asked after each block of lines. Where it says so, the next call reads on from there.

        Raises RunDirectoryError or StoreError where the journal cannot be read.
        """
        found = {session: self._stat(session) for session in journal.sessions(self._disk, self.layout)}
        is_replaced = self._is_replaced(found)
        if is_replaced:
            self._forget()
        touched: set[str] = set()
        is_anew = is_replaced
        for session, stat in found.items():
            segment = self._segments.setdefault(session, _Segment(session, stat.st_ino))
            self.state.begin(session)
            if stat.st_size > segment.offset:
                is_segment_anew, is_ended = self._read(segment, on_row, touched, is_over)
                is_anew |= is_segment_anew
                if not is_ended:
                    return News(frozenset(touched), is_anew, is_whole=False)
        return News(frozenset(touched), is_anew)

    def replies(self, task_id: str) -> list[RecordedReply]:
        """The replies of a conversation that has not ended, as far as the journal was read."""
        found: list[RecordedReply] = []
        for place in self._places.get(task_id, ()):
            record = self._record(place)
            if record is None:
                continue
            n = entry(record, "n", int)
            if n <= len(found):
                del found[n:]
                found.append(journal.as_reply(self.layout.segment(place.session), record, found))
        return found

    def reply_count(self, task_id: str) -> int:
        """How many frames of replies a conversation has that has not ended."""
        return len(self._places.get(task_id, ()))

    # Reading.

    def _read(
        self,
        segment: _Segment,
        on_row: Callable[[DoneRow], None],
        touched: set[str],
        is_over: Callable[[], bool],
    ) -> tuple[bool, bool]:
        """Read a segment; whether rows that were given out count no more, and whether it was read to its end."""
        path, start, is_anew = self.layout.segment(segment.session), segment.offset, False
        for block in blocks(self._chunks(path, start)):
            if not block.is_ended:
                break
            at = start + block.offset
            for match, place, end in matched_lines(_FRAME, block.data):
                if match[2] == b"reply":
                    # A reply is parsed when its conversation is asked for.
                    self._note(journal.id_of(match), Place(segment.session, at + place, end - place), touched)
                    continue
                line = Line(place, end - place, block.data[place:end], True)
                if (found := journal.done_row(line, self._kind)) is not None:
                    is_anew |= self._apply(path, found, at + end, on_row)
                    continue
                for record in records_of(line)[0]:
                    is_anew |= self._apply(path, journal.check_record(path, record), at + end, on_row)
            segment.offset = at + len(block.data) + block.dropped + 1
            if is_over():
                return is_anew, False
        self.state.count_recorded_in(self.state.present, self._disk, path)
        return is_anew, True

    def _chunks(self, path: Path, start: int, size_bytes: int = READ_CHUNK_BYTES) -> Iterator[bytes]:
        try:
            yield from chunks_from(path, start, size_bytes)
        except OSError as fault:
            raise StoreError(f"cannot read {path}: {fault.strerror or fault}") from fault

    def _note(self, task_id: str, place: Place, touched: set[str]) -> None:
        touched.add(task_id)
        if task_id not in self.state.endings:
            self.replied.add(task_id)
            self._places.setdefault(task_id, []).append(place)

    def _apply(self, path: Path, record: JsonObject | DoneRow, end: int, on_row: Callable[[DoneRow], None]) -> bool:
        """Fold a record; whether rows that were given out count no more."""
        if not isinstance(record, DoneRow) and record["kind"] == "done":
            record = DoneRow(str(record["id"]), encode_json(record.get("row")))
        task_id = record.task_id if isinstance(record, DoneRow) else str(record["id"])
        had = task_id in self.state.endings
        try:
            self.state.apply(record, end)
        except ValueError as fault:
            raise journal.unreadable(path, record, fault) from fault
        if isinstance(record, DoneRow):
            on_row(record)
        elif record["kind"] != "retry":
            return False
        self.replied.discard(task_id)
        self._places.pop(task_id, None)
        return had

    def _record(self, place: Place) -> JsonObject | None:
        """The reply at a place; None where the frame is damaged."""
        path = self.layout.segment(place.session)
        data = b"".join(islice(self._chunks(path, place.offset, place.size_bytes), 1))
        found = records_of(Line(place.offset, len(data), data, True))[0]
        return next((journal.check_record(path, record) for record in found if record.get("kind") == "reply"), None)

    # Replacement.

    def _stat(self, session: int) -> os.stat_result:
        path = self.layout.segment(session)
        try:
            return path.stat()
        except OSError as fault:
            raise StoreError(f"cannot read {path}: {fault.strerror or fault}") from fault

    def _is_replaced(self, found: dict[int, os.stat_result]) -> bool:
        """Whether a segment that was read is gone, is another file or is shorter, or a new one comes before it."""
        latest = max(self._segments, default=0)
        return any(
            segment.session not in found
            or found[segment.session].st_ino != segment.inode
            or found[segment.session].st_size < segment.offset
            for segment in self._segments.values()
        ) or any(session < latest for session in found.keys() - self._segments.keys())

    def _forget(self) -> None:
        self.state = RunState()
        self.replied.clear()
        self._places.clear()
        self._segments.clear()
