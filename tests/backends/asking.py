"""Backends at stub servers on real sockets, in a time that stands still, and what becomes of requests to them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypedDict, TypeVar, Unpack

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.testing import AnthropicDialect, HttpBackend, OllamaBackend
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, TransientBackendError
from mac_runner.planning.testing import SimulatedClock
from mac_runner.types import Reply, Request
from tests.sim import anthropic_server, ollama_server
from tests.sim.anthropic_server import AnthropicServer
from tests.sim.behaviour import Behaviour, Received, Say, Send, failure
from tests.sim.building import request_for
from tests.sim.held_time import in_held_time, move
from tests.sim.ollama_server import OllamaServer
from tests.sim.openai_run import Settings, backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

KEY = "sk-canary-0123456789"
HELD_S = 1.0
NOBODY = "http://127.0.0.1:9"  # The discard port: nobody listens there.

B = TypeVar("B", bound=Backend)
T = TypeVar("T")
Script = Callable[[Received], Behaviour]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How a protocol says what all of them say: `serve` makes a server that takes KEY alone and answers by a script."""

    serve: Callable[[Script], OpenaiServer]
    fail: Callable[..., Send] = failure
    too_long: Send


WIRES = {
    "openai": Wire(
        serve=lambda script: OpenaiServer(script=script),
        too_long=failure(400, "too long", code="context_length_exceeded"),
    ),
    "ollama": Wire(
        serve=lambda script: OllamaServer(answer=script, api_key=KEY),
        fail=ollama_server.failure,
        too_long=ollama_server.failure(400, "the input length exceeds the context length"),
    ),
    "anthropic": Wire(
        serve=lambda script: AnthropicServer(answer=script, api_key=KEY),
        fail=anthropic_server.failure,
        too_long=anthropic_server.failure(400, "prompt is too long: 9 tokens > 8 maximum"),
    ),
}


def ollama_at(
    *hosts: str,
    settings: Settings = MappingProxyType({}),
    is_pulling: bool = False,
    key: str | None = None,
    clock: Clock | None = None,
    said: list[str] | None = None,
) -> OllamaBackend:
    """A backend of model `m`, not started. Without a key the one of the environment holds."""
    config = OllamaConfig.model_validate({"model": "qwen3:4b", "host": list(hosts), "max_in_flight": 4, **settings})
    say = (said if said is not None else []).append
    with pytest.MonkeyPatch.context() as patch:
        if key is not None:
            patch.setenv("OLLAMA_API_KEY", key)
        return OllamaBackend(request_for(config, clock or SimulatedClock(), can_pull=is_pulling, say=say))


def anthropic_at(urls: Sequence[str], settings: Settings, key: str | None, said: list[str] | None) -> HttpBackend:
    """A backend of model `m`, not started."""
    config = AnthropicConfig.model_validate({"model": "stub", "base_url": list(urls), "max_in_flight": 4, **settings})
    say = (said if said is not None else []).append
    return HttpBackend("m", AnthropicDialect(config), key=key or KEY, clock=SimulatedClock(), say=say)


class How(TypedDict, total=False):
    """Of a backend: its key, where it puts what it tells, and settings in its section."""

    key: str
    said: list[str]
    settings: Settings


def backend_of(*servers: OpenaiServer, **how: Unpack[How]) -> Backend:
    """A backend for servers of one protocol, not started."""
    settings, key, said = how.get("settings", {}), how.get("key"), how.get("said")
    match servers[0]:
        case OllamaServer():
            return ollama_at(*(server.host for server in servers), settings=settings, key=key, said=said)
        case AnthropicServer():
            return anthropic_at([server.host for server in servers], settings, key, said)
    return backend_for(*(server.url for server in servers), key=key, said=said, settings=settings)


@asynccontextmanager
async def started(backend: B) -> AsyncIterator[B]:
    """It is closed whatever happens, and may be closed twice."""
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()
        await backend.close()


@asynccontextmanager
async def up(*servers: OpenaiServer, **how: Unpack[How]) -> AsyncIterator[Backend]:
    """A started backend for these servers."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        yield await stack.enter_async_context(started(backend_of(*servers, **how)))


async def found(backend: Backend, asked: Request | None = None) -> Reply | BackendError:
    """What a request comes to."""
    try:
        return await backend.generate(asked or request())
    except BackendError as error:
        return error


def outcome(server: OpenaiServer, asked: Request | None = None, **how: Unpack[How]) -> Reply | BackendError:
    """What a request to this server comes to."""

    async def program() -> Reply | BackendError:
        async with up(server, **how) as backend:
            return await found(backend, asked)

    return in_held_time(program())


def outcome_of(kind: type[T], server: OpenaiServer, asked: Request | None = None, **how: Unpack[How]) -> T:
    """The same, which is of this kind."""
    made = outcome(server, asked, **how)
    assert isinstance(made, kind), repr(made)
    return made


reply_of = partial(outcome_of, Reply)
error_of = partial(outcome_of, BackendError)
fault_of = partial(outcome_of, TransientBackendError)


def only(behaviour: Behaviour) -> Script:
    """Every request is answered so, a canary well."""
    return lambda received: Say() if received.is_canary else behaviour


def first(*behaviours: Behaviour) -> Script:
    """The first requests are answered so, and all that follow well."""
    left = deque(behaviours)
    return lambda _received: left.popleft() if left else Say()


def once_there(number: int, script: Script) -> Script:
    """Held time goes on once there are so many requests, each of which takes the server HELD_S."""

    def answer(received: Received) -> Behaviour:
        if received.number >= number - 1:
            asyncio.get_running_loop().call_soon(move, HELD_S)
        return script(received)

    return answer
