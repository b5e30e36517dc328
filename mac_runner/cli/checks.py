"""`mac-run doctor` and `verify`: whether an experiment can be played, and whether a run is what it should be."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner import __version__
from mac_runner.cli.options import OfRun, Varying, argument, commands, switch
from mac_runner.cli.play import say_tables
from mac_runner.cli.process import Exit, print_lines, say
from mac_runner.clock import SystemClock
from mac_runner.data.training import WITH_TOKENS
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.fleet.gpus import GpuError, ask
from mac_runner.plugins import KINDS, installed_plugins
from mac_runner.printable import printable
from mac_runner.registry import backend_specs
from mac_runner.runs import event_loop
from mac_runner.runs.engines import concurrency_within_descriptors
from mac_runner.runs.examination import Finding, examine
from mac_runner.runs.fleet import fleet_plan, key_variables
from mac_runner.runs.maintenance import Repaired, Verified, begun_in, repair_all, verify_all
from mac_runner.runs.setup import ExperimentSet, Setup, set_up
from mac_runner.status import progress_bar
from mac_runner.store import Disk, VerifyReport
from mac_runner.store.identity import listed, run_command
from mac_runner.store.layout import repair_advice

_QUERY: Final = ("--query-gpu=index,name,memory.total,memory.free,driver_version", "--format=csv,noheader")
_FINDINGS_SHOWN_MAX: Final = 50


@dataclass(frozen=True, kw_only=True)
class Doctor(Varying):
    """Print what is installed, and check the engines of EXPERIMENT: each is started and generates one token.

    With --fleet: print the engines that it has on the GPUs of this machine instead, of a grid those of all
    combinations: where each runs, its share of memory, its port and its command line.

    Exit codes: 0 all of it works, 1 something does not, 2 bad input; with --fleet also where engines do not fit.
    """

    file: Path | None = argument("[EXPERIMENT]", required=False)
    fleet: bool = switch("Say where engines on a fleet would run; start nothing.")

    def work(self) -> Exit | None:
        if self.file is None:
            if self.given("profile", "overrides", "fleet"):
                raise ConfigError("--profile, --set and --fleet need an EXPERIMENT")
            _about_the_machine()
            print_lines(*event_loop.run(_local_servers()))
            return None
        chosen = set_up(self.request_for(self.file))
        if not self.fleet:
            return _diagnose(chosen)
        from mac_runner.cli.engines import show_lanes

        show_lanes(chosen)
        return None


def _diagnose(chosen: ExperimentSet) -> Exit:
    """Print what is installed and whether the experiment's engines answer; FAILURES when one does not."""
    _about_the_machine()
    problems = _about_the_fleet(chosen)
    keys = key_variables(chosen.setups)
    problems += sum(event_loop.run(_about_the_models(setup, keys)) for setup in _setups(chosen))
    print_lines("", f"problems     {problems or 'none: every engine of the experiment answers'}")
    return Exit.FAILURES if problems else Exit.OK


def _setups(chosen: ExperimentSet) -> Sequence[Setup]:
    """The experiment; of a grid, one for each model definition in it."""
    return chosen.setups if chosen.grid is None else tuple(chosen.by_definition())


def _about_the_fleet(chosen: ExperimentSet) -> int:
    """Print which engines of the models on a fleet would run where; returns the number of problems."""
    try:
        plan = fleet_plan(chosen.setups, SystemClock(), say, is_dry=True)
    except MacRunnerError as error:
        print_lines("", f"fleet        PROBLEM: {error}")
        return 1
    if plan is not None:
        # Here, because doctor would wait for the HTTP library.
        from mac_runner.cli.engines import print_lanes

        print_lines("", f"fleet        {len(plan.lanes)} lanes; of each model one is started now")
        print_lanes(plan)
    return 0


def _about_the_machine() -> None:
    """Print what is installed, and whether this process may open enough descriptors."""
    concurrency_within_descriptors(say, wanted=1, concurrency=None)
    found = packages()
    print_lines(
        f"mac_runner   {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"packages     {', '.join(found.installed) or 'none of an engine'}",
        f"not there    {', '.join(found.missing) or '-'}",
        *(f"GPU          {line}" for line in gpus()),
        *_plugins(),
    )


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
    print_lines("", f"experiment   {setup.name}, profile {setup.experiment.profile}")
    problems = 0
    async with aclosing(examine(setup, keys, SystemClock(), say)) as findings:
        async for finding in findings:
            print_lines(*_lines(finding))
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


class Packages(NamedTuple):
    """The installed packages of engines, with versions, and the missing ones."""

    installed: tuple[str, ...]
    missing: tuple[str, ...]


def packages() -> Packages:
    """The packages of all backends."""
    installed, missing = [], []
    for name in dict.fromkeys(package for spec in backend_specs().values() for package in spec.packages):
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return Packages(tuple(installed), tuple(missing))


