"""`mac-run submit` and `merge`: a run by several workers, and one of parts from several machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from mac_runner.cli.options import OfRequest, Reading, argument, commands, option, switch
from mac_runner.cli.play import Resulting
from mac_runner.cli.process import Exit, report, say, stop_on_signals
from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.executors.base import DONE, Executor, Job, Terminal, worker_argv
from mac_runner.executors.local import LocalExecutor
from mac_runner.executors.ray import RayExecutor
from mac_runner.executors.slurm import SlurmExecutor
from mac_runner.plan import CLAIMED_MAX, AutoShard, parse_shard
from mac_runner.printable import counted
from mac_runner.runs.claims import check
from mac_runner.runs.play import Results, results_if_complete
from mac_runner.runs.recorded import recorded_plan
from mac_runner.runs.setup import ExperimentSet, set_up
from mac_runner.runs.summary import summary_of
from mac_runner.store import Disk, merge_runs, read_leases

SHARDS_PER_WORKER: Final = 8
"""More of them make the end of a job more even, and cost a claim each."""

_OF_WORKERS: Final = ("profile", "seed", "limit", "concurrency", "mirror", "overrides", "pull")
"""The options that each worker gets."""


EXECUTORS: Final[Mapping[str, Callable[[], Executor]]] = {
    "slurm": SlurmExecutor,
    "ray": RayExecutor,
    "local": LocalExecutor,
}


@dataclass(frozen=True, kw_only=True)
class Submit(OfRequest, Resulting):
    """Run the experiment in FILE by N workers in one run directory: each is mac-run FILE --shard auto/M --out DIR.

    A worker that is lost, or ends with 3, is started again. With slurm the command returns once the job is queued; with
    ray and local it stays until the end, and Ctrl-C ends the workers.

    Exit codes: 0 submitted or all finished, 1 finished with failed conversations, 2 bad input, 3 interrupted: the same
    command goes on, 4 storage failed.
    """

    file: Path = argument("FILE")
    executor: str = option(
        "Where the workers run: as a Slurm job array, as Ray tasks, or on this machine.",
        type=click.Choice([*EXECUTORS]),
        required=True,
    )
    nodes: int = option("How many workers: one on each of N nodes.", "N", required=True)
    shards: int | None = option("Cut the experiment into M shards [8 for each worker].", "M")
    gpus: int | None = option("GPUs of each worker [as many as its node has].", "N")
    concurrency: int | None = option("Requests of each worker in flight, at most.", "N")
    sbatch_args: str | None = option("Flags of sbatch, such as '--partition=gpu --time=8:00:00'; for slurm.", "FLAGS")
    assume_shared: bool = switch("Every node sees DIR at the same path, though its filesystem does not look shared.")
    dry_run: bool = switch("Print the script or the commands; touch nothing.")

    def work(self) -> Exit:
        executor = self._executor()
        chosen = self._claimed()
        job = self._job(chosen)
        if self.dry_run:
            with report() as stream:
                stream.write(executor.describe(job))
            return Exit.OK
        if (complete := results_if_complete(chosen, SystemClock())) is not None:
            self.say(f"{chosen.directory}: {complete.ended}; nothing to submit")
            return self.results(complete, chosen.directory)
        for warning in chosen.warnings:
            self.say(f"warning: {warning}")
        executor.check(job)
        code = Exit(executor.submit(job, Terminal(say=self.say, stopping=lambda stop: stop_on_signals(stop, say))))
        # A job that was handed over has only begun.
        if code in DONE and (complete := results_if_complete(chosen, SystemClock())) is not None:
            return self.results(complete, chosen.directory)
        return code

    def _executor(self) -> Executor:
        if self.sbatch_args is not None and self.executor != "slurm":
            raise ConfigError(f"--sbatch-args is for --executor slurm, and this is {self.executor}: leave it out")
        if self.assume_shared and self.executor == "local":
            raise ConfigError("--assume-shared is about other hosts, and local workers need none: leave it out")
        return EXECUTORS[self.executor]() if self.sbatch_args is None else SlurmExecutor(self.sbatch_args)

    def _claimed(self) -> ExperimentSet:
        """What the workers will play, checked as each of them would: the experiment, and the directory."""
        chosen = set_up(self.request())
        known = (record.of for setup in chosen.setups if (record := read_leases(Disk(), setup.layout)) is not None)
        wanted = -(-SHARDS_PER_WORKER * self.nodes // len(chosen.setups))
        shard = parse_shard(f"auto/{self.shards or next(known, min(wanted, CLAIMED_MAX))}")
        assert isinstance(shard, AutoShard), "auto/N is one"
        chosen = replace(chosen, claimed=shard)
        check(chosen)
        return chosen

    def _job(self, chosen: ExperimentSet) -> Job:
        directory, shard = chosen.directory.absolute(), chosen.claimed
        assert shard is not None, "the workers claim shards"
        return Job(
            name=chosen.name,
            directory=directory,
            argv=worker_argv(self.file, directory, shard, self.typed(*_OF_WORKERS)),
            working_directory=Path.cwd(),
            workers=self.nodes,
            gpus=self.gpus or 0,
            is_assumed_shared=self.assume_shared,
        )


@dataclass(frozen=True, kw_only=True)
class Merge(Reading, Resulting):
    """Make one new run directory OUT of the run directories RUN of one experiment, such as those of --shard I/N.

    They are only read. Each conversation must come from one of them; what none has can be run with --out OUT. Results
    that are damaged or lost are refused, each by name, and nothing is written.

    Exit codes: 0 merged, 1 merged and there are failed conversations, 2 they cannot be merged, 4 storage failed,
    5 one of them is being run.
    """

    target: Path = argument("OUT")
    sources: tuple[Path, ...] = argument("RUN...", nargs=-1, required=True)
    quiet: bool = switch("Print nothing but errors and what is missing.")

    def directories(self) -> Iterable[Path]:
        return self.sources

    def work(self) -> Exit:
        """Print the summary of the whole; what is still missing is said even if quiet."""
        merged = merge_runs(self.target, self.sources, summarise=summary_of, plan=recorded_plan, clock=SystemClock())
        counts = merged.contents.counts
        exit_code = self.results(Results(merged.summary, counts.in_words), self.target)
        is_whole = not merged.missing and counts.done == counts.planned
        if not self.quiet:
            for note in merged.notes:
                say(note)
            say(f"merged {counted(len(self.sources), 'runs')} into {self.target}: {counts.in_words}")
        elif not is_whole:
            say(f"{self.target}: {counts.in_words}")
        for warning in merged.warnings:
            say(warning)
        if merged.missing:
            say(f"not among them: {', '.join(f'shard {shard}' for shard in merged.missing)}")
        if not is_whole:
            say(f"what is missing can be run with: mac-run FILE --out {self.target}")
        return exit_code


VERBS = commands(submit=Submit, merge=Merge)
