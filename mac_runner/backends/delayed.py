"""A backend whose replies take as long as the latency model says, in real time.

It shows on a fast engine, or with programs, how a run would go on a slow one. The slot is held meanwhile, as the slow
engine would hold it; the time that the engine itself takes counts, so a slower one is not made slower still. Replies
are not changed; how long they took shows in the timing and in the event log, as always.
"""

from __future__ import annotations

from mac_runner.backends.base import Backend
from mac_runner.backends.passing import PassingBackend
from mac_runner.clock import Clock
from mac_runner.latency import EngineLatency
from mac_runner.types import Reply, Request


class DelayedBackend(PassingBackend):
    """Passes everything on to `backend`, and holds its replies back until their time."""

    def __init__(self, backend: Backend, latency: EngineLatency, clock: Clock) -> None:
        super().__init__(backend)
        self._latency = latency
        self._clock = clock

    async def generate(self, request: Request) -> Reply:
        """The engine's reply, not before its time. An error of the engine is not held back."""
        sent_at_s = self._clock.monotonic_s()
        reply = await super().generate(request)
        due_at_s = sent_at_s + self._latency.generation_ms(reply) / 1000
        await self._clock.sleep(max(0.0, due_at_s - self._clock.monotonic_s()))
        return reply
