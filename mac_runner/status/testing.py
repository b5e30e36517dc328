"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.status.displays import BarDisplay, Expendable, LiveDisplay, PlainDisplay
from mac_runner.status.frame import STATUS_RATE_SAMPLES_MAX, STATUS_ROWS_MAX, row
from mac_runner.status.picture import duration, line, pending, picture, quantity, tokens, turn
