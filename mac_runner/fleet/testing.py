"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.fleet.allocator import RoundRobinAllocator
from mac_runner.fleet.attached import AttachedFleet
from mac_runner.fleet.client import FleetClient
from mac_runner.fleet.control import (
    MEMORY_S,
    Changed,
    CheckMemory,
    Command,
    Control,
    Grant,
    Note,
    Refuse,
    Sleep,
    Start,
    Stop,
    Wake,
    Warm,
)
from mac_runner.fleet.engine import Gate, chat_of
from mac_runner.fleet.gpus import GpuError, Memory, among, ask, discover, parse
from mac_runner.fleet.held import HeldFleet, held_model, read_held
from mac_runner.fleet.host import FleetHost, control_socket
from mac_runner.fleet.lane import SERVED_S, SLEEP_S, Lane
from mac_runner.fleet.lane_engine import SAMPLES_MAX, CommonPrefix
from mac_runner.fleet.launch import ADMIN_KEY, launch_of, withheld
from mac_runner.fleet.layout import FleetPlan, LayoutError, lay_out
from mac_runner.fleet.model import Gpu, LaneSpec, LaneState, LaneStatus, OnEvent, Place, Slice
from mac_runner.fleet.planning import local_plan, weight_bytes
from mac_runner.fleet.ports import LoopbackPorts
from mac_runner.fleet.probe import Figures, Rate, Tokens, figures_of
from mac_runner.fleet.process import LaneProcess, last_error
from mac_runner.fleet.residency import Phase, Residency
from mac_runner.fleet.supervisor import LocalFleet
