"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.status.displays import BarDisplay, Expendable, LiveDisplay, PlainDisplay, SilentDisplay
from mac_runner.status.frame import STATUS_ROWS_MAX, row
from mac_runner.status.picture import line, pending, picture, tokens, turn
from mac_runner.status.quantities import duration, quantity
from mac_runner.status.rates import STATUS_RATE_SAMPLES_MAX, time_left_s
