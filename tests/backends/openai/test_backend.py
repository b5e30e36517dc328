"""One request over real sockets: what is sent, and what becomes of the answer."""

from __future__ import annotations

import asyncio

import pytest

from mac_runner.backends.openai.testing import OpenaiBackend
from mac_runner.errors import (
    BackendError,
    ConfigError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import FinishReason, Reply
from tests.backends.openai.asking import KEY, NOBODY, error_of, only, reply_of, run
from tests.sim.behaviour import Behaviour, Flood, Reset, Say, Send, failure, squeezed
from tests.sim.openai_run import backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request


def test_reply_comes_with_its_tokens() -> None:
    reply = reply_of(OpenaiServer(script=lambda received: Say("Aye, aye.", "length")))

    assert (reply.text, reply.finish_reason) == ("Aye, aye.", FinishReason.LENGTH)
    assert reply.tokens.completion == 2
    assert reply.tokens.prompt > 0


@pytest.mark.parametrize(("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
def test_request_carries_its_id_and_the_key(endpoint: str, path: str) -> None:
    server = OpenaiServer()

    async def program(backend: OpenaiBackend) -> None:
        await backend.generate(request(agent="Zoë\r\nX-Evil: 1", conversation="task 7"))

    run(program, server, key=KEY, settings={"endpoint": endpoint})
    (received,) = server.received

    assert received.path == path
    assert received.headers["x-request-id"] == "task%207/0/Zo%C3%AB%0D%0AX-Evil%3A%201/0/0"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["accept-encoding"] == "identity"
    assert "x-evil" not in received.headers


def test_one_request_is_sent_once_whatever_becomes_of_it() -> None:
    server = OpenaiServer(script=lambda received: failure(500, "out of memory"))

    assert str(error_of(server)).startswith(f"{server.url}: status 500: ")
    assert server.requests == 1


@pytest.mark.parametrize(
    ("behaviour", "kind", "text"),
    [
        (Reset(), TransientBackendError, "the connection broke"),
        (Reset(is_done=True), TransientBackendError, "the connection broke"),
        (Reset(sent=60), TransientBackendError, "the connection broke"),
        (Reset(sent=200), TransientBackendError, "the connection broke"),
        (Send(200, b"<html>Welcome!</html>"), TransientBackendError, "malformed reply"),
        (Send(200, b'{"choices": [{"mess'), TransientBackendError, "malformed reply"),
        (squeezed(b'{"choices": []}'), TransientBackendError, "malformed reply"),
        (Flood(), TransientBackendError, "malformed reply: more than 8388608 bytes"),
        (Send(302, b"", (("Location", NOBODY),)), TransientBackendError, "status 302"),
        (failure(400, "top_p must be positive"), RequestRefusedError, "top_p must be positive"),
        (failure(403, "not with these words"), RequestRefusedError, "not with these words"),
        (Say("", "content_filter"), RequestRefusedError, "content filter"),
    ],
)
def test_fault_has_its_verdict(behaviour: Behaviour, kind: type[BackendError], text: str) -> None:
    error = error_of(OpenaiServer(script=only(behaviour)))

    assert type(error) is kind
    assert text in str(error)


def test_answer_that_is_no_http_is_a_broken_connection() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        page = b'{"data": [{"id": "stub"}]}'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page)
        writer.write(head + page if line.startswith(b"GET") else b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        await writer.drain()
        writer.close()

    async def program() -> None:
        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            backend = backend_for(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
            await backend.start()
            try:
                with pytest.raises(TransientBackendError, match="the connection broke"):
                    await backend.generate(request())
            finally:
                await backend.close()

    asyncio.run(program())


def test_retry_after_reaches_the_scheduler() -> None:
    error = error_of(OpenaiServer(script=lambda received: failure(429, "slow down", headers=(("Retry-After", "7"),))))

    assert isinstance(error, TransientBackendError)
    assert (error.retry_after_s, error.is_unreachable, error.is_busy) == (7.0, False, True)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_a_pause_is_told_of_as_one_that_turns_requests_away(status: int) -> None:
    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(TransientBackendError):
            await backend.generate(request())

    told: list[str] = []
    run(
        program,
        OpenaiServer(script=lambda received: failure(status, "full", headers=(("Retry-After", "7"),))),
        said=told,
    )

    (line,) = told
    assert f"(status {status}" in line


def test_nobody_waits_for_a_server_that_can_go_to_another() -> None:
    busy = OpenaiServer(script=lambda received: failure(429, "slow down", headers=(("Retry-After", "60"),)))

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(TransientBackendError) as caught:
            await backend.generate(request())

        assert caught.value.retry_after_s is None
        assert (await backend.generate(request())).text

    run(program, busy, OpenaiServer())


@pytest.mark.parametrize("is_compressed", [False, True])
def test_key_is_blotted_out_of_what_a_server_says(is_compressed: bool) -> None:
    said = failure(400, f"bad header: Bearer {KEY}")
    error = error_of(OpenaiServer(script=only(squeezed(said.body, 400) if is_compressed else said)), key=KEY)

    assert KEY not in str(error)
    assert "bad header: Bearer ***" in str(error)


@pytest.mark.parametrize("key", ["EMPTY", "stop", "null"])
def test_key_that_is_a_word_takes_nothing_out_of_a_reply(key: str) -> None:
    replies: list[Reply] = []

    async def program(backend: OpenaiBackend) -> None:
        replies.append(await backend.generate(request()))

    run(program, OpenaiServer(script=lambda received: Say(text=f"The box says {key}.")), key=key)
    assert [reply.text for reply in replies] == [f"The box says {key}."]


@pytest.mark.parametrize(
    ("key", "said", "verdict"),
    [
        ("insufficient_quota", failure(429, "spent", code="insufficient_quota"), RequestRefusedError),
        ("encountered", failure(500, "EngineCore encountered an issue. See the log."), TransientBackendError),
    ],
)
def test_verdict_goes_by_the_words_of_the_server_even_where_they_hold_the_key(
    key: str, said: Send, verdict: type[BackendError]
) -> None:
    server = OpenaiServer(script=only(said))
    error = error_of(server, key=key)

    assert isinstance(error, verdict)
    assert server.received[-1].is_canary
    assert key not in str(error)


def test_overflow_is_one_even_where_its_code_is_the_key() -> None:
    replies: list[Reply] = []

    async def program(backend: OpenaiBackend) -> None:
        replies.append(await backend.generate(request()))

    code = "context_length_exceeded"
    run(program, OpenaiServer(script=lambda received: failure(400, "", code=code)), key=code)
    assert [reply.finish_reason for reply in replies] == [FinishReason.OVERFLOW]


def test_key_is_blotted_out_of_what_the_user_is_told() -> None:
    told: list[str] = []

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(TransientBackendError):
            await backend.generate(request())

    run(program, OpenaiServer(script=lambda received: failure(429, f"{KEY} is busy")), key=KEY, said=told)
    assert len(told) == 1
    assert "(status 429: *** is busy)" in told[0]


def test_key_is_blotted_out_of_the_models_that_a_server_lists() -> None:
    async def program(backend: OpenaiBackend) -> None:
        raise AssertionError("it starts")

    with pytest.raises(ExceptionGroup) as caught:
        run(program, OpenaiServer(models=(f"model-of-{KEY}",)), key=KEY)
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(error).endswith(": model-of-***")


def test_key_is_blotted_out_of_what_is_quoted_of_a_reply_that_is_none() -> None:
    said = Send(body=b'{"error": "I do not know sk-canary-0123456789"}')
    error = error_of(OpenaiServer(script=only(said)), key=KEY)

    assert "not know ***" in str(error)
