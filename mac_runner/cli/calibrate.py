"""`mac-run calibrate`: how long the engines of an experiment take, measured and kept in a file."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.clock import SystemClock
from mac_runner.latency import Calibration, CalibrationChoice
from mac_runner.planning.observed import known_calibrations
from mac_runner.planning.sweeps import Sweeps, calibrated, written
from mac_runner.reports import write_tables
from mac_runner.results import Table
from mac_runner.runs import event_loop
from mac_runner.runs.setup import ExperimentSet, RunRequest, set_up
from mac_runner.store import Disk

QUANTUM = 16
"""The quantum of the `kernel_ms` that is printed."""
BAD_FIT = 0.1
"""From this median error on, a fit is called bad."""
_ENDING = "ending the engines; once more leaves at once"


def show_calibration(request: RunRequest, out: Path, sweeps: Sweeps) -> Exit:
    """Measure each engine of the experiment, write `out`, and print what was found."""
    chosen = set_up(request)
    known_calibrations(out, "--out")  # A file that cannot be used is refused before an engine starts.
    found: list[Calibration] = []
    was_stopped = event_loop.run(_measure(chosen, sweeps, out, found))
    with report() as stream:
        write_tables([calibrations_table(found)], stream)
    for one in found:
        if one.error >= BAD_FIT:
            say(
                f"{one.model}: half of the replies are off by {one.error:.0%} or more, so a forecast will be too; "
                "measure for longer (--seconds), on an engine and a machine that serve nothing else"
            )
    if found:
        say(f"{out}: plan with `mac-run plan FILE --calibration {out}`")
    return Exit.INTERRUPTED if was_stopped else Exit.OK


async def _measure(chosen: ExperimentSet, sweeps: Sweeps, out: Path, found: list[Calibration]) -> bool:
    """Whether a signal ended it. What was measured until then is in the file."""
    stop = asyncio.Event()
    with stop_on_signals(stop, say, words=_ENDING):
        return await event_loop.until_stopped(stop, _each(chosen, sweeps, out, found))


async def _each(chosen: ExperimentSet, sweeps: Sweeps, out: Path, found: list[Calibration]) -> None:
    disk = Disk()
    async with aclosing(calibrated(chosen, sweeps, clock=SystemClock(), say=say)) as engines:
        async for one in engines:
            disk.write_atomic(out, [written(known_calibrations(out, "--out").with_one(one))])
            found.append(one)


def calibrations_table(found: list[Calibration]) -> Table:
    """One row for each engine."""
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
