"""An application on a socket, and clients that ask for nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from mac_runner.nano.testing import Listener, Stream, bound, is_loopback, serving
from tests.patience import LIMIT_S
from tests.sim.held_time import HeldLoop, move

UPLOAD = b"POST /wait HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nhalf"
REQUEST = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
ANSWERED = b"HTTP/1.1 200 OK\r\n"
LOOP = HeldLoop
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PROGRAM = """
import asyncio, resource, sys
from fastapi import FastAPI
from mac_runner.nano.server import bound, serving

async def main():
    app = FastAPI()
    app.add_api_route("/health", lambda: "well")
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    with bound("127.0.0.1", 0) as listener:
        async with serving(app, listener, connections_max=50, give_up=lambda: asyncio.sleep(0), idle_s_max=0.5):
            print(listener.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def test_more_silent_clients_than_descriptors_do_not_keep_others_out() -> None:
    command = (sys.executable, "-c", PROGRAM)
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server,
        ExitStack() as clients,
    ):
        try:
            assert server.stdout is not None
            address = ("127.0.0.1", int(server.stdout.readline()))
            for index in range(300):
                client = clients.enter_context(socket.create_connection(address))
                with suppress(ConnectionError):  # By those that found no room.
                    client.sendall(REQUEST[: index % len(REQUEST)])
            deadline = time.monotonic() + LIMIT_S
            while not said_by(address).startswith(ANSWERED):
                assert time.monotonic() < deadline

            _, log = server.communicate(timeout=LIMIT_S)
            assert (server.returncode, "Traceback" in log) == (0, False)
        finally:
            server.kill()


def said_by(address: tuple[str, int]) -> bytes:
    """The first words of an answer; none where we are turned away."""
    with suppress(ConnectionError), socket.create_connection(address, LIMIT_S) as client:
        client.sendall(REQUEST)
        return client.recv(1000)
    return b""


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, in a time that passes only where the test moves it."""

    port: int
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody waits for the answer at `/wait`."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody reads the answer at `/endless` any more."""


async def pass_time() -> None:
    """A tenth of a second, which is what the server looks at its connections after."""
    move(0.1)
    await asyncio.sleep(0)


@pytest.fixture
def stage() -> Any:
    return on_stage()


@asynccontextmanager
async def on_stage(connections_max: int = 50) -> AsyncIterator[Stage]:
    app = FastAPI()

    async def pieces() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)
        finally:
            made.ended.set()

    async def wait() -> bool:
        made.asked.set()
        return await made.may_answer.wait()

    async def read(request: Request) -> None:
        made.asked.set()
        with suppress(ClientDisconnect):
            await request.body()

    async def endless() -> Response:
        return Stream(pieces(), "application/x-ndjson")

    app.add_api_route("/health", lambda: "well")
    app.add_api_route("/wait", wait, methods=["GET", "POST"])
    app.add_api_route("/read", read, methods=["POST"])
    app.add_api_route("/endless", endless)
    with bound("127.0.0.1", 0) as listener:
        made = Stage(listener.getsockname()[1])
        async with AsyncExitStack() as stack:
            server = serving(app, listener, connections_max=connections_max, give_up=lambda: asyncio.sleep(0))
            await stack.enter_async_context(server)
            yield made
            leaving = asyncio.create_task(stack.aclose())
            while not leaving.done():
                await pass_time()
            await leaving


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(streams: Streams) -> None:
    """Ask and be answered."""
    reader, writer = streams
    writer.write(REQUEST)
    assert (await reader.readuntil(b'"well"')).startswith(ANSWERED)


async def test_client_that_does_not_come_to_the_end_of_a_request_is_hung_up_on(stage: Stage) -> None:
    for num_answered, sent in product((0, 1), (b"", b"G", REQUEST[:-2])):
        async with connected(stage.port) as (reader, writer):
            for _number in range(num_answered):
                await ask((reader, writer))
            writer.write(sent)
            rest = asyncio.create_task(reader.read())
            while not rest.done():
                await pass_time()

            assert rest.result() == b"", (num_answered, sent)


