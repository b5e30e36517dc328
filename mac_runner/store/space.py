"""The room that is left on the disk, and the room that a run needs.

A run that will not fit is refused before its first request rather than stopped after hours. The size of a conversation
is learned from those that have ended; before the first one, it is that of a short one of its environment. The estimate
errs on the small side, so a run that would fit is not refused. One that outgrows it stops when the disk is full, with
every acknowledged result in place, and goes on once there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

from mac_runner.errors import StoreError
from mac_runner.store.disk import Disk, is_full
from mac_runner.store.layout import Layout

TRANSCRIPT_BYTES_MIN: Final = 1_000
"""What the smallest transcript takes."""
JOURNAL_SHARE: Final = 0.85
"""What journal, events and index take for each byte of a transcript."""
SAMPLE_CONVERSATIONS: Final = 100
"""How many transcripts the estimate is learned from."""

_UNITS = ("kB", "MB", "GB", "TB")


class Need(NamedTuple):
    """How many conversations are left, and the bytes of a transcript: learned, or at least."""

    conversations: int
    transcript_bytes: int
    is_learned: bool = False

    def size_bytes(self, block_bytes: int = 1) -> int:
        """The bytes they take: transcripts in whole blocks, and journal, events and index beside them."""
        blocks = -(-self.transcript_bytes // block_bytes)
        beside = int(self.transcript_bytes * JOURNAL_SHARE)
        return self.conversations * (blocks * block_bytes + beside)

    def words(self, block_bytes: int = 1) -> str:
        manner = "about" if self.is_learned else "at least"
        return f"the {self.conversations} conversations left need {manner} {size_text(self.size_bytes(block_bytes))}"

    @staticmethod
    def of_all(needs: Sequence[Need]) -> Need:
        conversations = sum(need.conversations for need in needs)
        total = sum(need.conversations * need.transcript_bytes for need in needs)
        return Need(conversations, total // max(1, conversations), all(need.is_learned for need in needs))


def need_of(sizes: Iterable[int], conversations: int, transcript_bytes_min: int) -> Need:
    """What so many conversations take, by the `sizes` of the transcripts so far, or by the smallest possible one."""
    sample = list(islice(sizes, SAMPLE_CONVERSATIONS))
    if sample:
        return Need(conversations, sum(sample) // len(sample), is_learned=True)
    return Need(conversations, max(TRANSCRIPT_BYTES_MIN, transcript_bytes_min))


def check_room(disk: Disk, layout: Layout, need: Need) -> None:
    """Raises StoreError saying how much room is missing when what is left does not fit."""
    free = disk.free(layout.root)
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
            f"are free: {need.conversations - free.files} are missing; {advice}"
        )


@contextmanager
def full_disk_named(need: Callable[[], Need]) -> Iterator[None]:
    """Adds what the conversations left will take to the error of a full disk."""
    try:
        yield
    except StoreError as failure:
        if not is_full(failure):
            raise
        raise StoreError(f"{failure}; {need().words()}") from failure.__cause__


def size_text(size_bytes: int) -> str:
    """A number of bytes with a unit, such as `1.5 GB`."""
    size, unit = size_bytes / 1000, _UNITS[0]
    for larger in _UNITS[1:]:
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"
