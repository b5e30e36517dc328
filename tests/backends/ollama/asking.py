"""A backend at a stub, and programs that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.ollama.testing import OllamaBackend
from mac_runner.clock import Clock
from mac_runner.simulation.testing import SimulatedClock
from mac_runner.types import Prompt, Reply, Sampling
from tests.sim.held_time import in_held_time
from tests.sim.requests import request

T = TypeVar("T")


def backend_at(
    host: str,
    *,
    model: str = "qwen3:4b",
    num_ctx: int | None = None,
    think: bool | None = None,
    settings: frozenset[str] = frozenset(),
    is_pulling: bool = False,
    max_in_flight: int = 4,
    clock: Clock | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> OllamaBackend:
    """A backend of model `m`, not started."""
    config = OllamaConfig(model=model, host=host, num_ctx=num_ctx, think=think, max_in_flight=max_in_flight)
    return OllamaBackend(
        name="m", config=config, settings=settings, is_pulling=is_pulling, clock=clock or SimulatedClock(), say=say
    )


def using(backend: OllamaBackend, program: Callable[[OllamaBackend], Awaitable[T]]) -> T:
    """What `program` makes of the started backend, which is closed whatever happens; time stands still."""

    async def main() -> T:
        try:
            await backend.start()
            return await program(backend)
        finally:
            await backend.close()
            await backend.close()

    return in_held_time(main())


def started(backend: OllamaBackend) -> None:
    """Start a backend and close it."""

    async def nothing(backend: OllamaBackend) -> None:
        pass

    using(backend, nothing)


def ask(
    backend: OllamaBackend, content: str = "hello", *, prompt: Prompt | None = None, sampling: Sampling | None = None
) -> Reply:
    """The reply to one request, from the start of the backend to its end."""
    return using(backend, lambda ready: ready.generate(request(content, prompt=prompt, sampling=sampling)))
