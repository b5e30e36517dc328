"""`mac-run doctor FILE --fleet`: which engines would run where, and how they would be started."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mac_runner.cli.process import Exit, report, say
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.fleet.engine_process import launch_of
from mac_runner.fleet.lane import LaneSpec
from mac_runner.fleet.layout import FleetPlan, gib
from mac_runner.printable import counted, printable
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.runs.fleet import fleet_plan
from mac_runner.runs.setup import RunRequest, set_up

_SECRET = "..."  # noqa: S105 - what is printed in its place


def show_plan(request: RunRequest) -> Exit:
    """Print the lanes of the experiment's models. Raises ConfigError with all that does not fit."""
    chosen = set_up(request)
    plan = fleet_plan(chosen.setups, SystemClock(), say, is_dry=True)
    if plan is None:
        raise ConfigError(
            f"{chosen.name}, profile {chosen.profile}: no model has the backend 'fleet'; choose another --profile"
        )
    with report() as stream:
        write_tables([lanes_table(plan)], stream)
        stream.writelines(f"{printable(line)}\n" for line in _below(plan))
    return Exit.OK


def lanes_table(plan: FleetPlan) -> Table:
    """One row for each lane."""
    return Table(
        "lanes",
        ("lane", "place", "engine", "model"),
        ("memory", "slots", "port"),
        [
            (
                *(lane.name, lane.place.label, plan.models[lane.model].engine, lane.checkpoint),
                *(_memory(lane), str(lane.slots), str(lane.port)),
            )
            for lane in plan.lanes
        ],
    )


def _memory(lane: LaneSpec) -> str:
    """The lane's share of the memory of its place, while it is resident."""
    memory = lane.place.memory_mib
    if memory is None:
        return "-"
    each = f"{lane.memory_share:.2f} = {gib(lane.memory_share * memory)} GiB"
    return each if len(lane.place.gpus) == 1 else f"{each} of each"


def _below(plan: FleetPlan) -> Iterator[str]:
    yield ""
    found = [(plan.slots, "requests"), (len(plan.lanes), "lanes"), (len(plan.places), "places")]
    requests, lanes, places = (counted(n, nouns) for n, nouns in found)
    yield f"{requests} at once on {lanes} and {places}"
    yield from (f"note: {note}" for note in plan.notes)
    if plan.config.first_port is None:
        yield "note: the ports are free now, and a run may choose others; fleet.first_port fixes them"
    yield ""
    for lane in plan.lanes:
        launch = launch_of(lane, plan.models[lane.model], admin_key=_SECRET)
        environment = [f"{name}={shlex.quote(value)}" for name, value in launch.environment.items()]
        yield " ".join([*environment, shlex.join(launch.argv)])
