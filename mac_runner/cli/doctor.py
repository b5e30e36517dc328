"""`mac-run doctor [EXPERIMENT]`: whether everything an experiment needs is there.

It starts the engines of the experiment one after the other, as a run would, and touches no run directory. Without an
experiment it lists what is installed and whether Ollama runs on this machine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from importlib import metadata
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.cli.process import Exit, report, say
from mac_runner.clock import SystemClock
from mac_runner.errors import MacRunnerError
from mac_runner.fleet.gpus import GpuError, ask
from mac_runner.plugins import KINDS, installed_plugins
from mac_runner.printable import printable
from mac_runner.registry import backend_specs
from mac_runner.runs import event_loop
from mac_runner.runs.engines import concurrency_within_descriptors
from mac_runner.runs.examination import Finding, examine
from mac_runner.runs.fleet import fleet_plan, key_variables
from mac_runner.runs.setup import ExperimentSet, RunRequest, Setup, set_up

_QUERY: Final = ("--query-gpu=index,name,memory.total,memory.free,driver_version", "--format=csv,noheader")


def diagnose(request: RunRequest | None) -> Exit:
    """Print what is installed and whether the experiment's engines answer; FAILURES when one does not."""
    chosen = None if request is None else set_up(request)
    concurrency_within_descriptors(say, wanted=1, concurrency=None)
    _print(_about_the_machine())
    if chosen is None:
        _print(event_loop.run(_local_servers()))
        return Exit.OK
    problems = _about_the_fleet(chosen)
    keys = key_variables(chosen.setups)
    problems += sum(event_loop.run(_about_the_models(setup, keys)) for setup in _setups(chosen))
    _print(["", f"problems     {problems or 'none: every engine of the experiment answers'}"])
    return Exit.FAILURES if problems else Exit.OK


def _setups(chosen: ExperimentSet) -> Sequence[Setup]:
    """The experiment; of a grid, one for each model definition in it."""
    return chosen.setups if chosen.grid is None else tuple(chosen.by_definition())


def _about_the_fleet(chosen: ExperimentSet) -> int:
    """Print which engines of the models on a fleet would run where; returns the number of problems."""
    try:
        plan = fleet_plan(chosen.setups, SystemClock(), say, is_dry=True)
    except MacRunnerError as error:
        _print(["", f"fleet        PROBLEM: {error}"])
        return 1
    if plan is not None:
        lanes = [
            f"             {lane.name} on {lane.place.label}, {lane.slots} requests at once" for lane in plan.lanes
        ]
        notes = [f"             note: {note}" for note in plan.notes]
        _print(["", f"fleet        {len(plan.lanes)} lanes; of each model one is started now", *lanes, *notes])
    return 0


def _about_the_machine() -> list[str]:
    found, cards = packages(), gpus()
    return [
        f"mac_runner   {__version__}, {machine()}",
        f"packages     {', '.join(found.installed) or 'none of an engine'}",
        f"not there    {', '.join(found.missing) or '-'}",
        *(f"GPU          {line}" for line in cards.lines or (cards.reason,)),
        *_plugins(),
    ]


def _plugins() -> list[str]:
    """One line for each kind of plug-in that installed packages offer; none of them is imported."""
    return [
        f"{kind:<12} {', '.join(f'{one.name} ({one.distribution} {one.version})' for one in found)}"
        for kind in KINDS
        if (found := list(installed_plugins(kind)))
    ]


async def _local_servers() -> list[str]:
    """One line per kind of server that may run on this machine."""
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


async def _about_the_models(setup: Setup, keys: frozenset[str]) -> int:
    """Print the findings as they come; returns the number of problems."""
    _print(["", f"experiment   {setup.name}, profile {setup.experiment.profile}"])
    problems = 0
    async with aclosing(examine(setup, keys, SystemClock(), say)) as findings:
        async for finding in findings:
            _print(_lines(finding))
            problems += finding.problem is not None
    return problems


def _lines(finding: Finding) -> list[str]:
    lines = [f"model        {finding.model} ({finding.engine})"]
    if finding.start_s is not None:
        slots = f"{finding.capacity} requests at once"
        tokens = "" if finding.token_budget is None else f", {finding.token_budget:,} tokens in all"
        lines.append(f"             started in {finding.start_s:.1f} s; {slots}{tokens}")
    if finding.probe_s is not None:
        lines.append(f"             one token in {finding.probe_s:.2f} s")
    for trial in finding.trials:
        asked = f"constrained_decoding {trial.decoding}, a first prompt that asks for {trial.form}"
        lines.append(f"             {asked}: {trial.end} in {trial.took_s:.2f} s ({trial.detail})")
    if finding.problem is not None:
        lines.append(f"             PROBLEM: {finding.problem}")
    return lines


def _print(lines: Iterable[str]) -> None:
    with report() as stream:
        stream.write("\n".join(lines) + "\n")


class Packages(NamedTuple):
    """The installed packages of engines, with versions, and the missing ones."""

    installed: tuple[str, ...]
    missing: tuple[str, ...]


class Gpus(NamedTuple):
    """The GPUs, one per line, or why there are none."""

    lines: tuple[str, ...]
    reason: str = ""


def machine() -> str:
    """Python's version and the platform."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def packages() -> Packages:
    """The packages of all backends."""
    installed, missing = [], []
    for name in dict.fromkeys(package for spec in backend_specs().values() for package in spec.packages):
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return Packages(tuple(installed), tuple(missing))


def gpus() -> Gpus:
    """The GPUs that nvidia-smi lists."""
    try:
        answer = ask(_QUERY)
    except GpuError as fault:
        return Gpus((), f"unknown: {fault}")
    if answer is None:
        return Gpus((), "none: nvidia-smi is not installed")
    lines = tuple(printable(line.strip()) for line in answer.splitlines() if line.strip())
    return Gpus(lines, "" if lines else "none: nvidia-smi lists none")
