"""The summary of a run for the head of its page: made of the journal, as rarely as it is expensive."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

from mac_runner.clock import Clock
from mac_runner.errors import StoreError
from mac_runner.runs.summary import summary_of
from mac_runner.store import RunContents
from mac_runner.types import JsonObject
from mac_runner.viewer.marks import mark_of

_REST: Final = 20.0
"""While a run is at work, its summary is made again after this many times the time that it took."""
_JOURNAL_BYTES_MAX: Final = 256 << 20
"""A run with a larger journal has the summary that it wrote when it ended, or none: it would take too long to make."""


class SummaryKeeper:
    """The summary of one run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: JsonObject | None = None
        self._state: object = None
        self._next_s = float("-inf")

    def summary(self, contents: RunContents, *, is_live: bool) -> JsonObject | None:
        """The summary of what the directory holds; old or missing while the run is at work, or where it was killed."""
        state = len(contents.state.endings), len(contents.state.sessions), contents.counts, is_live
        if state == self._state and self._known is not None:
            return self._known
        now_s = self._clock.monotonic_s()
        is_large = _journal_bytes(contents) > _JOURNAL_BYTES_MAX
        written = self.written(contents) if is_large and not is_live else None
        if written is None and (is_large or (is_live and now_s < self._next_s)):
            return self._known
        self._known = written or summary_of(contents)
        self._state = state
        ended_s = self._clock.monotonic_s()
        self._next_s = ended_s + _REST * (ended_s - now_s)
        return self._known

    def written(self, contents: RunContents) -> JsonObject | None:
        """`summary.json`, where nothing was recorded after it."""
        layout, disk = contents.layout, contents.disk
        marks = [mark_of(layout.journal / name) for name in disk.names(layout.journal)]
        summary = mark_of(layout.summary)
        if summary is None or any(mark is None or mark.changed_ns > summary.changed_ns for mark in marks):
            return None
        with suppress(StoreError, ValueError, RecursionError):
            found = json.loads(disk.read(layout.summary))
            return found if isinstance(found, dict) else None
        return None


def _journal_bytes(contents: RunContents) -> int:
    disk, journals = contents.disk, contents.layout.journals.values()
    return sum(size or 0 for journal in journals for size in disk.sizes(journal).values())
