"""The lanes of a fleet as the event log of a run has them: the latest event of each, and how often it died."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mac_runner.store.disk import Disk
from mac_runner.store.grid import is_grid
from mac_runner.store.layout import Layout
from mac_runner.store.records import Line, lines_with
from mac_runner.types import JsonObject

_MARK: Final = re.compile(rb'"event":"EVENT_LANE_')
_HEAD_BYTES: Final = 1 << 20
"""A run's lanes start before its first request. A log without them in its head is not read further."""
STATES: Final = {
    "EVENT_LANE_START": "starting",
    "EVENT_LANE_RESTART": "starting",
    "EVENT_LANE_UP": "up",
    "EVENT_LANE_SWAP": "up",
    "EVENT_LANE_DRAIN": "draining",
    "EVENT_LANE_SUSPECT": "suspect",
    "EVENT_LANE_DEAD": "resting",
    "EVENT_LANE_RETIRED": "retired",
}
"""What a lane is after an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord:
    """One lane, as of its latest event."""

    name: str
    model: str
    place: str
    state: str
    at: str
    """When that event was."""
    deaths: int = 0
    restarts: int = 0
    reason: str = ""
    """Why it last ended, or is not in service."""


def read_lanes(directory: Path, *, disk: Disk | None = None) -> tuple[LaneRecord, ...]:
    """The lanes of the latest fleet of a run or a grid, by name; none where no model was on a fleet."""
    disk = disk or Disk()
    path = Layout.at(disk, directory).events
    head = disk.chunks(path, size_bytes=_HEAD_BYTES)
    if not is_grid(directory, disk=disk) and next(lines_with(_MARK, head), None) is None:
        return ()
    return lanes_of(_events(lines_with(_MARK, disk.chunks(path))))


def lanes_of(events: Iterable[JsonObject]) -> tuple[LaneRecord, ...]:
    """The lanes after these events."""
    lanes: dict[str, LaneRecord] = {}
    for event in events:
        name, kind = str(event.get("lane", "")), str(event.get("event"))
        before = lanes.get(name)
        if kind == "EVENT_LANE_START" and before is not None and before.state != "draining":
            lanes, before = {}, None  # Another session, with a fleet of its own.
        before = before or LaneRecord(name=name, model="", place="", state="", at="")
        state, reason = STATES.get(kind, before.state), str(event.get("reason") or "")
        if kind == "EVENT_LANE_DRAIN" and "next" in event:
            state = "asleep"
        lanes[name] = replace(
            before,
            model=str(event.get("model", before.model)),
            place=str(event.get("place", before.place)),
            state=state,
            at=str(event.get("time", "")),
            deaths=before.deaths + (kind == "EVENT_LANE_DEAD"),
            restarts=before.restarts + (kind == "EVENT_LANE_RESTART"),
            reason="" if state == "up" else reason or before.reason,
        )
    return tuple(lanes[name] for name in sorted(lanes))


def _events(lines: Iterable[Line]) -> Iterator[JsonObject]:
    for line in lines:
        try:
            event = json.loads(line.data)
        except (ValueError, RecursionError):
            continue  # A kill may have cut it short.
        if isinstance(event, dict):
            yield event
