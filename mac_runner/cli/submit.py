"""`mac-run submit`: workers in one run directory, on this machine, Slurm or Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.cli.run import print_results
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.executors.base import DONE, Executor, Job, Terminal, worker_argv
from mac_runner.plan import CLAIMED_MAX, AutoShard, parse_shard
from mac_runner.runs.claims import check
from mac_runner.runs.play import results_if_complete
from mac_runner.runs.setup import ExperimentSet, RunRequest, set_up
from mac_runner.store import Disk, read_leases

SHARDS_PER_WORKER: Final = 8
"""More of them make the end of a job more even, and cost a claim each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """What `mac-run submit` was asked for, beside the run itself."""

    run: RunRequest
    executor: str
    nodes: int
    shards: int | None = None
    gpus: int = 0
    concurrency: int | None = None
    sbatch_args: str | None = None
    is_assumed_shared: bool = False


def submit(request: SubmitRequest, *, is_dry: bool, is_quiet: bool) -> Exit:
    """Run the job, or hand it to the cluster; with `is_dry` print what would be done."""
    executor = _executor(request)
    words: Callable[[str], None] = (lambda _line: None) if is_quiet else say
    chosen = _claimed(request)
    job = _job(request, chosen)
    if is_dry:
        with report() as stream:
            stream.write(executor.describe(job))
        return Exit.OK
    if (complete := results_if_complete(chosen, SystemClock())) is not None:
        words(f"{chosen.directory}: {complete.ended}; nothing to submit")
        return print_results(complete, chosen.directory, is_quiet=is_quiet)
    for warning in chosen.warnings:
        words(f"warning: {warning}")
    executor.check(job)
    code = Exit(executor.submit(job, Terminal(say=words, stopping=lambda stop: stop_on_signals(stop, say))))
    # A job that was handed over has only begun.
    if code in DONE and (complete := results_if_complete(chosen, SystemClock())) is not None:
        return print_results(complete, chosen.directory, is_quiet=is_quiet)
    return code


def _claimed(request: SubmitRequest) -> ExperimentSet:
    """What the workers will play, checked as each of them would: the experiment, and the directory."""
    chosen = set_up(request.run)
    known = (record.of for setup in chosen.setups if (record := read_leases(Disk(), setup.layout)) is not None)
    wanted = -(-SHARDS_PER_WORKER * request.nodes // len(chosen.setups))
    shard = parse_shard(f"auto/{request.shards or next(known, min(wanted, CLAIMED_MAX))}")
    assert isinstance(shard, AutoShard), "auto/N is one"
    chosen = replace(chosen, claimed=shard)
    check(chosen)
    return chosen


def _job(request: SubmitRequest, chosen: ExperimentSet) -> Job:
    file, directory, shard = request.run.file, chosen.directory.absolute(), chosen.claimed
    assert isinstance(file, Path), "a job is submitted from a file"
    assert shard is not None, "the workers claim shards"
    return Job(
        name=chosen.name,
        directory=directory,
        argv=worker_argv(file, directory, shard, _options(request)),
        working_directory=Path.cwd(),
        workers=request.nodes,
        gpus=request.gpus,
        is_assumed_shared=request.is_assumed_shared,
    )


def _options(request: SubmitRequest) -> list[str]:
    """The flags that each worker gets."""
    run = request.run
    values = {
        "--profile": run.profile,
        "--seed": run.seed,
        "--limit": run.limit,
        "--concurrency": request.concurrency,
        "--mirror": run.mirror,
    }
    options = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    options += [f"--set={override}" for override in run.overrides]
    return [*options, "--pull"] if run.can_pull else options


def _local(_request: SubmitRequest) -> Executor:
    from mac_runner.executors.local import LocalExecutor

    return LocalExecutor()


def _slurm(request: SubmitRequest) -> Executor:
    from mac_runner.executors.slurm import SlurmExecutor

    return SlurmExecutor(request.sbatch_args or "")


def _ray(_request: SubmitRequest) -> Executor:
    from mac_runner.executors.ray import RayExecutor

    return RayExecutor()


EXECUTORS: Final[Mapping[str, Callable[[SubmitRequest], Executor]]] = {"slurm": _slurm, "ray": _ray, "local": _local}


def _executor(request: SubmitRequest) -> Executor:
    if request.sbatch_args is not None and request.executor != "slurm":
        raise ConfigError(f"--sbatch-args is for --executor slurm, and this is {request.executor}: leave it out")
    if request.is_assumed_shared and request.executor == "local":
        raise ConfigError("--assume-shared is about other hosts, and local workers need none: leave it out")
    return EXECUTORS[request.executor](request)
