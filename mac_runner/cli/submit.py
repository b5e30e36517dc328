"""`mac-run submit`: workers on a directory of shards, on this machine, Slurm or Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.errors import ConfigError
from mac_runner.executors.base import Executor, Job, Terminal, worker_argv
from mac_runner.runs.setup import RunRequest, set_up

SHARDS_PER_WORKER: Final = 8
"""More of them make the end of a job more even, and cost a directory each."""


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
    job = _job(request)
    if is_dry:
        with report() as stream:
            stream.write(executor.describe(job))
        return Exit.OK
    executor.check(job)
    terminal = Terminal(say=(lambda _line: None) if is_quiet else say, stopping=lambda stop: stop_on_signals(stop, say))
    return Exit(executor.submit(job, terminal))


def _job(request: SubmitRequest) -> Job:
    """The job, after a check of the experiment."""
    chosen = set_up(request.run)
    planned = sum(len(setup.tasks) for setup in chosen.setups)
    shards = request.shards or max(1, min(SHARDS_PER_WORKER * request.nodes, planned))
    file = request.run.file
    assert isinstance(file, Path), "a job is submitted from a file"
    directory = chosen.directory.absolute()
    return Job(
        name=chosen.name,
        directory=directory,
        argv=worker_argv(file, directory, shards, _options(request)),
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
    return EXECUTORS[request.executor](request)
