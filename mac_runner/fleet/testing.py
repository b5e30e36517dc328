"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.http.stall import Figures, Tokens, figures_of
from mac_runner.fleet.control import MEMORY_S, Action, Changed, Command, Control, Do, Grant, Note, Refuse
from mac_runner.fleet.engine_process import (
    ADMIN_KEY,
    SAMPLES_MAX,
    CommonPrefix,
    LaneProcess,
    Rate,
    last_error,
    launch_of,
    withheld,
)
from mac_runner.fleet.gpus import Gpu, GpuError, Place, Slice, among, ask, discover, parse
from mac_runner.fleet.held import AttachedFleet, FleetClient, FleetHost, HeldFleet, HeldModel, read_held
from mac_runner.fleet.inference import Gate, RoundRobinAllocator, chat_of
from mac_runner.fleet.lane import SERVED_S, SLEEP_S, Lane, LaneSpec, LaneState, LaneStatus, OnEvent, Phase, Residency
from mac_runner.fleet.layout import FleetPlan, LayoutError, LoopbackPorts, lay_out, local_plan, weight_bytes
from mac_runner.fleet.supervisor import LocalFleet, Memory
