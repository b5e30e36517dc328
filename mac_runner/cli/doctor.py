"""`mac-run doctor [EXPERIMENT]`: whether what an experiment needs is there, found out before a night depends on it.

It starts the engines of the experiment, one after the other, as a run would, and touches no run directory. Without an
experiment it tells what is installed, and whether Ollama runs on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing

from mac_runner import __version__
from mac_runner.cli.connections import concurrency_within_descriptors
from mac_runner.cli.examining import Finding, examine
from mac_runner.cli.exits import Exit
from mac_runner.cli.grid.parts import setups_by_definition
from mac_runner.cli.inventory import gpus, machine, packages
from mac_runner.cli.looping import run as run_loop
from mac_runner.cli.printing import report, say
from mac_runner.cli.setup import Invocation, Setup, read_file, set_up
from mac_runner.clock import SystemClock
from mac_runner.config import Grid
from mac_runner.registry import backend_specs


def diagnose(invocation: Invocation | None) -> Exit:
    """Print what is there; FAILURES when something that the experiment needs is not."""
    setups = None if invocation is None else _set_up(invocation)
    concurrency_within_descriptors(say, wanted=1, concurrency=None)
    _print(_about_the_machine())
    if setups is None:
        _print(run_loop(_local_servers()))
        return Exit.OK
    problems = sum(run_loop(_about_the_models(setup)) for setup in setups)
    _print(["", f"problems     {problems or 'none: every engine of the experiment answers'}"])
    return Exit.FAILURES if problems else Exit.OK


def _set_up(invocation: Invocation) -> Sequence[Setup]:
    """The experiment; of a grid, one for each definition of a model that it has."""
    asked = read_file(invocation)
    if isinstance(asked, Grid):
        return tuple(setups_by_definition(invocation, asked))
    return (set_up(invocation, asked),)


def _about_the_machine() -> list[str]:
    found, cards = packages(), gpus()
    return [
        f"mac_runner   {__version__}, {machine()}",
        f"packages     {', '.join(found.installed) or 'none of an engine'}",
        f"not there    {', '.join(found.missing) or '-'}",
        *(f"GPU          {line}" for line in cards.lines or (cards.silence,)),
    ]


async def _local_servers() -> list[str]:
    """A line for each kind of server that may run on this machine."""
    lines = []
    for name, spec in backend_specs().items():
        if spec.local is None:
            continue
        try:
            found = await spec.local(SystemClock())
        except ModuleNotFoundError as missing:
            found = f"not asked: the package {missing.name!r} is not installed"
        lines.append(f"{name:<12} {found}")
    return lines


async def _about_the_models(setup: Setup) -> int:
    """Print what is found as it is found; how many problems there are."""
    _print(["", f"experiment   {setup.name}, profile {setup.experiment.profile}"])
    problems = 0
    async with aclosing(examine(setup, SystemClock(), say)) as findings:
        async for finding in findings:
            _print(_told(finding))
            problems += finding.problem is not None
    return problems


def _told(finding: Finding) -> list[str]:
    lines = [f"model        {finding.model} ({finding.engine})"]
    if finding.start_s is not None:
        slots = f"{finding.capacity} requests at once"
        tokens = "" if finding.token_budget is None else f", {finding.token_budget:,} tokens in all"
        lines.append(f"             started in {finding.start_s:.1f} s; {slots}{tokens}")
    if finding.probe_s is not None:
        lines.append(f"             one token in {finding.probe_s:.2f} s")
    if finding.problem is not None:
        lines.append(f"             PROBLEM: {finding.problem}")
    return lines


def _print(lines: Iterable[str]) -> None:
    with report() as stream:
        stream.write("\n".join(lines) + "\n")
