"""Whether the disk has room for what is left to do.

A run that will not fit is refused before its first request rather than stopped after hours. What a conversation takes
is learned from those that have ended; before the first one it is what a short one of its environment takes, with short
replies. The estimate errs on the small side, so a run that would fit is not refused; one that outgrows it stops when
the disk is full, with everything acknowledged in its place, and goes on once there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from mac_runner import limits
from mac_runner.errors import StoreError
from mac_runner.store import journal
from mac_runner.store.disk import Disk, is_full
from mac_runner.store.layout import Layout
from mac_runner.store.records import entry

_UNITS = ("kB", "MB", "GB", "TB")


class Need(NamedTuple):
    """What is left to do, and what a transcript of it takes: as those so far tell, or at least."""

    conversations: int
    transcript_bytes: int
    is_learned: bool = False

    def size_bytes(self, block_bytes: int = 1) -> int:
        """What they take on the disk: transcripts in whole blocks, and journal, events and index beside them."""
        blocks = -(-self.transcript_bytes // block_bytes)
        beside = int(self.transcript_bytes * limits.SPACE_JOURNAL_SHARE)
        return self.conversations * (blocks * block_bytes + beside)

    def words(self, block_bytes: int = 1) -> str:
        """What they take, for people."""
        manner = "about" if self.is_learned else "at least"
        return f"the {self.conversations} conversations left need {manner} {size_text(self.size_bytes(block_bytes))}"

    @staticmethod
    def of_all(needs: Sequence[Need]) -> Need:
        """What several of them take together."""
        conversations = sum(need.conversations for need in needs)
        total = sum(need.conversations * need.transcript_bytes for need in needs)
        return Need(conversations, total // max(1, conversations), all(need.is_learned for need in needs))


def need_of(disk: Disk, layout: Layout, conversations: int, transcript_bytes_min: int) -> Need:
    """What so many conversations take: as a sample of those so far tells, or else what the least transcript takes."""
    done = (entry(mark, "row", dict) for mark in journal.marks(disk, layout, "done"))
    sizes = [entry(row, "size_bytes", int) for row in islice(done, limits.SPACE_SAMPLE_CONVERSATIONS)]
    if sizes:
        return Need(conversations, sum(sizes) // len(sizes), is_learned=True)
    return Need(conversations, max(limits.SPACE_TRANSCRIPT_BYTES_MIN, transcript_bytes_min))


def check_room(disk: Disk, layout: Layout, need: Need) -> None:
    """Raises StoreError, saying how much is missing, when what is left does not fit."""
    free = disk.free(layout.directory)
    needed = need.size_bytes(free.block_bytes)
    advice = f"free some in {layout.directory}, or play fewer with --limit N, then run the same command again"
    if free.size_bytes < needed:
        raise StoreError(
            f"{need.words(free.block_bytes)} ({needed} bytes) on the disk, and {size_text(free.size_bytes)} are free: "
            f"{size_text(needed - free.size_bytes)} are missing; {advice}"
        )
    if free.files is not None and free.files < need.conversations:
        raise StoreError(
            f"the {need.conversations} conversations left need as many files (inodes) on the disk, and {free.files} "
            f"are free: "
            f"{need.conversations - free.files} are missing; {advice}"
        )


@contextmanager
def telling_the_need(need: Callable[[], Need]) -> Iterator[None]:
    """A disk that is full inside the block is told with what the conversations left will take."""
    try:
        yield
    except StoreError as failure:
        if not is_full(failure):
            raise
        raise StoreError(f"{failure}; {need().words()}") from failure.__cause__


def size_text(size_bytes: int) -> str:
    """A number of bytes as people say it."""
    size, unit = size_bytes / 1000, _UNITS[0]
    for larger in _UNITS[1:]:
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"
