"""The server on real sockets: bodies that take up memory, and clients without the key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from mac_runner.nano.testing import BODIES_BYTES_MAX, BODY_BYTES_FREE, BODY_BYTES_MAX, BodyBudget
from tests.patience import LIMIT_S
from tests.sim.nano_server import MODEL, Served, served

KEY = "canary-0123456789abcdef"
ASK = {"model": MODEL, "prompt": "hi", "max_tokens": 1, "ignore_eos": True}
Scene = Callable[[Served, httpx.AsyncClient], Awaitable[None]]


def play(
    model: Path,
    scene: Scene,
    *,
    api_key: str | None = None,
    admin_key: str | None = None,
    budget: BodyBudget | None = None,
) -> None:
    async def on_stage() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            served(model, api_key=api_key, admin_key=admin_key, budget=budget) as server,
            httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as client,
        ):
            await scene(server, client)

    asyncio.run(on_stage())


class Raw:
    """A client that writes bytes of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
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
async def connected(server: Served) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def head(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", *headers, "", "")).encode()


async def send_unfinished(raw: Raw, path: str, num_bytes: int) -> None:
    """Send so much of a body, and no more."""
    await raw.send(head(path, f"Content-Length: {BODY_BYTES_MAX}"), b"x" * num_bytes)


def test_unfinished_bodies_hold_no_more_than_the_budget_and_ordinary_requests_are_served(model: Path) -> None:
    budget = BodyBudget(1 << 20)

    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        paths = ("/v1/completions", "/v1/chat/completions", "/api/chat", "/api/generate")
        each = 300 << 10
        stack = AsyncExitStack()
        clients = [await stack.enter_async_context(connected(server)) for _ in range(24)]
        for index, raw in enumerate(clients):
            await send_unfinished(raw, paths[index % 4], each)
        refused = 24 - (1 << 20) // (each - BODY_BYTES_FREE)
        answers = dict[int, tuple[int, dict[str, str], bytes]]()
        readers = {asyncio.create_task(raw.answer()): index for index, raw in enumerate(clients)}
        pending = set(readers)
        while len(answers) < refused:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers |= {readers[task]: task.result() for task in done}
        assert budget.held_bytes <= budget.bytes_max

        for index, (status, headers, body) in answers.items():
            error = json.loads(body)["error"]
            assert (status, headers["retry-after"]) == (503, "1")
            assert "server busy" in (error["message"] if index % 4 < 2 else error)
        assert (await client.post("/v1/completions", json=ASK)).status_code == 200
        long = {**ASK, "prompt": "x" * (BODY_BYTES_FREE + each)}
        assert (await client.post("/v1/completions", json=long)).json()["error"]["code"] == "server_busy"

        for task in pending:
            task.cancel()
        await stack.aclose()
        while budget.held_bytes:
            await server.stats()
        assert (await client.post("/v1/completions", json=long)).json()["error"]["code"] == "context_length_exceeded"
        assert budget.held_bytes == 0

    play(model, scene, budget=budget)


def test_memory_of_a_body_is_kept_for_it_until_its_answer(model: Path) -> None:
    """The prompt stays in memory while it waits for the engine, so as many cannot come through one after the other."""
    budget = BodyBudget()

    async def scene(server: Served, client: httpx.AsyncClient) -> None:
        await server.service.engine.pause("keep")
        body = json.dumps({**ASK, "user": "u"}).encode() + b" " * BODY_BYTES_FREE
        asking = asyncio.create_task(client.post("/v1/completions", content=body))
        await server.until_waiting(1)
        held = budget.held_bytes
        await server.service.engine.resume()

        assert (held, (await asking).status_code) == (len(body) - BODY_BYTES_FREE, 200)
        assert budget.held_bytes == 0

    play(model, scene, budget=budget)


def test_budget_has_room_for_many_bodies_of_the_largest_size() -> None:
    assert BODIES_BYTES_MAX >= 16 * BODY_BYTES_MAX


LENGTHS: tuple[tuple[tuple[str, ...], int, bool], ...] = (
    ((f"Content-Length: {BODY_BYTES_MAX + 1}",), 413, True),
    (("Content-Length: 99999999999999999999",), 413, True),
    # The client waits for leave to send: it is not given.
    ((f"Content-Length: {BODY_BYTES_MAX + 1}", "Expect: 100-continue"), 413, False),
    (("Content-Length: 50", "Transfer-Encoding: chunked"), 400, False),
    (("Content-Length: 99999999", "Transfer-Encoding: chunked"), 400, False),
    (("Content-Length: -1",), 400, False),
    (("Content-Length: +1",), 400, False),
    (("Content-Length: nine",), 400, False),
    (("Content-Length: ",), 400, False),
    (("Content-Length: 5", "Content-Length: 6"), 400, False),
    (("Content-Length: " + "9" * 5000,), 400, False),
    (("Transfer-Encoding: gzip, chunked",), 400, False),
)
"""What declares a length, how it is answered, and whether the connection stays open."""


def test_length_out_of_bounds_is_refused_before_a_byte_of_the_body(model: Path) -> None:
    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        wrong = list[str]()
        for headers, status, stays in LENGTHS:
            for path in ("/v1/completions", "/api/chat", "/nowhere"):
                async with connected(server) as raw:
                    await raw.send(head(path, *headers))
                    try:
                        async with asyncio.timeout(LIMIT_S):
                            line = await raw.reader.readline()
                            rest = b"" if stays else await raw.reader.read()
                    except TimeoutError:
                        line, rest = b"HTTP/1.1 0 nothing", b""
                if int(line.split()[1]) != status or not (stays or b"connection: close" in rest.lower()):
                    wrong.append(f"{path} {headers}: {line!r} {rest!r}")

        assert wrong == []

    play(model, scene)


def test_body_without_a_declared_length_is_bounded_while_it_is_read(model: Path) -> None:
    budget = BodyBudget()

    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        for path, shape in (("/v1/completions", dict), ("/api/generate", str)):
            async with connected(server) as raw:
                chunk = b"%x\r\n" % (1 << 20) + b"x" * (1 << 20) + b"\r\n"
                await raw.send(head(path, "Transfer-Encoding: chunked"), *[chunk] * (BODY_BYTES_MAX >> 20), chunk)
                status, _headers, body = await raw.answer()

                assert (status, isinstance(json.loads(body)["error"], shape)) == (413, True)
        assert budget.held_bytes == 0

    play(model, scene, budget=budget)


def test_connection_is_good_for_another_request_after_a_body_that_was_too_large(model: Path) -> None:
    """What is left of the body is thrown away, so a client that does not look while it sends reads the answer."""

    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        async with connected(server) as raw:
            body, size = json.dumps(ASK).encode(), BODY_BYTES_MAX + 5
            await raw.send(head("/v1/completions", f"Content-Length: {size}"), b"x" * size)
            await raw.send(head("/v1/completions", f"Content-Length: {len(body)}"), body)

            assert [(await raw.answer())[0] for _ in range(2)] == [413, 200]

    play(model, scene)


@pytest.mark.parametrize("sent", [b"X-%d: " + b"y" * 1000 + b"\r\n", b"y" * 1000])
def test_headers_without_an_end_are_bounded(model: Path, sent: bytes) -> None:
    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        async with connected(server) as raw:
            await raw.send(b"GET /health HTTP/1.1\r\nX: ")
            number = 0
            while not raw.reader.at_eof() and not raw.writer.is_closing() and number < 1000:
                await raw.send(sent % number if b"%" in sent else sent)
                number += 1
                await asyncio.sleep(0)

            assert number < 1000

    play(model, scene)


def test_every_path_but_those_of_probes_asks_for_the_key(model: Path) -> None:
    """Of all paths that there are, with every method, and of some that there are not."""

    async def scene(_: Served, client: httpx.AsyncClient) -> None:
        right = {"Authorization": f"Bearer {KEY}"}
        described = (await client.get("/openapi.json", headers=right)).json()["paths"]
        paths = [path for path in described if not path.startswith("/admin/")]
        assert {"/v1/models", "/api/tags", "/api/chat", "/health"} <= set(paths)
        wrong: list[dict[str, str]] = [
            {},
            {"Authorization": KEY},
            {"Authorization": "Bearer"},
            {"Authorization": f"Bearer {KEY[:-1]}"},
            {"Authorization": f"Bearer {KEY}x"},
            {"Authorization": f"Bearer {KEY.upper()}"},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": "Bearer ÿé"},
            {"X-Api-Key": KEY},
        ]
        told = list[str]()
        for path in (
            *paths,
            "/openapi.json",
            "/nowhere",
            "/api/nowhere",
            "/v1",
            "/",
            "//v1/models",
            "/health/",
            "/admin",
        ):
            for method in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
                for headers in wrong if method in ("GET", "POST") else wrong[:1]:
                    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
                    answer = await client.request(method, path, headers=raw)
                    is_open = path in ("/health", "/metrics")
                    challenge = answer.headers.get("www-authenticate")
                    if is_open == (answer.status_code == 401) or is_open == (challenge == "Bearer"):
                        told.append(f"{method} {path} {headers}: {answer.status_code}, {challenge}")
                    if KEY in answer.text or KEY in str(answer.headers):
                        told.append(f"{method} {path}: quotes the key")
        assert told == []

        refused, at_ollama = await client.get("/v1/models"), await client.get("/api/tags")
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert isinstance(at_ollama.json()["error"], str)
        for path in ("/v1/models", f"/v1/models/{MODEL}", "/api/tags", "/api/version", "/api/ps", "/openapi.json"):
            assert (await client.get(path, headers=right)).status_code == 200
        assert (await client.post("/v1/completions", json=ASK, headers={"authorization": f"bearer {KEY}"})).is_success
        assert KEY not in (await client.get("/metrics")).text

    play(model, scene, api_key=KEY)


def test_paths_of_the_owner_ask_for_a_key_of_their_own(model: Path) -> None:
    async def closed(_: Served, client: httpx.AsyncClient) -> None:
        answer = await client.get("/admin/state", headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 403

    async def guarded(_: Served, client: httpx.AsyncClient) -> None:
        for key, status in ((KEY, 401), ("owner", 200)):
            answer = await client.get("/admin/state", headers={"Authorization": f"Bearer {key}"})
            assert (answer.status_code, answer.headers.get("www-authenticate")) == (
                status,
                "Bearer" if status == 401 else None,
            )
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer owner"})).status_code == 401

    play(model, closed, api_key=KEY)
    play(model, guarded, api_key=KEY, admin_key="owner")


def test_client_without_the_key_is_refused_before_its_body(model: Path) -> None:
    budget = BodyBudget()

    async def scene(server: Served, _: httpx.AsyncClient) -> None:
        async with connected(server) as raw:
            await send_unfinished(raw, "/v1/completions", 1 << 20)

            assert (await raw.answer())[0] == 401
            assert budget.held_bytes == 0

    play(model, scene, api_key=KEY, budget=budget)
