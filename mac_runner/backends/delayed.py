"""A backend whose replies take as long as the latency model says, in real time.

For trying out on a fast engine, or on programs, how a run goes on a slow one. The slot is held meanwhile, as it would
be by the engine; what the engine took by itself counts, so that a slower one is not made slower still. Replies are not
changed: how long they took shows in the timing and in the event log, as always.
"""

from __future__ import annotations

from mac_runner.backends.base import Backend
from mac_runner.clock import Clock
from mac_runner.config import EngineLatency
from mac_runner.types import Reply, Request


class DelayedBackend:
    """Passes everything on to `backend`, and holds its replies back until their time."""

    def __init__(self, backend: Backend, latency: EngineLatency, clock: Clock) -> None:
        self._backend = backend
        self._latency = latency
        self._clock = clock

    @property
    def capacity(self) -> int:
        """That of the engine."""
        return self._backend.capacity

    @property
    def token_budget(self) -> int | None:
        """That of the engine."""
        return self._backend.token_budget

    @property
    def lookahead(self) -> int:
        """That of the engine."""
        return self._backend.lookahead

    async def start(self) -> None:
        """Start the engine."""
        await self._backend.start()

    async def generate(self, request: Request) -> Reply:
        """The engine's reply, not before its time. An error of the engine is not held back."""
        sent_at_s = self._clock.monotonic_s()
        reply = await self._backend.generate(request)
        due_at_s = sent_at_s + self._latency.generation_ms(reply) / 1000
        await self._clock.sleep(max(0.0, due_at_s - self._clock.monotonic_s()))
        return reply

    async def close(self) -> None:
        """Close the engine."""
        await self._backend.close()
