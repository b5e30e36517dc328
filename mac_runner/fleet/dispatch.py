"""Requests to one model: each waits for a slot in the order in which it came, and is sent until it is answered.

A run of conversations has the scheduler for this. `InferenceEngine` has callers that each wait for one reply, so its
policy is smaller: nothing here knows of conversations.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from mac_runner.backends.base import Backend, destination, isolates, on_resize
from mac_runner.clock import Clock
from mac_runner.config import RetryConfig
from mac_runner.errors import (
    RETRY_AFTER_S_MAX,
    BackendError,
    EngineCrashedError,
    EngineDeadError,
    RequestTimeoutError,
    TransientBackendError,
    boundary,
)
from mac_runner.fleet.model import OnEvent
from mac_runner.types import Destination, JsonObject, Reply, Request

DEATHS_TO_SUSPECT: Final = 2
"""A request that so many engines died on is sent alone to one of them, where the backend can do that."""
DEATHS_MAX: Final = 3
"""A request that so many engines died on is given up."""


class Gate:
    """Lets in as many as `limit` says, in the order in which they came. `renew` after the limit has changed."""

    def __init__(self, limit: Callable[[], float]) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def inside(self) -> int:
        """How many are in."""
        return self._inside

    async def enter(self, *, is_again: bool = False) -> None:
        """Wait for a slot; one that comes again waits before all others."""
        if self._inside < self._limit() and (is_again or not self._waiting):
            self._inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if is_again else self._waiting.append)(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self.leave()  # It was let in, and was cancelled before it went on.
            raise

    def leave(self) -> None:
        """Give the slot back."""
        self._inside -= 1
        self.renew()

    def renew(self) -> None:
        """Let in those that there is room for now."""
        waiting = iter(tuple(self._waiting))
        while self._inside < self._limit() and (turn := next(waiting, None)) is not None:
            if turn.cancelled():
                continue  # It takes itself out.
            self._waiting.remove(turn)
            self._inside += 1
            turn.set_result(None)


@dataclass(slots=True)
class _Sendings:
    """What became of a request so far."""

    count: int = 0
    attempts: int = 0
    deaths: int = 0
    begun_s: float = 0.0
    silent_since_s: float | None = None
    """Since when no server of the model could be reached."""


class Dispatcher:
    """Sends the requests of one model. Its backend must have been started."""

    def __init__(
        self, backend: Backend, *, retry: RetryConfig, clock: Clock, on_event: OnEvent, is_queued_inside: bool = False
    ) -> None:
        """`is_queued_inside`: requests of several models share places, and wait for their turn in the backend."""
        self.backend = backend
        self._retry = retry
        self._clock = clock
        self._on_event = on_event
        self._is_queued_inside = is_queued_inside
        self._gate = Gate(self._limit)
        on_resize(backend, self._gate.renew)

    def _limit(self) -> float:
        if self._is_queued_inside:
            return float("inf")
        return self.backend.capacity + self.backend.lookahead

    async def answer(self, request: Request, fields: JsonObject) -> Reply:
        """The reply, after as many sendings as it takes. Raises a BackendError.

        `fields` are those of each event about the request.
        """
        asked_s, state = self._clock.monotonic_s(), _Sendings()
        while True:
            await self._gate.enter(is_again=state.count > 0)
            now_s = self._clock.monotonic_s()
            if not state.count:
                state.begun_s = now_s
                at = destination(self.backend, request)
                self._on_event("EVENT_INFER_START", fields | _where(at) | {"queue_s": round(now_s - asked_s, 6)})
            state.count += 1
            try:
                reply = await self._sent(request, state.begun_s + self._retry.request_deadline_s - now_s)
                self._answered(reply, fields, state)
                return reply
            except BackendError as fault:
                pause_s = self._pause_after(fault, state)
                name = "EVENT_GIVE_UP" if pause_s is None else "EVENT_RETRY"
                said: JsonObject = {"sending": state.count, "error": str(fault), "delay_s": pause_s}
                self._on_event(name, fields | _where(fault.destination) | said)
                if pause_s is None:
                    raise
            finally:
                self._gate.leave()
            if state.deaths >= DEATHS_TO_SUSPECT:
                request = replace(request, is_suspect=isolates(self.backend))
            if pause_s:
                await self._clock.sleep(pause_s)

    async def _sent(self, request: Request, deadline_s: float) -> Reply:
        with boundary(EngineCrashedError, "it broke down", model=request.turn.model):
            try:
                async with asyncio.timeout(deadline_s):
                    return await self.backend.generate(request)
            except TimeoutError:
                raise RequestTimeoutError("no reply before the request's deadline") from None

    def _answered(self, reply: Reply, fields: JsonObject, state: _Sendings) -> None:
        took_s = self._clock.monotonic_s() - state.begun_s
        timing = reply.timing
        answered: JsonObject = {
            "tokens_out": reply.tokens.completion,
            "tokens_in": reply.tokens.prompt,
            "tokens_cached": reply.tokens.cached,
            "latency_ms": round(1000 * took_s, 3),
            "sendings": state.count,
        }
        self._on_event(
            "EVENT_INFER_DONE",
            fields | {"server": timing.server, "lane": timing.lane, "gpu": timing.gpu} | answered,
        )

    def _pause_after(self, fault: BackendError, state: _Sendings) -> float | None:
        """How long to wait before the next sending; None where there is none. Raises EngineDeadError."""
        if not isinstance(fault, TransientBackendError):
            return None
        now_s = self._clock.monotonic_s()
        state.attempts += fault.is_attempt and not fault.is_engine_death
        state.deaths += fault.is_engine_death
        if state.deaths >= DEATHS_MAX or state.attempts >= self._retry.max_attempts:
            return None
        if now_s - state.begun_s >= self._retry.request_deadline_s:
            return None
        if fault.goes_elsewhere:
            return 0.0
        if not fault.is_unreachable:
            state.silent_since_s = None
        elif state.silent_since_s is None:
            state.silent_since_s = now_s
        elif now_s - state.silent_since_s >= self._retry.engine_patience_s:
            raise EngineDeadError(f"no answer for {self._retry.engine_patience_s:g} s: {fault.words}") from fault
        backoff_s = min(self._retry.backoff_s_max, self._retry.backoff_s * 2.0 ** min(state.count - 1, 30))
        return backoff_s if fault.retry_after_s is None else min(fault.retry_after_s, RETRY_AFTER_S_MAX)


def _where(at: Destination | None) -> JsonObject:
    return {
        "server": None if at is None else at.server,
        "lane": None if at is None else at.lane,
        "gpu": None if at is None else at.gpu,
    }