def gpus() -> list[str]:
    """The GPUs that nvidia-smi lists, or why there are none."""
    try:
        answer = ask(_QUERY)
    except GpuError as fault:
        return [f"unknown: {fault}"]
    if answer is None:
        return ["none: nvidia-smi is not installed"]
    lines = [printable(line.strip()) for line in answer.splitlines() if line.strip()]
    return lines or ["none: nvidia-smi lists none"]


@dataclass(frozen=True, kw_only=True)
class Verify(OfRun):
    """Check RUN, a run or a grid, and play every transcript again. Reads only.

    With --repair, transcripts that differ from what was acknowledged are moved aside and written again, without an
    engine. What the journal lacks is open again, and is played by the command that began the run.

    Exit codes: 0 everything is as promised, 1 something is not, 2 RUN is not a run directory. With --repair: 0 every
    transcript is what was acknowledged, 1 some are to be played again, 2 as above, 4 storage failed, 5 RUN is being
    run.
    """

    repair: bool = switch("Write damaged transcripts again from the journal instead.")
    quiet: bool = switch("With --repair: print nothing but errors.")

    def work(self) -> Exit:
        if self.repair:
            return self._repair()
        if self.quiet:
            raise ConfigError("--quiet is for --repair: what verify finds is what it prints")
        return self._verify()

    def _verify(self) -> Exit:
        """Print what was checked and found; FAILURES when anything is wrong."""
        begun = begun_in(self.directory)
        print_lines(*begun.not_begun)
        exit_code = Exit.OK
        for found in verify_all(self.directory, lambda what, total: progress_bar(sys.stderr, what, total=total)):
            place = "" if found.is_grid else f"\n{found.directory.relative_to(self.directory)}"
            print_lines(*([place] if begun.not_begun else []), *_verdict(found))
            exit_code = exit_code if found.report.ok else Exit.FAILURES
        return exit_code

    def _repair(self) -> Exit:
        """Write damaged transcripts again; FAILURES when the journal lacks something and some are open again."""
        results = []
        for repaired in repair_all(self.directory, SystemClock()):
            self._say_repaired(repaired)
            results.append(repaired)
        if not results and not self.quiet:
            say(f"{self.directory}: every transcript is what was acknowledged; nothing to repair")
        return Exit.OK if all(repaired.is_whole for repaired in results) else Exit.FAILURES

    def _say_repaired(self, repaired: Repaired) -> None:
        directory, repairs = repaired.directory, repaired.repairs
        if not self.quiet:
            for line in repairs.in_words():
                say(f"{directory}: {line}")
        if repairs.reopened:
            again = run_command(Disk(), directory)
            say(f"{directory}: conversations open again: {len(repairs.reopened)}; go on with: {again}")
        elif not self.quiet:
            say_tables(directory, say)


def _verdict(found: Verified) -> list[str]:
    checked = found.report
    if found.is_grid:
        right = "the journal of the grid is whole"
        return [right if checked.ok else "the journal of the grid is NOT as promised:", *_findings(checked)]
    counts = (
        f"attempted {checked.attempted}, acknowledged {checked.acknowledged}; lost {checked.lost}, "
        f"unexpected {checked.unexpected}, damaged {checked.damaged}, mismatched {checked.mismatched}"
    )
    if checked.without_tokens:
        counts += f", without tokens {checked.without_tokens}"
    right = "every transcript is there once"
    right += " and plays again to the same end" if checked.is_played else ", and no digest or row is wrong"
    lines = [counts, right if checked.ok else "NOT as promised:", *_findings(checked)]
    if checked.is_repairable:
        lines.append(f"{repair_advice(found.directory)}, as far as that is whole")
    if checked.has_damaged_journal:
        first = "then " if checked.is_repairable else ""
        lines.append(
            f"{first}`mac-run merge NEW {found.directory}` writes the run to NEW without the damaged lines "
            "of its journal, which no command writes again: what has ended needs its transcripts alone"
        )
    if checked.without_tokens:
        lines.append(
            f"`mac-run verify {found.directory} --repair` writes token traces again from the journal, where that has "
            f"them all. Without them the run cannot be exported as {', '.join(WITH_TOKENS)} or by the table traces, "
            "and these conversations cannot be forked. Everything else needs only their transcripts."
        )
    return lines


def _findings(checked: VerifyReport) -> list[str]:
    """The first findings, and all notes."""
    found = [f"- {finding.kind}: {printable(finding.text)}" for finding in checked.findings]
    shown = [listed(found, _FINDINGS_SHOWN_MAX)] if found else []
    return [*shown, *(f"note: {printable(note)}" for note in checked.notes)]


VERBS: Final = commands(doctor=Doctor, verify=Verify)
