"""The engines of a run over time, from event logs that are read on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from pathlib import Path
from typing import Final

from mac_runner.errors import StoreError
from mac_runner.files import Mark, mark_of
from mac_runner.store import Disk
from mac_runner.store.identity import layout_of
from mac_runner.store.layout import EVENTS, Layout
from mac_runner.store.leases import event_logs
from mac_runner.view_model import EnginesPage
from mac_runner.viewer.source import NotThereError
from mac_runner.views.engines import EngineClock

_TIME_BYTES: Final = 34
"""A line begins with its time, which is as long as this."""


class EngineLog:
    """The event logs of a run, its own and those of its workers, as far as read. Not for two threads at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._layout: Layout | None = None
        self._begin()

    def _begin(self) -> None:
        self._clock = EngineClock()
        self._offsets: dict[Path, int] = {}
        self._marks: dict[Path, Mark] = {}
        self._made: EnginesPage | None = None

    def page(self) -> EnginesPage:
        """The engines until the last event. Raises NotThereError where there is no log, StoreError for damage."""
        marks = {path: mark for path in event_logs(self._directory) if (mark := mark_of(path)) is not None}
        if not marks:
            raise NotThereError(f"{self._directory} has no {EVENTS}: nothing is known of its engines over time")
        if any(self._is_replaced(path, marks.get(path)) for path in self._marks):
            self._begin()
        if self._made is None or marks != self._marks:
            self._read_on(path for path in marks if marks[path] != self._marks.get(path))
            self._made = self._clock.page()
        self._marks = marks
        return self._made

    def _is_replaced(self, path: Path, mark: Mark | None) -> bool:
        return mark is None or mark.inode != self._marks[path].inode or mark.size_bytes < self._offsets[path]

    def _read_on(self, paths: Iterable[Path]) -> None:
        # Several logs in the order of their times, as a merge writes them.
        layout = self._layout = self._layout or layout_of(self._directory)
        for line in merge(*map(self._new_lines, paths), key=lambda line: line[:_TIME_BYTES]):
            if layout.has_event(line):
                self._clock.add(line)

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        tail = b""
        self._offsets.setdefault(path, 0)
        try:
            for chunk in Disk().chunks(path, self._offsets[path]):
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    yield line
                    self._offsets[path] += len(line) + 1
        except StoreError:
            self._begin()
            raise
