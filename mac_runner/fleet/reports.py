"""What people hear of lanes: events for the log of the run, and a line when a lane ends and when it is back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.fleet.control import Note
from mac_runner.fleet.model import LaneSpec, OnEvent
from mac_runner.types import JsonObject

LINE_EVERY_S: Final = 60.0
"""A lane that ends again and again is mentioned once in this time."""


class LaneReports:
    """Turns what control notes into events and lines."""

    def __init__(
        self,
        lanes: Iterable[LaneSpec],
        *,
        clock: Clock,
        say: Callable[[str], None],
        on_event: OnEvent,
    ) -> None:
        self._lanes = {lane.name: lane for lane in lanes}
        self._clock = clock
        self._say = say
        self._on_event = on_event
        self._said_at_s: dict[str, float] = {}
        self._awaited: set[str] = set()
        """Lanes whose end was mentioned and whose return was not."""
        self.has_broken = False
        """Whether an engine ended by itself or did not start, so that its log is of use."""

    def note(self, note: Note, log: Path) -> None:
        """Pass on what happened to a lane."""
        lane = self._lanes[note.lane]
        fields: JsonObject = {"lane": lane.name, "model": lane.model, "place": lane.place.label}
        fields["gpu"] = ",".join(lane.place.visible) or None
        if note.reason:
            fields["reason"] = note.reason
        if note.seconds is not None:
            fields["seconds"] = round(note.seconds, 3)
        self._on_event(note.event, {**fields, **note.fields})
        if line := self._line(note, log):
            self._say(line)

    def _line(self, note: Note, log: Path) -> str | None:
        match note.event:
            case "EVENT_LANE_DEAD":
                self.has_broken = True
                now_s = self._clock.monotonic_s()
                if now_s - self._said_at_s.get(note.lane, -LINE_EVERY_S) < LINE_EVERY_S:
                    return None
                self._said_at_s[note.lane] = now_s
                self._awaited.add(note.lane)
                return f"lane {note.lane} ended: {note.reason} (log: {log})"
            case "EVENT_LANE_RETIRED":
                self._awaited.discard(note.lane)
                return f"lane {note.lane} is not started again: {note.reason} (log: {log})"
            case "EVENT_LANE_UP" | "EVENT_LANE_SWAP" if note.lane in self._awaited:
                self._awaited.remove(note.lane)
                return f"lane {note.lane} serves again"
            case _:
                return None
