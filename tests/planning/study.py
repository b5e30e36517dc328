"""A small study for forecasts: its experiment file, and runs of it on an engine in simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mac_runner.clock import SystemClock
from mac_runner.plan import AutoShard
from mac_runner.planning.testing import SimulatedClock
from mac_runner.runs import RunRequest, Setup, claims, set_up
from mac_runner.store import open_run
from mac_runner.store.layout import EVENTS, WORKERS
from mac_runner.types import JsonObject, JsonValue
from tests.sim.conversations import run_conversations
from tests.sim.shuffled import simulate
from tests.sim.stepping import SleepingEngine


def experiment(conversations: int = 24, **model: JsonValue) -> JsonObject:
    """Discussions of three agents, of which one waits for the others, on one server."""
    config: JsonObject = {"model": "stub", "base_urls": ["http://127.0.0.1:9/v1"], "max_in_flight": 8}
    agents: list[JsonObject] = [
        {"agent_id": f"speaker_{number}", "role": "participant", "model": "panel", "max_tokens": 40}
        for number in range(3)
    ]
    agents[2]["role_specific_config"] = {"speak_after_within_round": ["speaker_0", "speaker_1"]}
    return {
        "experiment_metadata": {"experiment_name": "study"},
        "seed": 5,
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"max_rounds": 3, "topics": ["A bridge or a ferry?", "A library or a pool?"]},
        "model_definitions": {"panel": {"backend": "openai", "openai_config": {**config, **model}}},
        "agent_definitions": [*agents],
    }


def written(folder: Path, content: JsonObject, name: str = "study.yaml") -> Path:
    """The experiment as a file."""
    path = folder / name
    path.write_text(json.dumps(content))
    return path


@dataclass(frozen=True)
class LoopClock:
    """The time of a simulated loop, for the store's thread too."""

    loop: asyncio.AbstractEventLoop

    def utc_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        return self.loop.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


def played(file: Path, directory: Path, *, slots: int = 8, claimed: AutoShard | None = None) -> float:
    """Play an experiment into a real run directory, in simulated time; how many seconds it took.

    What is `claimed` is played shard after shard, by a worker that is gone before the run has ended.
    """
    chosen = set_up(RunRequest(file=file, out=directory, shard=claimed))
    (setup,) = chosen.setups
    if claimed is None:
        return simulate(lambda: _program([setup], slots))
    claims.begin(chosen, [setup.slug], SystemClock())
    worker = directory / WORKERS / "worker"
    worker.mkdir(parents=True)
    parts = [part for _, part in setup.parts(claimed, worker / EVENTS)]
    return simulate(lambda: _program(parts, slots))


async def _program(parts: Sequence[Setup], slots: int) -> float:
    clock, engine = LoopClock(asyncio.get_running_loop()), SleepingEngine(slots=slots)
    for setup in parts:
        with open_run(
            setup.invocation,
            clock=clock,
        ) as run:
            await run_conversations(
                environment=setup.environment(),
                environment_name=setup.environment_name,
                experiment_name=setup.name,
                work=run.unfinished(),
                backends={"panel": engine},
                recorder=run,
                retry=setup.experiment.retry_config,
                concurrency=None,
                clock=SimulatedClock(),
                stop=asyncio.Event(),
            )
    return clock.monotonic_s()
