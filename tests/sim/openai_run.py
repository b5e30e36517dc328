"""A backend for stub servers, and toy conversations played over it through the whole scheduler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from mac_runner.backends import Backend
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import HttpBackend, OpenaiDialect
from mac_runner.clock import SystemClock
from mac_runner.planning.testing import SimulatedClock
from mac_runner.scheduler import RunResult
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonValue
from tests.patience import LIMIT_S
from tests.sim.conversations import run_conversations
from tests.sim.openai_server import OpenaiServer
from tests.sim.recorder import MemoryRecorder
from tests.sim.toy import ToyEnvironment, Work

S = TypeVar("S", bound=OpenaiServer)

Settings: TypeAlias = Mapping[str, JsonValue]
HASTY = RetryConfig(max_attempts=50, backoff_s=0.01, backoff_s_max=0.05)


def dialect_of(settings: Settings = MappingProxyType({}), *, has_tokens: bool = False) -> OpenaiDialect:
    """How a server of the model `stub` is spoken to."""
    config = OpenaiConfig.model_validate({"model": "stub", "base_urls": "http://h/v1", **settings})
    return OpenaiDialect(config, has_tokens=has_tokens)


def backend_for(
    *urls: str,
    settings: Settings = MappingProxyType({}),
    key: str | None = None,
    said: list[str] | None = None,
    has_tokens: bool = False,
) -> HttpBackend:
    """A backend for the model `stub` at `urls`, with these settings in its section and the time of the running loop."""
    dialect = dialect_of({"base_urls": list(urls), **settings}, has_tokens=has_tokens)
    say = (said if said is not None else []).append
    return HttpBackend("m", dialect, key=key, clock=SimulatedClock(), say=say)


async def play(backend: Backend, work: Work, recorder: MemoryRecorder, *, retry: RetryConfig = HASTY) -> RunResult:
    """Play toy conversations of one model to their end."""
    return await run_conversations(
        environment=ToyEnvironment(),
        environment_name="toy",
        experiment_name="toys",
        work=iter(work),
        backends={"model-0": backend},
        recorder=recorder,
        retry=retry,
        concurrency=None,
        clock=SystemClock(),
        stop=asyncio.Event(),
    )


@contextmanager
def in_a_thread(server: S) -> Iterator[S]:
    """A stub server on a loop of its own, for a program that is not on ours."""
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        async with server:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(LIMIT_S)
        yield server
    finally:
        for loop, over in loops:
            loop.call_soon_threadsafe(over.set)
        thread.join()
