"""A server on a real socket, with a client of ours and clients that write bytes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mac_runner.nano.testing import BodyBudget
from tests.patience import LIMIT_S
from tests.sim.nano_server import MODEL, Served, served

KEY = "canary-0123456789abcdef"
OWNER = {"Authorization": "Bearer secret"}
LONG = {"model": MODEL, "prompt": "hi", "max_tokens": 8000, "ignore_eos": True, "seed": 1}
SHORT = {**LONG, "max_tokens": 2}


class Stage:
    """A server, and what is asked of it."""

    def __init__(self, server: Served, client: httpx.AsyncClient, budget: BodyBudget) -> None:
        self.port, self.service, self.engine = server.port, server.service, server.service.engine
        self.stats, self.until_running, self.until_waiting = server.stats, server.until_running, server.until_waiting
        self.budget = budget
        self.get, self.post, self.request = client.get, client.post, client.request

    async def complete(self, **more: object) -> httpx.Response:
        """Ask for two tokens, or for what is said otherwise."""
        return await self.post("/v1/completions", json={**SHORT, **more})

    async def owner(self, path: str, body: object = None) -> httpx.Response:
        """Ask for something with the owner's key."""
        return await self.post(f"/admin/{path}", json=body, headers=OWNER)


@asynccontextmanager
async def on_stage(model: Path, **settings: Any) -> AsyncIterator[Stage]:
    """Serve a model, with the owner's key `secret`, for the time of the block."""
    settings = {"admin_key": "secret", "budget": BodyBudget(), **settings}
    async with served(model, **settings) as server, httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client:
        yield Stage(server, client, settings["budget"])


def served_with(**settings: object) -> pytest.MarkDecorator:
    """A server of other settings for a test."""
    return pytest.mark.parametrize("stage", [settings], indirect=True, ids=[""])


class Raw:
    """A client that writes bytes of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        """Write, as far as the server listens."""
        with suppress(ConnectionError):
            for part in parts:
                self.writer.write(part)
                await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Raw]:
    """Such a client of a server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(path: str, *headers: str) -> bytes:
    """The head of a request."""
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()
