"""A backend at a stub of the Messages API, and requests to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.backends.anthropic.backend import AnthropicBackend
from mac_runner.simulation.testing import SimulatedClock
from mac_runner.types import JsonValue, Reply, Request
from tests.sim.anthropic_server import AnthropicServer
from tests.sim.behaviour import Behaviour, Received
from tests.sim.held_time import in_held_time

T = TypeVar("T")

KEY = "sk-ant-canary-0123456789"


def backend_at(url: str, **settings: JsonValue) -> AnthropicBackend:
    """A backend of model `m`, not started."""
    config = AnthropicConfig.model_validate({"model": "stub", "base_url": url, "max_in_flight": 4, **settings})
    return AnthropicBackend("m", config, key=KEY, clock=SimulatedClock())


def using(server: AnthropicServer, program: Callable[[AnthropicBackend], Awaitable[T]], **settings: JsonValue) -> T:
    """What `program` makes of a started backend at the server, which is closed whatever happens; time stands still."""

    async def main() -> T:
        async with server:
            backend = backend_at(server.host, **settings)
            try:
                await backend.start()
                return await program(backend)
            finally:
                await backend.close()
                await backend.close()

    return in_held_time(main())


def ask(answer: Callable[[Received], Behaviour], asked: Request, **settings: JsonValue) -> Reply:
    """The reply to one request at a server that answers so."""
    return using(AnthropicServer(answer=answer, api_key=KEY), lambda backend: backend.generate(asked), **settings)
