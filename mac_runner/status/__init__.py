"""What a person sees while a run is under way, all of it on stderr: a live picture, a bar, plain lines, or nothing.

The scheduler is only read, now and then: a `Reading` of its totals and pools (`read_progress`) becomes a `StatusFrame`
with rates (`Meter`), which a `Display` shows. `tick` does so at a bounded rate until it is cancelled.
"""

from __future__ import annotations

from mac_runner.status.displays import Display, choose_display, progress_bar
from mac_runner.status.frame import ModelSlots, Reading, StatusFrame, TurnRow
from mac_runner.status.rates import Meter, RateWindow
from mac_runner.status.scheduling import read_progress
from mac_runner.status.ticker import tick

__all__ = [
    "Display",
    "Meter",
    "ModelSlots",
    "RateWindow",
    "Reading",
    "StatusFrame",
    "TurnRow",
    "choose_display",
    "progress_bar",
    "read_progress",
    "tick",
]
