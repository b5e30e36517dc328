"""A data plane in simulated time: its servers are numbers, its connections are sleeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from yarl import URL

from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.backends.http import data_plane
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import (
    Answer,
    AnthropicDialect,
    DataPlane,
    Dialect,
    Endpoint,
    Endpoints,
    OllamaDialect,
    OpenaiDialect,
    SendingError,
    Standing,
)
from mac_runner.planning.testing import SimulatedClock
from mac_runner.types import Reply
from tests.sim.engine_stub import PrefixCache, text_of
from tests.sim.openai_run import Settings
from tests.sim.requests import request


@dataclass(eq=False, kw_only=True)
class SimulatedServer:
    """Serves `slots` requests at once, each for `latency_s`, in any dialect; what comes beyond them waits in line.

    While it `is_stopped` it does nothing, like a process after SIGSTOP. While it `is_wedged` it serves pages alone.
    """

    url: str
    slots: int = 8
    latency_s: float = 0.4
    jitter: float = 0.0
    """Latencies are spread evenly by this share to both sides."""
    counts_tokens: bool = True
    pages_need_slots: bool = False
    cache_tokens: int = 0
    is_stopped: bool = False
    is_wedged: bool = False
    is_dead: bool = False
    served: list[str] = field(default_factory=list)
    in_service: set[str] = field(default_factory=set)
    together_max: int = 0
    canaries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    begun_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(self.url)
        self._free = asyncio.Semaphore(self.slots)
        self._cache = PrefixCache(self.cache_tokens)
        self.changed = asyncio.Event()

    def change(self, **states: bool) -> None:
        """Stop, wedge, kill it, or let it go on."""
        for name, value in states.items():
            setattr(self, name, value)
        self.changed.set()
        self.changed = asyncio.Event()

    async def complete(self, body: bytes, request_id: str) -> Answer:
        """The answer to a completion request."""
        asked = json.loads(body)
        is_canary = request_id == "canary"
        self.canaries += is_canary
        await self._while(lambda: self.is_stopped)
        async with self._free:
            self.in_service.add(request_id)
            self.together_max = max(self.together_max, len(self.in_service))
            self.begun_s[request_id] = asyncio.get_running_loop().time()
            try:
                text = text_of(asked)
                self.prompt_tokens += len(text) // 4
                self.cached_tokens += self._cache.take(text)
                spread = 1.0 + self.jitter * (2 * self._random.random() - 1)
                await self._sleep(self.latency_s * (0.01 if is_canary else spread))
                await self._while(lambda: self.is_stopped or self.is_wedged)
            finally:
                self.in_service.discard(request_id)
        self.served.append(request_id)
        text = f"to {request_id}"
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
        ollama = {"message": {"content": text}, "done": True, "done_reason": "stop"}
        anthropic = {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        return Answer(status=200, body=json.dumps({"choices": [choice], **ollama, **anthropic}).encode())

    async def page(self, path: str) -> Answer:
        """One of its pages."""
        await self._while(lambda: self.is_stopped)
        if self.pages_need_slots:
            async with self._free:
                pass
        if path.endswith("/metrics"):
            if not self.counts_tokens:
                return Answer(status=404, body=b"")
            return Answer(status=200, body=f"vllm:generation_tokens_total {self._tokens()}\n".encode())
        return Answer(status=200, body=b'{"data": [{"id": "stub"}]}')

    def _tokens(self) -> float:
        """Every request in service gives a token a second."""
        if self.is_wedged:
            return float(len(self.served))
        now_s = asyncio.get_running_loop().time()
        return len(self.served) * 100 + sum(now_s - self.begun_s[one] for one in self.in_service)

    async def _sleep(self, delay_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._while(lambda: True)

    async def _while(self, holds: Callable[[], bool]) -> None:
        while holds() and not self.is_dead:
            await self.changed.wait()
        if self.is_dead:
            raise SendingError("the connection broke", standing=Standing.CUT_OFF)


class SimulatedClient:
    """Takes the place of `HttpClient`."""

    servers: Mapping[str, SimulatedServer] = MappingProxyType({})

    def __init__(self, *_: object) -> None:
        pass

    async def get(self, url: URL, *, deadline_s: float) -> Answer:
        return await self._within(self._at(url).page(url.path), deadline_s, set())

    async def post(
        self,
        url: URL,
        body: bytes,
        *,
        request_id: str,
        deadline_s: float,
        under_way: set[asyncio.Timeout] | None = None,
    ) -> Answer:
        answering = self._at(url).complete(body, request_id)
        return await self._within(answering, deadline_s, set() if under_way is None else under_way)

    async def close(self) -> None:
        pass

    def _at(self, url: URL) -> SimulatedServer:
        server = self.servers[str(url.origin())]
        if server.is_dead:
            raise SendingError("no connection", standing=Standing.GONE)
        return server

    @staticmethod
    async def _within(answering: Awaitable[Answer], deadline_s: float, under_way: set[asyncio.Timeout]) -> Answer:
        deadline = asyncio.timeout(deadline_s)
        under_way.add(deadline)
        try:
            async with deadline:
                return await answering
        except TimeoutError:
            standing = Standing.LATE if deadline in under_way else Standing.HUNG
            raise SendingError(f"no answer within {deadline_s:g} s", standing=standing) from None
        finally:
            under_way.discard(deadline)


@dataclass(kw_only=True)
class Field:
    """A data plane, its servers, and what it reported."""

    plane: DataPlane
    servers: list[SimulatedServer]
    said: list[str]
    stuck: list[tuple[str, float]]

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def crowd(self, count: int, name: str = "c") -> list[Reply]:
        """The replies to so many requests at once, each of a conversation of its own."""
        asked = (request(conversation=f"{name}-{number}") for number in range(count))
        return await asyncio.gather(*map(self.plane.generate, asked))


def _openai(urls: list[str], settings: Settings) -> Dialect:
    return OpenaiDialect(OpenaiConfig.model_validate({"base_urls": urls, **settings}), has_tokens=False)


def _anthropic(urls: list[str], settings: Settings) -> Dialect:
    return AnthropicDialect(AnthropicConfig.model_validate({"base_url": urls, **settings}))


def _ollama(urls: list[str], settings: Settings) -> Dialect:
    return OllamaDialect(OllamaConfig.model_validate({"host": urls, **settings}))


DIALECTS = {"openai": _openai, "anthropic": _anthropic, "ollama": _ollama}


@asynccontextmanager
async def plane_of(
    *,
    servers: int = 8,
    max_in_flight: int = 64,
    protocol: str = "openai",
    settings: Settings = MappingProxyType({}),
    **behaviour: Any,
) -> AsyncIterator[Field]:
    """A data plane for so many servers of this behaviour; to be used on a simulated loop."""
    there = [SimulatedServer(url=f"http://s{number}", **behaviour) for number in range(servers)]
    urls = [f"{server.url}/v1" if protocol == "openai" else server.url for server in there]
    dialect = DIALECTS[protocol](urls, {"model": "stub", "max_in_flight": max_in_flight, **settings})
    said: list[str] = []
    stuck: list[tuple[str, float]] = []

    class Watched(DataPlane):
        def stuck(self, endpoint: Endpoint, why: str) -> None:
            stuck.append((why, asyncio.get_running_loop().time()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_plane, "HttpClient", SimulatedClient)
        patch.setattr(SimulatedClient, "servers", {server.url: server for server in there})
        plane = Watched(
            "m",
            dialect,
            Endpoints(urls, in_flight_max=max_in_flight),
            key=None,
            clock=SimulatedClock(),
            say=said.append,
        )
        await plane.open()
        try:
            yield Field(plane=plane, servers=there, said=said, stuck=stuck)
        finally:
            await plane.close()
