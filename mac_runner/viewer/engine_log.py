"""The engines of a run over time, from an event log that is read on."""

from __future__ import annotations

from pathlib import Path

from mac_runner.errors import StoreError
from mac_runner.files import chunks_from
from mac_runner.view_model import EnginesPage
from mac_runner.viewer.marks import Mark, mark_of
from mac_runner.viewer.source import NotThereError
from mac_runner.views.engines import EngineClock

_EVENTS = "events.jsonl"


class EngineLog:
    """The event log of one run directory, as far as it was read. Not for two threads at once."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _EVENTS
        self._begin()

    def _begin(self) -> None:
        self._clock = EngineClock()
        self._offset = 0
        self._mark: Mark | None = None
        self._made: EnginesPage | None = None

    def page(self) -> EnginesPage:
        """The engines until the last event. Raises NotThereError where there is no log, StoreError for damage."""
        mark = mark_of(self._path)
        if mark is None:
            raise NotThereError(f"{self._path.parent} has no {_EVENTS}: nothing is known of its engines over time")
        if self._mark is not None and (mark.inode != self._mark.inode or mark.size_bytes < self._offset):
            self._begin()
        if self._made is None or mark != self._mark:
            self._read_on()
            self._made = self._clock.page()
        self._mark = mark
        return self._made

    def _read_on(self) -> None:
        tail = b""
        try:
            for chunk in chunks_from(self._path, self._offset):
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    self._clock.add(line)
                    self._offset += len(line) + 1
        except OSError as fault:
            self._begin()
            raise StoreError(f"cannot read {self._path}: {fault.strerror or fault}") from fault
