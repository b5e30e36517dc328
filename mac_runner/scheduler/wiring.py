"""What a run is made of: the parts that all pieces of the shell share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock
from mac_runner.scheduler.progress import Progress
from mac_runner.scheduler.recorder import RunLog
from mac_runner.scheduler.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """One run: what there is to play, the engines by name, and the log of the run as a whole."""

    work: Work
    backends: Mapping[str, Backend]
    log: RunLog
    concurrency: int | None
    clock: Clock
    stop: asyncio.Event
    progress: Progress

    @property
    def admits_by_tokens(self) -> bool:
        """Whether an engine of the run admits by tokens; known once all have started."""
        return any(backend.token_budget is not None for backend in self.backends.values())
