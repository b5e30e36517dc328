"""The conversations of a single experiment, played as a run plays those of several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from mac_runner.backends import Backend
from mac_runner.clock import Clock
from mac_runner.environments.base import Environment
from mac_runner.scheduler import Job, Progress, Recorder, RunResult, Source, run_pooled
from mac_runner.spec import RetryConfig
from mac_runner.types import RecordedReply, Task


class SoleWork:
    """The conversations of a single experiment."""

    def __init__(self, source: Source, tasks: Iterator[tuple[Task, tuple[RecordedReply, ...]]]) -> None:
        self._source = source
        self._tasks = tasks

    async def take(self) -> Job | None:
        """The next in order of the plan."""
        item = next(self._tasks, None)
        return None if item is None else Job(self._source, *item)

    def settled(self, source: Source) -> None:
        """Do nothing: the recorder is closed by its owner."""


async def run_conversations(
    *,
    environment: Environment,
    environment_name: str,
    experiment_name: str,
    work: Iterator[tuple[Task, tuple[RecordedReply, ...]]],
    backends: Mapping[str, Backend],
    recorder: Recorder,
    retry: RetryConfig,
    concurrency: int | None,
    clock: Clock,
    stop: asyncio.Event,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunResult:
    """Play the conversations of one experiment, as `run_pooled` does; `backends` serve its models by name."""
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
