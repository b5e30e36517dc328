"""A server of the OpenAI protocol on a real socket, as slow or as broken as a test wants it.

It has so many slots, each request takes so long in one of them, and what waits for a slot waits in line, as in an
engine. `script` looks at each request and may have it answered in any other way. A connection that has had
`answers_per_connection` is hung up on when the next request comes. It keeps its own account of the
time its slots were in use, so a client's word need not be taken for it. `python -m tests.sim.openai_server` runs it in
a process of its own, prints the port, and serves its account under `/account`.

It is an asyncio.Protocol and no more: it has to serve well over a thousand requests a second on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from mac_runner.types import JsonObject
from tests.sim.behaviour import Behaviour, Hang, Raw, Received, Reset, Say, Send, completion, echo, encoded, head

ROOT: Final = Path(__file__).parents[2]
_BREAK: Final = b"\r\n\r\n"
_TIMERS_LATE_S: Final = 0.0005
"""A loop sleeps whole milliseconds, rounded up: its timers come late by half of one on average."""


def no_page(_received: Received) -> None:
    """What is only looked at is there as it should be."""


@dataclass(slots=True, eq=False)
class Account:
    """What the slots were used for: requests, and the integral of slots in use over time."""

    slots: int
    requests: int = 0
    in_use: int = 0
    in_use_max: int = 0
    busy_slot_s: float = 0.0
    waited_s: float = 0.0
    first_at_s: float = 0.0
    last_at_s: float = 0.0
    changed_at_s: float = 0.0

    def change(self, by: int, now_s: float) -> None:
        """So many more slots are in use from now on."""
        if not self.requests and not self.in_use:
            self.first_at_s = self.changed_at_s = now_s
        self.busy_slot_s += self.in_use * (now_s - self.changed_at_s)
        self.changed_at_s = now_s
        self.in_use += by
        self.in_use_max = max(self.in_use_max, self.in_use)
        if by < 0:
            self.requests += 1
            self.last_at_s = now_s

    def as_json(self) -> JsonObject:
        """The account from the first request to the last reply."""
        span_s = self.last_at_s - self.first_at_s
        return {
            "requests": self.requests,
            "slots": self.slots,
            "in_use_max": self.in_use_max,
            "span_s": span_s,
            "busy_slot_s": self.busy_slot_s,
            "waited_s": self.waited_s,
            "slot_utilisation": self.busy_slot_s / (self.slots * span_s) if span_s else 0.0,
        }


@dataclass(eq=False)
class OpenaiServer:
    """Listens on a free port of this machine inside `async with`.

    The port is its own to the end of the block: where it has died nobody listens, and it may come back.
    It keeps what it is sent: `received` are the requests, and `pages` the paths of what was only looked at (GET).
    """

    slots: int = 64
    latency_s: float = 0.0
    models: tuple[str, ...] = ("stub",)
    script: Callable[[Received], Behaviour] = echo
    page: Callable[[Received], Behaviour | None] = no_page
    keeps: bool = True
    answers_per_connection: int | None = None
    port: int = 0
    received: list[Received] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.account = Account(self.slots)
        self.waiting: deque[tuple[Connection, Behaviour, Received, float]] = deque()
        self.connections: set[Connection] = set()
        self.requests = 0
        self._server: asyncio.Server | None = None
        self._place: socket.socket | None = None

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self.host}/v1"

    async def __aenter__(self) -> OpenaiServer:
        loop = asyncio.get_running_loop()
        if self._place is None:
            self._place = socket.socket()
            # So another one may listen at its address, and whoever asks for any port gets a different one.
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", self.port))
            self.port = self._place.getsockname()[1]
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, backlog=2048)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()
        if self._place is not None:
            self._place.close()
            self._place = None

    async def die(self) -> None:
        """Stop at once: refuse connections, and reset those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = list(self.connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.lost.wait()

    def take(self, connection: Connection, received: Received) -> None:
        """A request has come in whole."""
        if received.method == "GET":
            self.pages.append(received.path)
            page = self.page(received) or Send(200, encoded(self._page(received.path)))
            connection.act(page, received)
            return
        self.requests += 1
        if self.keeps:
            self.received.append(received)
        behaviour = self.script(received)
        loop = asyncio.get_running_loop()
        if self.account.in_use < self.slots:
            self._serve(connection, behaviour, received, loop)
        else:
            self.waiting.append((connection, behaviour, received, loop.time()))

    def _page(self, path: str) -> JsonObject:
        if path.endswith("/account"):
            return self.account.as_json()
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}

    def _serve(
        self, connection: Connection, behaviour: Behaviour, received: Received, loop: asyncio.AbstractEventLoop
    ) -> None:
        now_s = loop.time()
        self.account.change(1, now_s)
        own_s = behaviour.latency_s if isinstance(behaviour, Say) else None
        due_s = now_s + (self.latency_s if own_s is None else own_s) - _TIMERS_LATE_S
        loop.call_at(due_s, self._finish, connection, behaviour, received)

    def _finish(self, connection: Connection, behaviour: Behaviour, received: Received) -> None:
        loop = asyncio.get_running_loop()
        connection.act(behaviour, received)
        self.account.change(-1, loop.time())
        if self.waiting:
            following, then, waited, since_s = self.waiting.popleft()
            self.account.waited_s += loop.time() - since_s
            self._serve(following, then, waited, loop)


class Connection(asyncio.Protocol):
    """One connection: requests come one after the other."""

    def __init__(self, server: OpenaiServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._task: asyncio.Task[None] | None = None
        self._taken = 0
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._can_write.set()
        self._server.connections.discard(self)
        self.lost.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(_BREAK)) >= 0:
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            size = int(headers.get("content-length", "0"))
            start = end + len(_BREAK)
            if len(self._buffer) < start + size:
                return
            body = bytes(self._buffer[start : start + size])
            del self._buffer[: start + size]
            if self._taken == self._server.answers_per_connection:
                self.abort()
                return
            self._taken += 1
            method, path, _ = lines[0].split(" ", 2)
            self._server.take(self, Received(self._server.requests, method, path, headers, body))

    def act(self, behaviour: Behaviour, received: Received) -> None:
        """Answer as configured."""
        match behaviour:
            case Say():
                self.reply(200, completion(behaviour, received))
            case Send():
                self.reply(behaviour.status, behaviour.body, behaviour.headers)
            case Reset():
                self._write(head(200, 1_000_000)[: behaviour.sent])
                self.abort()
            case Hang():
                pass
            case Raw():
                self._task = asyncio.get_running_loop().create_task(self._pour(behaviour))

    def reply(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """A whole reply."""
        self._write(head(status, len(body), headers) + body)

    def abort(self) -> None:
        """Tear the connection down."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    async def _pour(self, raw: Raw) -> None:
        for piece in raw.pieces:
            await self._can_write.wait()
            self._write(piece)
            await asyncio.sleep(raw.interval_s)
        while raw.is_endless and self._transport is not None:
            await self._can_write.wait()
            self._write(raw.pieces[-1])
            await asyncio.sleep(raw.interval_s)
        if self._transport is not None and raw.then == "close":
            self._transport.close()
        elif raw.then == "reset":
            self.abort()


@contextmanager
def listening(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A stub server in a process of its own, whose first line is its port, and its base URL."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.communicate()


async def _serve(slots: int, latency_ms: float, model: str) -> None:
    async with OpenaiServer(slots=slots, latency_s=latency_ms / 1000, models=(model,), keeps=False) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--model", default="stub")
    asked = parser.parse_args()
    asyncio.run(_serve(asked.slots, asked.latency_ms, asked.model))
