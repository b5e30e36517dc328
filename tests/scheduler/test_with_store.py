"""The whole way on real parts: a discussion with scripted players into a real run directory, on the real loop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.clock import SystemClock
from mac_runner.config import Loaded, load_experiment
from mac_runner.environments import build_environment
from mac_runner.plan import plan_of
from mac_runner.scheduler import RetryPolicy, RunResult, run_conversations
from mac_runner.store import open_run, without_timing
from mac_runner.types import JsonValue, Reply, Request

EXAMPLE = Path(__file__).parents[2] / "experiments" / "discussion_small.yaml"


class StoppingBackend(ScriptedBackend):
    """Asks for a stop at its n-th request."""

    stop: asyncio.Event
    left: int | None = None

    async def generate(self, request: Request) -> Reply:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.stop.set()
        return await super().generate(request)


def play(loaded: Loaded, directory: Path, *, concurrency: int | None, stop_after: int | None = None) -> RunResult:
    experiment, clock = loaded.experiment, SystemClock()
    environment = build_environment(experiment)

    async def program() -> RunResult:
        stop = asyncio.Event()
        with open_run(
            directory,
            experiment_name="talk",
            resolved=loaded.resolved,
            tasks=plan_of(experiment, environment.lineup),
            clock=clock,
        ) as run:
            backend = StoppingBackend(policy=environment.policy("discussant"), capacity=64, latency_ms=0.0, clock=clock)
            backend.stop, backend.left = stop, stop_after
            return await run_conversations(
                environment=environment,
                environment_name="discussion",
                experiment_name="talk",
                work=run.unfinished(),
                backends={"panel": backend},
                recorder=run,
                retry=RetryPolicy.of(experiment.retry_config),
                concurrency=concurrency,
                clock=clock,
                stop=stop,
            )

    return asyncio.run(program())


def transcripts(directory: Path) -> dict[str, JsonValue]:
    files = sorted((directory / "transcripts").glob("*.json"))
    return {file.name: without_timing(json.loads(file.read_bytes())) for file in files}


def test_a_discussion_runs_into_a_run_directory_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    loaded = load_experiment(EXAMPLE)
    whole = play(loaded, tmp_path / "whole", concurrency=8)
    first = play(loaded, tmp_path / "parts", concurrency=3, stop_after=37)
    second = play(loaded, tmp_path / "parts", concurrency=256)

    assert (whole.finished, whole.failed, whole.interrupted) == (20, 0, False)
    assert first.interrupted
    assert not second.interrupted
    assert first.finished + second.finished == 20
    assert transcripts(tmp_path / "parts") == transcripts(tmp_path / "whole")
