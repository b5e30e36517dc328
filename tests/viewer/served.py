"""A viewer in a thread of the test, asked through plain sockets; and a run that goes on when the test says so."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mac_runner.types import JsonObject
from mac_runner.viewer.testing import Address, Opening, Pace, RunSource, Viewer, listening_at
from tests.cli.lab import discussion
from tests.patience import LIMIT_S
from tests.sim.behaviour import Behaviour, Hang, Received, Say, echo
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

QUICK = Pace(poll_s=0.02, standing_s=0.02, engines_s=0.02)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body)

    @property
    def error(self) -> str:
        """The words of an error."""
        return str(self.json["error"])


@dataclass(frozen=True, slots=True)
class Served:
    """A viewer that listens."""

    url: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return self.url.partition("?token=")[2]

    @property
    def cookie(self) -> str:
        return f"mac_run_{self.port}={self.token}"

    def raw(self, data: bytes) -> Answer:
        """The answer to these bytes, until the server hangs up."""
        with self.connected() as connection:
            connection.sendall(data)
            return answer_of(connection)

    def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        """The answer to a page's own request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close", *headers]
        return self.raw("\r\n".join([*lines, f"Cookie: {self.cookie}", "", ""]).encode("latin-1"))

    def json(self, path: str) -> Any:
        """The JSON of a good answer."""
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return answer.json

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as connection:
            yield connection

    @contextmanager
    def asked(self, path: str, *headers: str) -> Iterator[socket.socket]:
        """A connection on which a page's own request was sent."""
        with self.connected() as connection:
            lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Cookie: {self.cookie}", *headers]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            yield connection

    @contextmanager
    def events(self, path: str = "/api/stream", *headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
        """The events of a stream: id, name and data. The chunks of HTTP are taken apart by their lines."""
        with self.asked(path, *headers) as connection, connection.makefile("rb") as file:
            yield events_in(file)


def events_in(lines: Iterable[bytes]) -> Iterator[tuple[str, str, Any]]:
    """The events that lines spell."""
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.rstrip(b"\r\n").decode().partition(": ")
        if colon and name in ("id", "event", "data"):
            fields[name] = value
        if name == "data":
            yield fields.get("id", ""), fields["event"], json.loads(value)
            fields.clear()


def answer_of(connection: socket.socket) -> Answer:
    """Read an answer to the end of the connection."""
    data = b""
    while chunk := connection.recv(1 << 16):
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]) if first else 0, headers, body)


@contextmanager
def served(source: RunSource | Path, *, names: tuple[str, ...] = (), pace: Pace = QUICK) -> Iterator[Served]:
    """A viewer of a source or a run directory, in a thread of its own inside the block."""
    began: list[str] = []
    is_begun, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        opening = Opening(listening_at(Address()), "a-token-for-tests", names)
        async with Viewer(RunSource(source) if isinstance(source, Path) else source, opening, pace=pace) as viewer:
            began.append(viewer.url)
            is_begun.set()
            await stop.wait()
        await loop.shutdown_default_executor()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_begun.wait(LIMIT_S)
        yield Served(began[0])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        loop.close()


REPLIES = 3
"""So many replies has each conversation that waits."""


class Engine:
    """Answers the first conversation, and the others up to a point; all of them once it `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = False
        self.url = ""
        self._asked = Counter[str]()

    def __call__(self, received: Received) -> Behaviour:
        if received.is_canary:
            return Say()
        task_id = received.headers["x-request-id"].partition("/")[0]
        self._asked[task_id] += 1
        waits = self._asked[task_id] > REPLIES and not task_id.endswith("-000000")
        return Hang() if waits and not self.goes_on else echo(received)

    def experiment(self, name: str, conversations: int) -> JsonObject:
        """Discussions of more turns than that."""
        config: JsonObject = {"model": "stub", "base_urls": [self.url], "max_in_flight": 4 * conversations}
        model: JsonObject = {"backend": "openai", "openai_config": config}
        return discussion(model, name, conversations=conversations, max_rounds=4)


@contextmanager
def engine() -> Iterator[Engine]:
    """An engine for the time of the block."""
    found = Engine()
    with in_a_thread(OpenaiServer(script=found, keeps=False)) as server:
        found.url = server.url
        yield found
