"""The journal of a run directory, read to its end or read on while a run writes it.

A reader that looks at a run again and again must not read its journal each time. A `JournalTail` keeps how far it has
read in each segment, and folds what it reads into a `RunState`. Where it keeps replies, it has the places of those of
conversations that have not ended, so one of them can be read without a search. No reply is parsed before it is asked
for. Not for two threads at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.files import Mark, mark_of
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout
from mac_runner.store.records import Line, blocks, matched_lines
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.store.run_state import RunState
from mac_runner.types import RecordedReply

_PLACE: Final = 3
"""A place is the session, the offset and the size of a frame."""


class News(NamedTuple):
    """What was new in a journal."""

    replied: frozenset[str] = frozenset()
    """The tasks that have a new reply, where replies are kept."""
    is_anew: bool = False
    """Whether rows that were given out before count no more: `RunState.rows` has those that do."""
    is_whole: bool = True
    """Whether the journal was read to its end."""


def never() -> bool:
    """Read to the end."""
    return False


def unnoted(_row: DoneRow) -> None:
    """Rows are not needed."""


class JournalTail:
    """The journal of a run directory, as far as it was read."""

    def __init__(self, disk: Disk, layout: Layout, *, with_digests: bool = False, keeps_replies: bool = False) -> None:
        """With `keeps_replies` the replies of open conversations can be asked for."""
        self._disk = disk
        self.layout = layout
        self._with_digests = with_digests
        self._keeps_replies = keeps_replies
        self._forget()

    def _forget(self) -> None:
        self.state = RunState(with_digests=self._with_digests, holds=self.layout.holds)
        self.replied: set[str] = set()
        """The tasks that have a reply and have not ended, where replies are kept."""
        self._places: dict[str, array[int]] = {}
        self._read_to: dict[int, int] = {}
        self._marks: dict[int, Mark | None] = {}

    def read_on(
        self,
        on_row: Callable[[DoneRow], object] = unnoted,
        is_over: Callable[[], bool] = never,
        kind: type[RecordedRow] = RecordedRow,
    ) -> News:
        """Read what was appended since the last call; `on_row` takes the index row of each conversation that ended.

        Rows are read as `kind` where they fit. `is_over` is asked after each block of lines. Where it says so, the next
        call reads on from there. Raises RunDirectoryError or StoreError where the journal cannot be read.
        """
        found = {number: mark_of(self.layout.segment(number)) for number in journal.sessions(self._disk, self.layout)}
        is_anew = self._is_replaced(found)
        if is_anew:
            self._forget()
        touched: set[str] = set()
        for number, mark in found.items():
            self.state.begin(number)
            if mark is not None and mark.size_bytes == self._read_to.get(number, 0):
                continue
            self._marks.setdefault(number, mark)
            for is_replacing in self._read(number, on_row, touched, kind):
                is_anew |= is_replacing
                if is_over():
                    return News(frozenset(touched), is_anew, is_whole=False)
        return News(frozenset(touched), is_anew)

    def replies(self, task_id: str) -> list[RecordedReply]:
        """The replies of a conversation that has not ended, as far as the journal was read."""
        found: list[RecordedReply] = []
        places = self._places.get(task_id, array("Q"))
        for at in range(0, len(places), _PLACE):
            path = self.layout.segment(places[at])
            for record in self._entries_at(*places[at : at + _PLACE]):
                if isinstance(record, journal.ReplyFrame) and record.id == task_id:
                    journal.add_reply(path, found, record)
        return found

    def reply_count(self, task_id: str) -> int:
        """How many frames of replies a conversation has that has not ended."""
        return len(self._places.get(task_id, ())) // _PLACE

    def _entries_at(self, number: int, offset: int, size_bytes: int) -> Iterable[journal.Entry]:
        """What the line at a place says: nothing where it is damaged, several entries where newlines were lost."""
        path = self.layout.segment(number)
        data = b"".join(self._disk.chunks(path, offset, size_bytes))
        return journal.entries(path, Line(offset, len(data), data, True))[0]

    def _read(
        self, number: int, on_row: Callable[[DoneRow], object], touched: set[str], kind: type[RecordedRow]
    ) -> Iterator[bool]:
        """Read a segment; after each block of lines, whether rows that were given out count no more."""
        path, start = self.layout.segment(number), self._read_to.get(number, 0)
        pattern = journal.FRAME if self._keeps_replies else journal.MARK
        self.state.present.is_counted = False
        for block in blocks(self._disk.chunks(path, start)):
            if not block.is_ended:
                break
            at, is_anew, seen = start + block.offset, False, list[bytes]()
            unseen = block.data.count(b"\n") + 1
            for match, place, end in matched_lines(pattern, block.data):
                unseen -= 1
                where = number, at + place, end - place
                if match[2] == b"reply" and block.data.find(journal.START, match.end(), end) < 0:
                    touched.add(self._note(journal.id_of(match), where))
                    continue
                line = Line(place, end - place, block.data[place:end], True)
                seen.append(line.data)
                records, is_damaged = journal.entries(path, line, kind)
                self.state.damaged_lines += is_damaged
                for record in records:
                    if not isinstance(record, journal.ReplyFrame):
                        is_anew |= self._apply(path, record, at + end, on_row)
                    elif self._keeps_replies:
                        touched.add(self._note(record.id, where))
            if unseen and not self._keeps_replies:
                # Replies were skipped. An outcome may have the text of one too, and a line that lost its newline.
                unseen -= block.data.count(journal.IN_REPLIES) - sum(each.count(journal.IN_REPLIES) for each in seen)
            self.state.damaged_lines += max(0, unseen)
            self._read_to[number] = at + len(block.data) + block.dropped + 1
            yield is_anew

    def _note(self, task_id: str, place: tuple[int, int, int]) -> str:
        if task_id not in self.state.endings:
            self.replied.add(task_id)
            self._places.setdefault(task_id, array("Q")).extend(place)
        return task_id

    def _apply(self, path: Path, record: journal.Entry, end: int, on_row: Callable[[DoneRow], object]) -> bool:
        """Fold a record; whether rows that were given out count no more."""
        is_row = isinstance(record, DoneRow)
        task_id = record.task_id if isinstance(record, DoneRow) else record.id
        had = task_id in self.state.endings
        try:
            self.state.apply(record, end)
        except ValueError as fault:
            raise journal.unreadable(path, "done" if is_row else "retry", task_id, fault) from fault
        if isinstance(record, DoneRow):
            on_row(record)
        elif not isinstance(record, journal.RetryFrame):
            return False
        self.replied.discard(task_id)
        self._places.pop(task_id, None)
        return had

    def _is_replaced(self, found: Mapping[int, Mark | None]) -> bool:
        """Whether a segment that was read is gone, is another file or is shorter, or a new one comes before it."""
        latest = max(self._read_to, default=0)
        return any(number < latest for number in found.keys() - self._read_to.keys()) or any(
            number not in found or _is_other(found[number], self._marks[number], read_to)
            for number, read_to in self._read_to.items()
        )


def _is_other(now: Mark | None, before: Mark | None, read_to: int) -> bool:
    return now is not None and before is not None and (now.inode != before.inode or now.size_bytes < read_to)


def read_state(disk: Disk, layout: Layout, *, with_digests: bool = False) -> RunState:
    """The state that the journal of a run directory makes. Raises RunDirectoryError when it cannot be read."""
    tail = JournalTail(disk, layout, with_digests=with_digests)
    tail.read_on()
    return tail.state
