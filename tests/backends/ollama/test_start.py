"""What is found out at the start: server, version, model, and the context it was loaded with; and how a model comes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext

import pytest
from ollama import ProgressResponse

from mac_runner.backends.testing import (
    ENDPOINT_REST_S_MAX,
    OLLAMA_PULL_SAY_INTERVAL_S,
    OLLAMA_PULL_STALL_S_MAX,
    Redactor,
    certificates,
    client_of,
    follow_pull,
    missing_in,
)
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.planning.testing import SimulatedClock
from tests.backends.asking import KEY, ollama_at, started
from tests.kit import StridingClock
from tests.sim.behaviour import Received, Send, head
from tests.sim.held_time import held, in_held_time, move
from tests.sim.ollama_server import OllamaServer, StubModel, failure
from tests.sim.openai_run import Settings
from tests.sim.requests import request
from tests.sim.shuffled import simulate

NEW = "llama3.2:3b"
ROOM: Settings = {"model": NEW, "num_ctx": 2048}


def start(
    server: OllamaServer, settings: Settings, *, is_pulling: bool = False, clock: Clock | None = None
) -> list[str]:
    """What is told while a backend starts and closes."""
    said: list[str] = []

    async def main() -> None:
        async with server:
            backend = ollama_at(server.host, settings=settings, is_pulling=is_pulling, clock=clock, said=said)
            async with started(backend):
                pass

    in_held_time(main())
    return said


def test_model_is_loaded_at_the_start_with_the_context_it_will_be_used_with() -> None:
    server = OllamaServer()
    assert start(server, {"num_ctx": 16384}) == []

    (load,) = server.loads
    assert load["options"] == {"num_ctx": 16384}
    assert load["keep_alive"] == "5m"


def test_missing_model_is_pulled_on_request_alone_and_its_progress_told_now_and_then() -> None:
    server = OllamaServer(library={NEW: StubModel()})
    with pytest.raises(ConfigError, match=f"run `ollama pull {NEW}`"):
        start(server, ROOM)
    assert "/api/pull" not in server.pages

    assert start(server, ROOM, is_pulling=True) == [f"pulling {NEW}: pulling manifest", f"pulling {NEW}: done"]
    assert start(server, ROOM, is_pulling=True) == []  # It is there now.
    assert server.pages.count("/api/pull") == 1


@pytest.mark.parametrize(
    ("lacking", "settings"),
    [
        (OllamaServer(shelf={}), {"num_ctx": 2048}),
        (OllamaServer(shelf={"qwen3:4b": StubModel()}), {"num_ctx": 2048, "think": True}),
        (OllamaServer(shelf={"qwen3:4b": StubModel(context_max=512, is_thinker=True)}), {"num_ctx": 2048}),
        (OllamaServer(version="0.9.6"), {"num_ctx": 2048}),
        (OllamaServer(api_key=KEY), {"num_ctx": 2048}),
    ],
)
@held
async def test_server_of_several_that_will_not_do_is_named(lacking: OllamaServer, settings: Settings) -> None:
    sound = OllamaServer(shelf={"qwen3:4b": StubModel(is_thinker=True)})
    async with sound, lacking:
        with pytest.raises(ConfigError, match=lacking.host):
            async with started(ollama_at(sound.host, lacking.host, settings=settings)):
                pass


@held
async def test_server_that_was_away_at_the_start_is_looked_at_before_it_serves() -> None:
    sound, late, said = OllamaServer(), OllamaServer(version="0.5.0"), list[str]()
    async with sound, late:
        await late.die()
        async with started(ollama_at(sound.host, late.host, said=said)) as backend:
            await late.__aenter__()
            endpoint = backend.endpoints.at(late.host)
            for version in (late.version, sound.version):
                late.version, probes = version, endpoint.probes
                move(ENDPOINT_REST_S_MAX)
                while endpoint.probes == probes:
                    await backend.generate(request())

    (line,) = [line for line in said if "0.5.0" in line]
    assert line.startswith(f"model m: {late.host} cannot serve (")
    assert len(late.loads) == len(late.chats) == 1  # Nothing is asked of the model before its server will do.
    assert said[-1] == f"model m: {late.host} serves again"


def test_long_pull_is_told_of_at_a_bounded_rate() -> None:
    server = OllamaServer(library={NEW: StubModel()})
    lines = start(server, ROOM, is_pulling=True, clock=StridingClock(OLLAMA_PULL_SAY_INTERVAL_S / 10))

    assert 8 <= len(lines) <= 13
    assert all(re.fullmatch(rf"pulling {NEW}: .* \d+% of 2,000 MB", line) for line in lines[1:-1])


@held
async def test_pull_of_several_servers_says_where_each_goes() -> None:
    said: list[str] = []
    first, second = (OllamaServer(library={NEW: StubModel()}) for _ in range(2))
    async with AsyncExitStack() as stack:
        hosts = [(await stack.enter_async_context(server)).host for server in (first, second)]
        await stack.enter_async_context(started(ollama_at(*hosts, settings=ROOM, is_pulling=True, said=said)))

    assert {line for line in said if "done" in line} == {f"pulling {NEW} at {host}: done" for host in hosts}


def test_context_that_nobody_chose_is_told() -> None:
    (line,) = start(OllamaServer(), {})

    assert "4096 tokens; set num_ctx" in line


SMALL = {"qwen3:4b": StubModel(context_max=8192), "thinker:latest": StubModel(context_max=512)}


@pytest.mark.parametrize(
    ("server", "settings", "told"),
    [
        (OllamaServer(shelf=SMALL), {"num_ctx": 16384}, r"num_ctx: found 16384; .* 8192 tokens"),
        (OllamaServer(shelf=SMALL), {"model": "thinker", "num_ctx": 1024}, "context of 512"),  # The latest of its name.
        (OllamaServer(), {"think": True}, "thinking"),
        (OllamaServer(), {"model": NEW}, "manifest: file does"),
        *(
            (OllamaServer(version=old), {}, rf"Ollama {old} .*shortens prompts.*0\.12\.6")
            for old in ("0.12.5", "0.9.6", "0.1.48-rc1")
        ),
        *((OllamaServer(api_key=key), {}, r"401: unauthorized; check .* \$OLLAMA_API_KEY") for key in (KEY, "other")),
    ],
)
def test_server_that_will_not_do_is_refused_with_what_is_wrong(
    server: OllamaServer, settings: Settings, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        start(server, settings, is_pulling=True)


@pytest.mark.parametrize(
    ("version", "settings", "missing"),
    [
        ("0.12.6", {"temperature", "top_k"}, None),
        ("0.12.6", {"repetition_penalty"}, "it ignores repetition_penalty with some models"),
        ("0.29.9", {"presence_penalty", "frequency_penalty"}, "it ignores frequency_penalty, presence_penalty"),
        ("0.30.0-rc1", {"repetition_penalty"}, None),
        ("1.0.0", {"repetition_penalty"}, None),
        ("0.0.0", {"repetition_penalty"}, None),
        ("from source", {"repetition_penalty"}, None),
    ],
)
def test_version_must_honour_the_settings_in_use(version: str, settings: set[str], missing: str | None) -> None:
    told = missing_in(version, settings=settings)

    assert told is None if missing is None else told is not None and told.startswith(missing)


def test_server_that_is_no_ollama_or_does_not_run_is_told_as_such() -> None:
    with pytest.raises(EngineDeadError, match="malformed reply"):
        start(OllamaServer(look=lambda _received, _due: Send(200, b"hello")), {})

    with pytest.raises(EngineDeadError, match=r"http://127.0.0.1:9 does not answer.*ollama serve.*host"):
        start(OllamaServer(), {"host": "http://127.0.0.1:9"})


@held
async def test_server_that_cannot_load_the_model_is_told_as_one_that_answers() -> None:
    def full(received: Received, _due: Send) -> Send | None:
        is_chat = received.path == "/api/chat"
        return failure(500, "model requires more system memory than is available") if is_chat else None

    small, said = OllamaServer(look=full), list[str]()
    async with OllamaServer() as sound, small, started(ollama_at(sound.host, small.host, said=said)):
        (line,) = [line for line in said if "more system memory" in line]
        assert line.startswith(f"model m: {small.host} cannot serve (")
        with pytest.raises(EngineDeadError, match=r"cannot serve .*more system memory") as caught:
            async with started(ollama_at(small.host)):
                pass
    assert "ollama serve" not in str(caught.value)


def test_official_client_trusts_the_certificates_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(__file__).with_name("localhost.pem"))
    context, body = SSLContext(PROTOCOL_TLS_SERVER), b'{"models": []}'
    context.load_cert_chain(own)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(200, len(body)) + body)
        await writer.drain()

    async def program() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            async with client_of(f"https://127.0.0.1:{port}", None) as client:
                assert not (await client.ps()).models

    monkeypatch.setenv("SSL_CERT_FILE", own)
    certificates.cache_clear()  # They are read once in a process.
    try:
        asyncio.run(program())
    finally:
        certificates.cache_clear()


def follow(*steps_s: float, is_whole: bool = False) -> tuple[list[str], float]:
    """What is told of a pull whose progress comes after each of these delays, and how long it took."""
    lines: list[str] = []

    async def pull() -> AsyncIterator[ProgressResponse]:
        for number, delay_s in enumerate(steps_s):
            await asyncio.sleep(delay_s)
            yield ProgressResponse(status="pulling aa11", total=100, completed=number)
        if is_whole:
            yield ProgressResponse(status="success")

    async def program() -> float:
        redactor = Redactor(None)
        await follow_pull("some", pull(), redactor=redactor, clock=SimulatedClock(), say=lines.append)
        return asyncio.get_running_loop().time()

    return lines, simulate(program)


def test_pull_may_take_as_long_as_it_goes_on() -> None:
    lines, took_s = follow(*[OLLAMA_PULL_STALL_S_MAX - 1] * 100, is_whole=True)

    assert took_s > 50 * OLLAMA_PULL_STALL_S_MAX
    assert "aa11, 0%" in lines[0]
    assert lines[-1] == "pulling some: done"


def test_pull_that_stalls_or_ends_too_early_has_failed() -> None:
    with pytest.raises(EngineDeadError, match="nothing for 300 s"):
        follow(1.0, OLLAMA_PULL_STALL_S_MAX + 1, is_whole=True)
    with pytest.raises(EngineDeadError, match="before it succeeded"):
        follow(1.0)
