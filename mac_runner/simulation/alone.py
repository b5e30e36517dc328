"""An engine that serves each request as if there were no other: what a conversation takes at least."""

from __future__ import annotations

from typing import Final

from mac_runner.backends import Backend
from mac_runner.clock import Clock
from mac_runner.simulation.engine import EngineModel, sequence_of, served
from mac_runner.simulation.prefixes import KvCache
from mac_runner.simulation.replies import ReplySource
from mac_runner.types import FinishReason, Reply, Request

_CAPACITY: Final = 1_000_000


class AloneEngine(Backend):
    """A backend with a cache for each conversation, and a lane for each request."""

    capacity = _CAPACITY

    def __init__(self, model: EngineModel, replies: ReplySource, clock: Clock) -> None:
        self._model = model
        self._replies = replies
        self._clock = clock
        self._caches: dict[str, KvCache] = {}

    async def generate(self, request: Request) -> Reply:
        """The reply, after the time that a lane takes which does nothing else."""
        reply = self._replies(request)
        sequence = sequence_of(request.prompt, reply, self._model)
        if sequence is None:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        cache = self._caches.setdefault(request.conversation, self._model.cache())
        lane = self._model.lane(cache)
        lane.add(sequence, 0.0)
        while lane.due_s is not None:
            lane.end_steps()
        await self._clock.sleep(lane.use.busy_s)
        return served(reply, sequence)
