"""The summary of a run for the head of its page: made of the journal, as rarely as it is expensive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from mac_runner.clock import Clock
from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.files import mark_of
from mac_runner.runs.summary import summary_parts
from mac_runner.store import Run
from mac_runner.types import JsonObject

_REST: Final = 20.0
"""While a run is at work, its summary is made again after this many times the time that it took."""


class SummaryKeeper:
    """The summary of one run, made in parts, so that requests are answered in between."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: JsonObject | None = None
        self._fault = ""
        """Why there is none of what the directory holds."""
        self.made = 0
        """How many summaries there were, and faults in their place."""
        self._state: object = None
        """What the last one is of, or the one that is being made."""
        self._parts: Iterator[JsonObject | None] | None = None
        self._began_s, self._next_s = 0.0, float("-inf")

    def summary(self, run: Run, is_over: Callable[[], bool], *, is_live: bool) -> JsonObject | None:
        """The summary of what the directory holds; until it is made the one before it, or one that is written.

        Raises RunDirectoryError where what the directory holds cannot be added up.
        """
        state = len(run.state.endings), len(run.state.sessions), run.counts, is_live
        now_s = self._clock.monotonic_s()
        if self._parts is None and state != self._state and not (is_live and now_s < self._next_s):
            self._parts, self._state, self._began_s, self._fault = summary_parts(run), state, now_s, ""
        self.make_on(is_over)
        if self._fault:
            raise RunDirectoryError(self._fault)
        return self.written(run) if self._known is None and not is_live else self._known

    def make_on(self, is_over: Callable[[], bool]) -> bool:
        """Make the next part of what is being made, up to where `is_over` says so; whether there is more to make."""
        if self._parts is None:
            return False
        try:
            while (made := next(self._parts)) is None:
                if is_over():
                    return True
        except RunDirectoryError as fault:
            made, self._fault = None, str(fault)
        except Exception:
            self._state, self._parts = None, None
            raise
        ended_s = self._clock.monotonic_s()
        self._next_s = ended_s + _REST * (ended_s - self._began_s)
        self._known, self._parts, self.made = made, None, self.made + 1
        return False

    def let_go(self) -> None:
        """Give up what is being made."""
        if self._parts is not None:
            self._state, self._parts = None, None

    def written(self, run: Run) -> JsonObject | None:
        """`summary.json`, where nothing was recorded after it."""
        layout, disk = run.layout, run.disk
        marks = [mark_of(layout.journal / name) for name in disk.names(layout.journal)]
        summary = mark_of(layout.summary)
        if summary is None or any(mark is None or mark.changed_ns > summary.changed_ns for mark in marks):
            return None
        with suppress(StoreError, ValueError, RecursionError):
            found = json.loads(disk.read(layout.summary))
            return found if isinstance(found, dict) else None
        return None
