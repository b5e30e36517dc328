"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.fleet.backend import FleetBackend
from mac_runner.backends.fleet.lanes import Fleet, LaneAddress, ModelLanes
from mac_runner.backends.fleet.settings import NANO_ARGS, filled, flag_of
