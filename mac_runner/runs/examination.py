"""Examines the models of an experiment one by one: starts each, asks it for one token, closes it.

Nothing is inferred from health pages or model lists. Each address of a model is examined alone, since together they
would cover for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from mac_runner.backends import Backend
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition
from mac_runner.errors import EngineDeadError, MacRunnerError, boundary
from mac_runner.plan import sampling_of
from mac_runner.registry import backend_specs
from mac_runner.runs.engines import backend_of
from mac_runner.runs.setup import Setup
from mac_runner.scheduler.engines import BACKEND_CLOSE_S_MAX
from mac_runner.types import FinishReason, Message, Prompt, Request, Sampling, Turn

_PROBE: Final = Prompt(messages=(Message(role="user", content="Say one word."),))
DOCTOR_PROBE_S_MAX: Final = 120.0
"""How long one token may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found about a model at one address. With a `problem`, figures may be missing."""

    model: str
    engine: str
    start_s: float | None = None
    capacity: int | None = None
    token_budget: int | None = None
    probe_s: float | None = None
    problem: str | None = None


async def examine(setup: Setup, clock: Clock, say: Callable[[str], None]) -> AsyncGenerator[Finding, None]:
    """Examine every model at every address, one engine at a time."""
    environment = setup.environment()
    for name, definition in setup.experiment.model_definitions.items():
        sampling = _sampling(setup, name)
        for engine, variant in _variants(definition):
            finding = Finding(model=name, engine=engine)
            try:
                backend = backend_of(setup, environment, name, variant, clock, say)
            except MacRunnerError as error:
                yield replace(finding, problem=str(error))
                continue
            has_probe = backend_specs()[variant.backend].is_probed
            yield await _examined(finding, backend, sampling if has_probe else None, clock)


async def _examined(finding: Finding, backend: Backend, sampling: Sampling | None, clock: Clock) -> Finding:
    try:
        began_at_s = clock.monotonic_s()
        async with _started(backend):
            started_at_s = clock.monotonic_s()
            finding = replace(
                finding,
                start_s=started_at_s - began_at_s,
                capacity=backend.capacity,
                token_budget=backend.token_budget,
            )
            if sampling is not None:
                await _probe(backend, finding.model, sampling)
                finding = replace(finding, probe_s=clock.monotonic_s() - started_at_s)
    except MacRunnerError as error:
        return replace(finding, problem=str(error))
    return finding


@asynccontextmanager
async def _started(backend: Backend) -> AsyncIterator[None]:
    try:
        with boundary(EngineDeadError, "it did not start"):
            await backend.start()
        yield
    finally:
        with boundary(EngineDeadError, "it did not close"):
            async with asyncio.timeout(BACKEND_CLOSE_S_MAX):
                await backend.close()


async def _probe(backend: Backend, model: str, sampling: Sampling) -> None:
    """Generate one token. Raises BackendError when that fails."""
    turn = Turn(round=0, agent="doctor", model=model, place=0)
    request = Request(conversation="doctor", turn=turn, prompt=_PROBE, sampling=sampling)
    try:
        async with asyncio.timeout(DOCTOR_PROBE_S_MAX):
            with boundary(EngineDeadError, "it made no token"):
                reply = await backend.generate(request)
    except TimeoutError:
        raise EngineDeadError(f"it made no token within {DOCTOR_PROBE_S_MAX:.0f} s") from None
    if reply.finish_reason is FinishReason.OVERFLOW:
        raise EngineDeadError("not even a prompt of three words fits the model's context")


def _sampling(setup: Setup, model: str) -> Sampling:
    """One token with the settings of the first agent that the model speaks for, since they may be at fault too."""
    own = (agent for agent in setup.experiment.agent_definitions if agent.model == model)
    return replace(next(map(sampling_of, own), Sampling()), max_tokens=1, seed=0)


def _variants(definition: ModelDefinition) -> Iterator[tuple[str, ModelDefinition]]:
    """The definition without its latency, at each of its addresses, with a name for the address."""
    plain = definition.model_copy(update={"latency": None})
    for described, settings in backend_specs()[plain.backend].variants(plain.settings):
        yield described, plain.with_settings(settings)
