"""Run the conversations that are still to do, of one experiment or of several: the scheduler's ways in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock
from mac_runner.environments.base import Environment
from mac_runner.scheduler.engines import started
from mac_runner.scheduler.progress import Progress
from mac_runner.scheduler.recorder import Recorder, RunLog
from mac_runner.scheduler.retry import RetryPolicy
from mac_runner.scheduler.shell import Shell
from mac_runner.scheduler.wiring import Wiring
from mac_runner.scheduler.work import SoleWork, Source, Work
from mac_runner.types import RecordedReply, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What this session did. `interrupted`: there is work left, and the same command goes on with it."""

    finished: int
    failed: int
    interrupted: bool


async def run_conversations(
    *,
    environment: Environment,
    environment_name: str,
    experiment_name: str,
    work: Iterator[tuple[Task, tuple[RecordedReply, ...]]],
    backends: Mapping[str, Backend],
    recorder: Recorder,
    retry: RetryPolicy,
    concurrency: int | None,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """Play every conversation of `work` to its end and publish it, going on from its recorded replies.

    All of them are of one experiment, whose models `backends` serves, each under its name. Otherwise as `run_pooled`.
    """
    source = Source(
        environment=environment,
        environment_name=environment_name,
        experiment_name=experiment_name,
        engines={name: name for name in backends},
        recorder=recorder,
        retry=retry,
    )
    return await run_pooled(
        work=SoleWork(source, work),
        backends=backends,
        log=recorder,
        concurrency=concurrency,
        clock=clock,
        stop=stop,
        progress=progress,
        say=say,
    )


async def run_pooled(
    *,
    work: Work,
    backends: Mapping[str, Backend],
    log: RunLog,
    concurrency: int | None,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """Play every conversation of `work`, of whatever experiment, on the engines that all of them share.

    When `stop` is set nothing new departs, what is in flight is awaited for SHUTDOWN_GRACE_S, and conversations half
    done stay unpublished. Raises the error that ended the run: EngineDeadError, StoreError, ConfigError,
    RunDirectoryError when recorded replies were given to other prompts than this version renders, or a bug as it is.
    The backends are started here and closed in any case; `say` is told of those that take their time to start.
    """
    if not backends:
        raise ValueError("a run needs at least one backend")
    progress = Progress(planned=0) if progress is None else progress
    before_finished, before_failed = progress.finished, progress.failed
    wiring = Wiring(
        work=work,
        backends=backends,
        log=log,
        concurrency=concurrency,
        clock=clock,
        stop=stop,
        progress=progress,
    )
    async with started(backends, stop, clock=clock, say=say) as is_started:
        is_done = is_started and await Shell(wiring).run()
    return RunResult(
        finished=progress.finished - before_finished,
        failed=progress.failed - before_failed,
        interrupted=not is_done,
    )
