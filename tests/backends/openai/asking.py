"""A backend at stub servers, and programs that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType

import pytest

from mac_runner.backends.openai.testing import OpenaiBackend
from mac_runner.errors import (
    BackendError,
)
from mac_runner.types import Reply
from tests.sim.behaviour import Behaviour, Received, Say
from tests.sim.held_time import in_held_time
from tests.sim.openai_run import Settings, backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

KEY = "sk-canary-0123456789"
NOBODY = "http://127.0.0.1:9/v1"  # The discard port: nobody listens there.


def only(behaviour: Behaviour) -> Callable[[Received], Behaviour]:
    """Every request is answered so, a canary well."""
    return lambda received: Say() if received.is_canary else behaviour


def run(
    program: Callable[[OpenaiBackend], Awaitable[None]],
    *servers: OpenaiServer,
    key: str | None = None,
    settings: Settings = MappingProxyType({}),
    said: list[str] | None = None,
) -> None:
    """A program with a started backend for these servers, which puts what it tells into `said`.

    Time stands still: who needs it to pass moves it.
    """

    async def main() -> None:
        async with asyncio.TaskGroup():
            for server in servers:
                await server.__aenter__()
            backend = backend_for(*(server.url for server in servers), key=key, settings=settings, said=said)
            try:
                await backend.start()
                await program(backend)
            finally:
                await backend.close()
                await backend.close()
                for server in servers:
                    await server.die()

    in_held_time(main())


def reply_of(server: OpenaiServer) -> Reply:
    """The reply to a request."""
    replies: list[Reply] = []

    async def program(backend: OpenaiBackend) -> None:
        replies.append(await backend.generate(request()))

    run(program, server)
    return replies[0]


def error_of(
    server: OpenaiServer, *, key: str | None = None, settings: Settings = MappingProxyType({})
) -> BackendError:
    """The error a request ends in."""
    errors: list[BackendError] = []

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(BackendError) as caught:
            await backend.generate(request())
        errors.append(caught.value)

    run(program, server, key=key, settings=settings)
    return errors[0]
