"""Requests to one model: each waits for a slot in the order in which it came, and is sent until it is answered.

A run of conversations has the scheduler for this. `InferenceEngine` has callers that each wait for one reply, so
nothing here knows of conversations. What follows a fault is decided by `scheduler/engine_policy.py`, as in a run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from mac_runner.backends.base import Backend, Waiting, destination, isolates, on_resize
from mac_runner.clock import Clock
from mac_runner.config import RetryConfig
from mac_runner.errors import BackendError, EngineDeadError, TransientBackendError
from mac_runner.fleet.model import OnEvent
from mac_runner.scheduler.attempt import where
from mac_runner.scheduler.engine_policy import (
    EngineState,
    Fail,
    GiveUpEngine,
    RequestState,
    Retry,
    next_step,
)
from mac_runner.scheduler.engines import generate
from mac_runner.types import JsonObject, Reply, Request


class Gate:
    """Lets in as many as `limit` says, in the order in which they came. `renew` after the limit has changed."""

    def __init__(self, limit: Callable[[], int]) -> None:
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
class _Call:
    """One request over all its sendings."""

    request: Request
    fields: JsonObject
    """Those of each event about it."""
    state: RequestState
    ready_at_s: float
    """Since when it has waited for a slot."""
    begun_s: float = 0.0
    """The moment of the first sending."""
    deaths: int = 0
    """How often an engine died on it."""


class Dispatcher:
    """Sends the requests of one model. Its backend must have been started."""

    def __init__(self, backend: Backend, *, retry: RetryConfig, clock: Clock, on_event: OnEvent) -> None:
        self.backend = backend
        self._retry = retry
        self._clock = clock
        self._on_event = on_event
        self._engine = EngineState.of(backend.capacity, backend.lookahead)
        self._gate = Gate(lambda: backend.capacity + backend.lookahead)
        on_resize(backend, self._resized)

    def _resized(self) -> None:
        self._engine.resized(self.backend.capacity, self.backend.lookahead, self._clock.monotonic_s())
        self._gate.renew()

    async def answer(self, request: Request, fields: JsonObject) -> Reply:
        """The reply, after as many sendings as it takes. Raises a BackendError.

        `fields` are those of each event about the request. Waiting for a slot is not charged to its deadline.
        """
        asked_s = self._clock.monotonic_s()
        call = _Call(request, fields, RequestState(request.request_id, asked_s), asked_s)
        while True:
            await self._gate.enter(is_again=call.state.sending > 0)
            try:
                self._departs(call)
                reply = await self._sent(call)
                self._answered(call, reply)
                return reply
            except BackendError as fault:
                again = self._after(call, fault)
            finally:
                self._gate.leave()
            call.request = replace(request, is_suspect=again.is_suspect and isolates(self.backend))
            await self._clock.sleep(again.delay_s)
            call.ready_at_s = self._clock.monotonic_s()

    def _departs(self, call: _Call) -> None:
        state, now_s = call.state, self._clock.monotonic_s()
        waited_s = now_s - call.ready_at_s
        if not state.sending:
            call.begun_s, state.answers_before = now_s, self._engine.answers
            at = destination(self.backend, call.request)
            self._on_event("EVENT_INFER_START", call.fields | where(at) | {"queue_s": round(waited_s, 6)})
        state.charged_from_s += waited_s
        state.sending, state.sent_at_s = state.sending + 1, now_s

    async def _sent(self, call: _Call) -> Reply:
        state, waiting = call.state, Waiting()
        deadline_s = state.charged_from_s + self._retry.request_deadline_s - state.sent_at_s
        try:
            return await generate(self.backend, call.request, deadline_s=deadline_s, waiting=waiting)
        finally:
            state.charged_from_s += waiting.uncharged_s

    def _answered(self, call: _Call, reply: Reply) -> None:
        self._engine.answered()
        answered: JsonObject = {
            "tokens_out": reply.tokens.completion,
            "tokens_in": reply.tokens.prompt,
            "tokens_cached": reply.tokens.cached,
            "latency_ms": round(1000 * (self._clock.monotonic_s() - call.begun_s), 3),
            "sendings": call.state.sending,
        }
        self._on_event("EVENT_INFER_DONE", call.fields | where(reply.timing) | answered)

    def _after(self, call: _Call, fault: BackendError) -> Retry:
        """The next sending. Raises `fault` where there is none, EngineDeadError where the engine is given up."""
        request, state = call.request, call.state
        call.deaths += isinstance(fault, TransientBackendError) and fault.is_engine_death
        step = next_step(
            request.turn,
            state,
            fault,
            self._engine,
            name=request.turn.model,
            conversation=request.conversation,
            retry=self._retry,
            now_s=self._clock.monotonic_s(),
            deaths=call.deaths,
            server=None if fault.destination is None else fault.destination.server,
        )
        delay_s = step.delay_s if isinstance(step, Retry) else None
        said: JsonObject = {"sending": state.sending, "error": state.faults[-1], "delay_s": delay_s}
        name = "EVENT_GIVE_UP" if delay_s is None else "EVENT_RETRY"
        self._on_event(name, call.fields | where(fault.destination) | said)
        if isinstance(step, GiveUpEngine):
            raise EngineDeadError(
                f"{step.reason}; when it is back, ask again (`engine_patience_s` of `retry` says how long a request "
                "waits for it)"
            ) from fault
        if isinstance(step, Fail):
            raise fault
        return step
