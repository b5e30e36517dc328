"""Studies to simulate: experiments of scripted players whose replies take tokens, on engines of a step model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mac_runner.backends import Backend
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.planning.testing import EngineModel, Load, SimulatedClock, Study, scripted_replies, simulate
from mac_runner.runs import RunRequest, set_up
from mac_runner.scheduler import Job, Progress, Source, run_pooled
from mac_runner.scheduler.testing import Unrecorded
from mac_runner.spec import RetryConfig

ROOT = Path(__file__).parents[2]
STEPS = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)


def drawn_tokens(random: Random) -> int:
    """The tokens of a reply: 8 to 40."""
    return random.randint(8, 40)


def study(
    experiment: str = "echo",
    policy: str = "echo",
    *,
    conversations: int,
    client_ms: float = 0.0,
    tokens_of: Callable[[Random], int] = drawn_tokens,
    **model: Any,
) -> Study:
    """An experiment of this repository, all models of it on one engine called `engine`."""
    overrides = (f"conversation_config.conversations={conversations}",)
    setup = set_up(RunRequest(file=ROOT / f"experiments/{experiment}.yaml", overrides=overrides)).setups[0]
    environment = setup.environment()
    load = Load(
        source=Source(
            environment=environment,
            environment_name=setup.environment_name,
            experiment_name=setup.name,
            engines=dict.fromkeys(setup.experiment.model_definitions, "engine"),
            recorder=Unrecorded(),
            retry=RetryConfig(),
        ),
        tasks=setup.tasks,
        replies=scripted_replies(environment.policy(policy), chars_per_token=CHARS_PER_TOKEN, tokens_of=tokens_of),
    )
    engine = EngineModel(**{"steps": STEPS, **model})
    return Study(loads=[load], engines={"engine": engine}, client_ms=client_ms)


class _AllOf:
    def __init__(self, load: Load) -> None:
        self.source = load.source
        self.tasks = load.tasks()

    async def take(self) -> Job | None:
        task = next(self.tasks, None)
        return None if task is None else Job(self.source, task, ())

    def settled(self, source: Source) -> None: ...


def played(asked: Study, backend: Backend) -> tuple[float, Progress]:
    """How long a study takes on a backend, in simulated time, and its totals."""
    progress = Progress(planned=asked.conversations)

    async def program() -> float:
        await run_pooled(
            work=_AllOf(asked.loads[0]),
            backends={"engine": backend},
            log=Unrecorded(),
            concurrency=None,
            clock=SimulatedClock(),
            stop=asyncio.Event(),
            progress=progress,
        )
        return asyncio.get_running_loop().time()

    return simulate(program), progress
