"""The status view of a run on stderr: a live picture, a bar, plain lines, or nothing.

It only reads the scheduler: `read_progress` makes a `Reading` of its totals and pools, `Meter` adds rates and makes a
`StatusFrame`, a `Display` shows it. `tick` repeats this at a bounded rate.
"""

from __future__ import annotations

from mac_runner.status.displays import Display, choose_display, progress_bar, tick
from mac_runner.status.frame import Meter, ModelSlots, RateWindow, Reading, StatusFrame, Tally, TurnRow, read_progress

__all__ = [
    "Display",
    "Meter",
    "ModelSlots",
    "RateWindow",
    "Reading",
    "StatusFrame",
    "Tally",
    "TurnRow",
    "choose_display",
    "progress_bar",
    "read_progress",
    "tick",
]
