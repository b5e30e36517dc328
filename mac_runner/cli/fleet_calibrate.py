"""`mac-run fleet calibrate FILE`: how long the engines of an experiment take, measured and kept in a file."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.fleet.layout import FleetPlan
from mac_runner.latency import Calibration, CalibrationChoice
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.runs import event_loop
from mac_runner.runs.calibration import calibrated, known_calibrations, written
from mac_runner.runs.fleet import fleet_plan
from mac_runner.runs.setup import RunRequest, set_up
from mac_runner.store import Disk

QUANTUM = 16
"""The quantum of the `kernel_ms` that is printed."""
_ENDING = "ending the engines; once more leaves at once"


def show_calibration(request: RunRequest, out: Path, seconds: float) -> Exit:
    """Measure each model of the experiment that is on a fleet, write `out`, and print what was found."""
    chosen = set_up(request)
    plan = fleet_plan(chosen.setups, SystemClock(), say, is_dry=False)
    if plan is None:
        raise ConfigError(f"{request.file}: no model has `backend: fleet`, so there is nothing to calibrate")
    known_calibrations(out)  # A file that cannot be used is refused before an engine starts.
    found: list[Calibration] = []
    was_stopped = event_loop.run(_measure(plan, seconds, out, found))
    with report() as stream:
        write_tables([calibrations_table(found)], stream)
    say(f"{out}: name it with `latency: {{calibration: {{file: {out.name}}}}}`")
    return Exit.INTERRUPTED if was_stopped else Exit.OK


async def _measure(plan: FleetPlan, seconds: float, out: Path, found: list[Calibration]) -> bool:
    """Whether a signal ended it. What was measured until then is in the file."""
    stop = asyncio.Event()
    with stop_on_signals(stop, say, words=_ENDING):
        return await event_loop.until_stopped(stop, _each(plan, seconds, out, found))


async def _each(plan: FleetPlan, seconds: float, out: Path, found: list[Calibration]) -> None:
    disk = Disk()
    async with aclosing(calibrated(plan, seconds, clock=SystemClock(), say=say)) as models:
        async for one in models:
            disk.write_atomic(out, [written(known_calibrations(out).with_one(one))])
            found.append(one)


def calibrations_table(found: list[Calibration]) -> Table:
    """One row for each model."""
    choice = CalibrationChoice(file="calibration.json")
    return Table(
        "calibration",
        ("model", "gpu", "engine"),
        ("step ms", "token ms", "prompt token ms", "context token ms", "prefill_ms", "kernel_ms", "error"),
        [
            (
                *(one.model, one.gpu, one.engine),
                *(f"{value:.4g}" for value in one.steps.model_dump().values()),
                str(one.steps.prefill_ms(choice.prompt_tokens)),
                str(one.steps.kernel_ms(QUANTUM, choice.in_flight, choice.context_tokens)),
                f"{one.error:.1%}",
            )
            for one in found
        ],
    )
