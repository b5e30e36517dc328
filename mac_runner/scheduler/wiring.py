"""What a run is made of: the parts that all pieces of the shell share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock
from mac_runner.environments.base import Environment
from mac_runner.scheduler.progress import Progress
from mac_runner.scheduler.recorder import Recorder
from mac_runner.scheduler.retry import RetryPolicy
from mac_runner.types import RecordedReply, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """One run. `work` yields the tasks still to do, each with the replies recorded for it so far."""

    environment: Environment
    environment_name: str
    experiment_name: str
    work: Iterator[tuple[Task, tuple[RecordedReply, ...]]]
    backends: Mapping[str, Backend]
    recorder: Recorder
    retry: RetryPolicy
    concurrency: int | None
    clock: Clock
    stop: asyncio.Event
    progress: Progress

    @property
    def budgeted_models(self) -> tuple[str, ...]:
        """The models that admit by tokens."""
        return tuple(name for name, backend in self.backends.items() if backend.token_budget is not None)
