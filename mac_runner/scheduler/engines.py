"""The backends of a run: started side by side, asked under a deadline, always closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from mac_runner.backends.base import WAITING, Backend, Waiting
from mac_runner.clock import Clock
from mac_runner.errors import (
    EngineCrashedError,
    EngineDeadError,
    FormRefusedError,
    MacRunnerError,
    RequestTimeoutError,
    TransientBackendError,
    boundary,
    said_by,
)
from mac_runner.scheduler.policies import Policies
from mac_runner.types import REPLY_CHARS_MAX, THINKING_CHARS_MAX, FinishReason, Reply, Request

BACKEND_CLOSE_S_MAX: Final = 10.0
"""How long closing an engine may take."""
START_QUIET_S: Final = 1.0
"""An engine that starts within this time is not mentioned."""


@asynccontextmanager
async def started(
    backends: Mapping[str, Backend],
    stop: asyncio.Event,
    *,
    starting: Callable[[str], AbstractContextManager[None]],
    policies: Policies | None,
    clock: Clock,
    say: Callable[[str], None],
) -> AsyncIterator[bool]:
    """Run all backends inside the block; yields False when `stop` was set before they were ready.

    Each starts inside `starting` of its name, and then gets the weights that `policies` have for it.
    """
    start = partial(_start_one, starting=starting, policies=policies, notices=_StartNotices(clock, say))
    try:
        yield await _start(backends, stop, start)
    except BaseException:
        with suppress(MacRunnerError):  # The error in progress is the one to show.
            await _close(backends, policies)
        raise
    await _close(backends, policies)


async def generate(
    backend: Backend, request: Request, *, deadline_s: float, clock: Clock, waiting: Waiting | None = None
) -> Reply:
    """One reply within `deadline_s` seconds, cut to REPLY_CHARS_MAX characters. Raises a BackendError.

    Its thought is cut to THINKING_CHARS_MAX. `waiting` gets the time that the backend leaves `uncharged`. The reply is
    held to the backend's form, and takes as long as its latency says: the time that the engine itself takes counts.
    """
    with boundary(EngineCrashedError, "it broke down", model=request.turn.model):
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                if waiting is not None:
                    waiting.deadline = deadline
                    WAITING.set(waiting)
                reply = await _asked(backend, request, clock)
        except TimeoutError:
            raise RequestTimeoutError("no reply before the request's deadline") from None
    if reply.thinking is not None and len(reply.thinking) > THINKING_CHARS_MAX:
        reply = replace(reply, thinking=reply.thinking[:THINKING_CHARS_MAX])
    if len(reply.text) > REPLY_CHARS_MAX:
        return replace(reply, text=reply.text[:REPLY_CHARS_MAX], finish_reason=FinishReason.LENGTH)
    return reply


async def _asked(backend: Backend, request: Request, clock: Clock) -> Reply:
    """The backend's reply; ConnectionError and TimeoutError become TransientBackendError. No error is held back."""
    form, latency, sent_at_s = backend.form, backend.latency, clock.monotonic_s()
    sent = request if form is None else form.held(request)
    try:
        reply: object = await backend.generate(sent)
    except (ConnectionError, TimeoutError) as fault:
        raise TransientBackendError(said_by(fault), is_unreachable=isinstance(fault, ConnectionError)) from fault
    except FormRefusedError as fault:
        if form is None:
            raise
        raise form.refused(fault) from fault
    if not isinstance(reply, Reply):
        raise EngineDeadError(f"the `generate` of {type(backend).__name__} returned {type(reply).__name__}, no Reply")
    if form is not None:
        form.kept(sent)
    if latency is not None:
        due_at_s = sent_at_s + latency.generation_ms(reply) / 1000
        await clock.sleep(max(0.0, due_at_s - clock.monotonic_s()))
    return reply


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of several: the first of our own tree, otherwise the first."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, MacRunnerError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _start(
    backends: Mapping[str, Backend], stop: asyncio.Event, start: Callable[[str, Backend], Coroutine[None, None, None]]
) -> bool:
    try:
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(start(name, backend)) for name, backend in backends.items()]
            watch = group.create_task(_cancel_when(stop, starting))
            if starting:
                await asyncio.wait(starting)
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return not any(task.cancelled() for task in starting)


async def _start_one(
    name: str,
    backend: Backend,
    *,
    starting: Callable[[str], AbstractContextManager[None]],
    policies: Policies | None,
    notices: _StartNotices,
) -> None:
    with boundary(EngineDeadError, "it did not start", model=name):
        async with notices.around(name, backend):
            with starting(name):
                await backend.start()
            if policies is not None:
                await policies.started(name, backend)


class _StartNotices:
    """Reports an engine that starts slowly: that it is starting, and that it is ready."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say

    @asynccontextmanager
    async def around(self, name: str, backend: Backend) -> AsyncIterator[None]:
        """Report the start that happens inside the block, if it is slow."""
        began_at_s = self._clock.monotonic_s()
        notice = asyncio.create_task(self._notify_later(name))
        try:
            yield
        finally:
            notice.cancel()
        took_s = self._clock.monotonic_s() - began_at_s
        if took_s >= START_QUIET_S:
            self._say(
                f"model {name}: ready after {took_s:.1f} s, {backend.capacity or backend.lookahead} requests at once"
            )

    async def _notify_later(self, name: str) -> None:
        await self._clock.sleep(START_QUIET_S)
        self._say(f"model {name}: starting")


async def _cancel_when(stop: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


async def _close(backends: Mapping[str, Backend], policies: Policies | None) -> None:
    """Close all of them, even when cancelled meanwhile: an open engine would outlive the run."""
    if policies is not None:
        policies.closing(backends)
    closing = asyncio.create_task(_close_each(backends))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.wait([closing])
        with suppress(MacRunnerError):  # The cancellation is the one to show.
            closing.result()
        raise


async def _close_each(backends: Mapping[str, Backend]) -> None:
    """Close them side by side, then raise the first error."""
    closings = (_close_one(name, backend) for name, backend in backends.items())
    for outcome in await asyncio.gather(*closings, return_exceptions=True):
        if outcome is not None:
            raise outcome


async def _close_one(name: str, backend: Backend) -> None:
    with boundary(EngineDeadError, "it did not close", model=name):
        async with asyncio.timeout(BACKEND_CLOSE_S_MAX):
            await backend.close()