async def test_clients_that_ask_for_nothing_make_way_for_those_that_ask_and_those_that_are_answered_stay(
    stage: Stage,
) -> None:
    """However many come: long before any of them has been silent for long."""
    async with AsyncExitStack() as stack:
        patient = await stack.enter_async_context(connected(stage.port))
        patient[1].write(REQUEST.replace(b"/health", b"/wait"))
        await stage.asked.wait()
        for begun in (b"", UPLOAD, b"", UPLOAD):
            for index in range(60):
                _, writer = await stack.enter_async_context(connected(stage.port))
                writer.write(begun or REQUEST[: index % len(REQUEST)])
            for _ in range(3):
                await pass_time()
            await ask(await stack.enter_async_context(connected(stage.port)))
        stage.may_answer.set()

        assert (await patient[0].readuntil(b"true")).startswith(ANSWERED)


async def test_client_that_sends_a_request_byte_by_byte_is_hung_up_on(stage: Stage) -> None:
    async with connected(stage.port) as (reader, writer):
        ended = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            writer.write(REQUEST[:-2])
            while not ended.done():
                writer.write(b"x")
                await pass_time()
        with suppress(ConnectionError):
            await ended


async def test_client_that_does_not_read_its_answer_is_hung_up_on(stage: Stage) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port, limit=1)  # Reads two bytes by itself.
    writer.write(REQUEST.replace(b"/health", b"/endless"))

    while not stage.ended.is_set():
        await pass_time()
    assert not reader.at_eof()
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_answer_does_not_wait_for_the_client_to_acknowledge_its_headers(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """On a kept connection that took 40 ms for each request."""
    accepted, accept = list[socket.socket](), Listener.accept

    def noting(self: Listener) -> tuple[socket.socket, object]:
        connection, address = accept(self)
        accepted.append(connection)
        return connection, address

    monkeypatch.setattr(Listener, "accept", noting)
    async with connected(stage.port) as streams:
        await ask(streams)

        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


HERE = ("127.0.0.1", "127.255.3.4", "::1", "::ffff:127.0.0.1")
ELSEWHERE = ("0.0.0.0", "::", "::ffff:0.0.0.0", "10.0.0.1", "128.0.0.1", "169.254.1.1", "fe80::1%lo", "2001:db8::1")


def test_loopback_is_told_from_addresses_that_others_reach() -> None:
    assert [address for address in (*HERE, *ELSEWHERE) if is_loopback(address)] == [*HERE]


async def test_client_that_waits_for_its_answer_is_left_alone(stage: Stage) -> None:
    async with connected(stage.port) as patient, connected(stage.port) as silent:
        patient[1].write(REQUEST.replace(b"/health", b"/wait"))
        await stage.asked.wait()
        ended = asyncio.create_task(silent[0].read())
        while not ended.done():
            await pass_time()
        stage.may_answer.set()

        assert (await patient[0].readuntil(b"true")).startswith(ANSWERED)
        await ask(patient)


async def test_client_that_asks_now_and_then_is_left_alone(stage: Stage) -> None:
    """Whenever it is looked at it has nothing under way."""
    async with connected(stage.port) as busy, connected(stage.port) as silent:
        ended = asyncio.create_task(silent[0].read())
        while not ended.done():
            await ask(busy)
            await pass_time()
        await ask(busy)


async def test_server_of_one_connection_answers_on_it() -> None:
    async with on_stage(connections_max=1) as stage, connected(stage.port) as streams:
        await ask(streams)


async def test_clients_that_send_or_read_nothing_are_hung_up_on_at_the_end_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with AsyncExitStack() as clients:
        async with on_stage() as stage:
            deaf = await asyncio.open_connection("127.0.0.1", stage.port, limit=1)
            clients.callback(deaf[1].transport.abort)
            deaf[1].write(REQUEST.replace(b"/health", b"/endless"))
            reader, writer = await clients.enter_async_context(connected(stage.port))
            writer.write(UPLOAD.replace(b"/wait", b"/read"))
            await stage.asked.wait()

        assert stage.ended.is_set()
        assert (await reader.read(), capsys.readouterr().err) == (b"", "")


async def test_address_that_another_server_took_meanwhile_is_named() -> None:
    """Both could bind to it, because neither listened."""
    with bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bound("127.0.0.1", port) as second:
            first.listen()
            with pytest.raises(OSError, match=rf"^cannot listen at 127\.0\.0\.1:{port}: Address already in use$"):
                async with serving(FastAPI(), second, connections_max=1, give_up=lambda: asyncio.sleep(0)):
                    pass
