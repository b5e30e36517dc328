"""The stage of the shell's tests: one call plays a toy experiment on simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from mac_runner.backends import Backend
from mac_runner.scheduler import Progress, RetryPolicy, RunResult, run_conversations
from mac_runner.simulation.testing import SimulatedClock, simulate
from tests.sim.engine import SimulatedEngine
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import ToyEnvironment, Work, tasks


@dataclass
class Stage:
    """A run about to be played; each field can be changed before `play`."""

    work: Work = field(default_factory=lambda: tasks(12))
    environment: ToyEnvironment = field(default_factory=ToyEnvironment)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_attempts=50))
    concurrency: int | None = None
    loop_seed: int = 0
    stop_at_s: float | None = None
    progress: Progress = field(default_factory=lambda: Progress(planned=0))
    fails_at_s: float | None = None
    ended_at_s: float = 0.0
    said: list[str] = field(default_factory=list)

    def engines(self, **settings: object) -> tuple[SimulatedEngine, SimulatedEngine]:
        """Two simulated engines of the same kind, and have the run use them."""
        first, second = SimulatedEngine(**settings), SimulatedEngine(**settings)  # type: ignore[arg-type]
        self.backends = {"model-0": first, "model-1": second}
        return first, second

    def play(self) -> RunResult:
        """Run it to its end."""
        return simulate(self.program, seed=self.loop_seed)

    async def program(self) -> RunResult:
        """The run, to be run on a simulated loop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        if self.stop_at_s is not None:
            loop.call_later(self.stop_at_s, stop.set)
        if self.fails_at_s is not None:
            loop.call_later(self.fails_at_s, self.recorder.fail)
        if not self.backends:
            self.engines()
        try:
            return await run_conversations(
                environment=self.environment,
                environment_name="toy",
                experiment_name="toys",
                work=iter(self.work),
                backends=self.backends,
                recorder=self.recorder,
                retry=self.retry,
                concurrency=self.concurrency,
                clock=SimulatedClock(),
                stop=stop,
                progress=self.progress,
                say=self.said.append,
            )
        finally:
            self.ended_at_s = loop.time()


@pytest.fixture
def stage() -> Callable[..., Stage]:
    """Makes stages."""
    return Stage
