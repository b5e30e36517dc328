"""The backend `scripted`: players that are programs, behind the contract of an engine.

A policy gets the prompt's `view` and a generator seeded with the request's sampling seed. It answers in the models' own
markup, so that everything but the engine is exercised. A program ignores all other sampling settings. Token counts are
estimates at 4 characters per token, and nothing is ever cached.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Annotated

from pydantic import Field

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.clock import Clock
from mac_runner.errors import RequestRefusedError, boundary
from mac_runner.registry import BackendSpec
from mac_runner.section import IDENTITY, RUNTIME, Section, Text
from mac_runner.types import Reply, Request, TokenCount

CHARS_PER_TOKEN = 4


class ScriptedConfig(Section):
    """Players that are programs: the environment supplies them, nothing else is needed."""

    policy: Annotated[Text, IDENTITY]
    """Which scripted player of the environment answers."""
    capacity: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests are answered at once."""
    latency_ms: Annotated[float, RUNTIME, Field(ge=0, le=600_000)] = 0.0
    """How long each answer is made to take."""


class ScriptedBackend(Backend):
    """Answers each request with `policy`, after `latency_ms` milliseconds."""

    def __init__(
        self, *, policy: Callable[[object, Random], str], capacity: int, latency_ms: float, clock: Clock
    ) -> None:
        self._policy = policy
        self._capacity = capacity
        self._latency_s = latency_ms / 1000
        self._clock = clock

    @property
    def capacity(self) -> int:
        """As configured: a program has no KV cache to run out of."""
        return self._capacity

    async def generate(self, request: Request) -> Reply:
        # Even without a latency the loop gets its turn, so that replies come in one by one, as an engine's do.
        await self._clock.sleep(self._latency_s)
        with boundary(RequestRefusedError, "the scripted player failed"):
            text = self._policy(request.prompt.view, Random(request.sampling.seed))  # noqa: S311 - play, not secrecy
        return Reply(
            text=text, tokens=TokenCount(prompt=_tokens(request.prompt.size_chars), completion=_tokens(len(text)))
        )


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def _build(request: BackendRequest[ScriptedConfig]) -> ScriptedBackend:
    request.refuse(Unsupported(tokens=True))
    settings = request.settings
    return ScriptedBackend(
        policy=request.policy_of(settings.policy),
        capacity=settings.capacity,
        latency_ms=settings.latency_ms,
        clock=request.clock,
    )


SPEC = BackendSpec(
    settings=ScriptedConfig,
    build=_build,
    describe=lambda settings: f"scripted, {settings.policy}",
    is_probed=False,
    policy_key="policy",
)
