"""`mac-run FILE`: run an experiment to its end, or as far as it gets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

from mac_runner.backends import Backend
from mac_runner.cli.collecting import seldom_collecting
from mac_runner.cli.connections import concurrency_within_descriptors, connections_of
from mac_runner.cli.exits import Exit
from mac_runner.cli.looping import run as run_loop
from mac_runner.cli.printing import report, say
from mac_runner.cli.results import print_summary, summary_of
from mac_runner.cli.setup import Invocation, Setup, set_up
from mac_runner.cli.stopping import stop_on_signals
from mac_runner.clock import Clock, SystemClock
from mac_runner.config import Loaded
from mac_runner.scheduler import Progress, RetryPolicy, RunResult, run_conversations
from mac_runner.status import Display, Meter, choose_display, read_progress, tick
from mac_runner.store import Run, Survey, is_complete, open_run, read_run, survey


def run_experiment(invocation: Invocation, loaded: Loaded | None = None) -> Exit:
    """Run, print who won, and say how it ended."""
    setup = set_up(invocation, loaded)
    if is_complete(
        setup.directory,
        experiment_name=setup.name,
        resolved=setup.resolved,
        tasks=setup.tasks,
        shard=setup.shard,
    ):
        planned = len(setup.tasks)
        _say(invocation, f"{setup.directory}: all {planned} conversations have ended already; nothing to run")
        return print_summary(summary_of(read_run(setup.directory)), is_quiet=invocation.is_quiet)
    return carry_out(invocation, setup)


def carry_out(invocation: Invocation, setup: Setup, *, is_retried: Callable[[str], bool] | None = None) -> Exit:
    """Play what is left of a setup, and of what has failed in it what `is_retried`."""
    clock = SystemClock()
    display = choose_display(sys.stderr, live=invocation.is_live, quiet=invocation.is_quiet)
    concurrency = concurrency_within_descriptors(
        display.say,
        wanted=connections_of(setup.experiment.model_definitions.values()),
        concurrency=invocation.concurrency,
    )
    backends = setup.backends(clock, display.say, is_pulling=invocation.is_pulling)
    with open_run(
        setup.directory,
        experiment_name=setup.name,
        resolved=setup.resolved,
        tasks=setup.tasks,
        clock=clock,
        shard=setup.shard,
        is_retried=is_retried,
        transcript_bytes_min=setup.environment.transcript_bytes_min,
        restore=setup.restoration,
        say=display.say,
    ) as run:
        with seldom_collecting():
            result = run_loop(_play(setup, backends, run, display, clock, concurrency=concurrency))
        summary = summary_of(run.contents())
        run.write_summary(summary)
        counts = run.counts
    exit_code = print_summary(summary, is_quiet=invocation.is_quiet)
    if result.interrupted:
        done = f"{counts.done} of {counts.planned} conversations have ended"
        _say(invocation, f"interrupted: {done}; run the same command again to go on")
        return Exit.INTERRUPTED
    _say(invocation, f"written to {setup.directory}")
    return exit_code


def describe_run(invocation: Invocation, loaded: Loaded | None = None) -> Exit:
    """`--dry-run`: what would run and how much is left; touches nothing."""
    setup = set_up(invocation, loaded)
    setup.backends(SystemClock(), lambda line: _say(invocation, line))
    found = _survey(setup)
    experiment = setup.experiment
    models = ", ".join(f"{name} ({definition.backend})" for name, definition in experiment.model_definitions.items())
    lines = [
        f"experiment     {setup.name}, profile {experiment.profile}, seed {experiment.seed}",
        f"environment    {experiment.conversation_config.environment}",
        f"models         {models}",
        f"run directory  {setup.directory}{'' if setup.shard is None else f', shard {setup.shard}'}",
        f"conversations  {found.planned} asked for: {found.finished} finished, {found.failed} failed, "
        f"{found.half_done} half done ({found.recorded_replies} replies recorded), {found.untouched} not begun",
    ]
    lines += [f"changed        {change}" for change in found.changed_settings]
    with report() as stream:
        stream.write("\n".join(lines) + "\n")
    return Exit.OK


def _survey(setup: Setup) -> Survey:
    return survey(
        setup.directory,
        experiment_name=setup.name,
        resolved=setup.resolved,
        tasks=setup.tasks,
        shard=setup.shard,
    )


async def _play(
    setup: Setup,
    backends: Mapping[str, Backend],
    run: Run,
    display: Display,
    clock: Clock,
    *,
    concurrency: int | None,
) -> RunResult:
    """The scheduler and the status view side by side, until the one is done."""
    stop = asyncio.Event()
    counts = run.counts
    progress = Progress(planned=counts.planned, finished=counts.finished, failed=counts.failed)
    with stop_on_signals(stop, display.say):
        showing = asyncio.create_task(_show(display, progress, setup, clock))
        try:
            return await run_conversations(
                environment=setup.environment,
                environment_name=setup.experiment.conversation_config.environment,
                experiment_name=setup.name,
                work=run.unfinished(),
                backends=backends,
                recorder=run,
                retry=RetryPolicy.of(setup.experiment.retry_config),
                concurrency=concurrency,
                clock=clock,
                stop=stop,
                progress=progress,
                say=display.say,
            )
        finally:
            showing.cancel()
            await asyncio.wait([showing])


async def _show(display: Display, progress: Progress, setup: Setup, clock: Clock) -> None:
    meter = Meter()
    profile = setup.experiment.profile
    await tick(
        display, lambda: meter.frame(read_progress(progress, experiment_name=setup.name, profile=profile)), clock
    )


def _say(invocation: Invocation, text: str) -> None:
    if not invocation.is_quiet:
        say(text)
