"""The backend against real sockets: what it says of a request, and what it makes of an endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType

import pytest

from mac_runner.backends.openai import OpenaiBackend
from mac_runner.backends.openai import backend as backend_module
from mac_runner.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import FinishReason, Reply, TokenCount
from tests.sim.behaviour import Behaviour, Drip, Flood, Hang, Received, Reset, Say, Send, failure, squeezed
from tests.sim.openai_run import Settings, backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

KEY = "sk-canary-0123456789"
NOBODY = "http://127.0.0.1:9/v1"  # The discard port: nobody listens there.


def only(behaviour: Behaviour) -> Callable[[Received], Behaviour]:
    """Every request is answered so, a canary well."""
    return lambda received: Say() if received.is_canary else behaviour


def run(
    program: Callable[[OpenaiBackend], Awaitable[None]],
    *servers: OpenaiServer,
    key: str | None = None,
    settings: Settings = MappingProxyType({}),
    said: list[str] | None = None,
) -> None:
    """A program with a started backend for these servers, which puts what it tells into `said`."""

    async def main() -> None:
        async with asyncio.TaskGroup():
            for server in servers:
                await server.__aenter__()
            backend = backend_for(*(server.url for server in servers), key=key, settings=settings, said=said)
            try:
                await backend.start()
                await program(backend)
            finally:
                await backend.close()
                await backend.close()
                for server in servers:
                    await server.die()

    asyncio.run(main())


def reply_of(server: OpenaiServer) -> Reply:
    """The reply to a request."""
    replies: list[Reply] = []

    async def program(backend: OpenaiBackend) -> None:
        replies.append(await backend.generate(request()))

    run(program, server)
    return replies[0]


def error_of(
    server: OpenaiServer, *, key: str | None = None, settings: Settings = MappingProxyType({})
) -> BackendError:
    """The error a request ends in."""
    errors: list[BackendError] = []

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(BackendError) as caught:
            await backend.generate(request())
        errors.append(caught.value)

    run(program, server, key=key, settings=settings)
    return errors[0]


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

    assert str(error_of(server)) == f"{server.url}: status 500: out of memory"
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


def test_nobody_waits_for_a_server_that_can_go_to_another() -> None:
    busy = OpenaiServer(script=lambda received: failure(429, "slow down", headers=(("Retry-After", "60"),)))

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(TransientBackendError) as caught:
            await backend.generate(request())

        assert caught.value.retry_after_s is None
        assert (await backend.generate(request())).text

    run(program, busy, OpenaiServer())


@pytest.mark.usefixtures("hurried")
def test_server_that_asks_for_a_pause_is_sent_nothing_before_it_is_over() -> None:
    server = OpenaiServer(script=lambda received: failure(503, "loading", headers=(("Retry-After", "30"),)))

    async def program(backend: OpenaiBackend) -> None:
        for number in range(3):
            with pytest.raises(TransientBackendError, match="loading"):
                await backend.generate(request(conversation=f"c-{number}"))
        await asyncio.sleep(0.1)
        with pytest.raises(TransientBackendError, match="none of") as caught:
            await backend.generate(request())

        assert caught.value.retry_after_s is not None
        assert caught.value.retry_after_s > 25
        assert server.requests == 3

    run(program, server)


@pytest.mark.parametrize("is_well", [True, False])
def test_server_that_fails_in_a_row_is_found_out_by_a_canary(is_well: bool) -> None:
    broken = failure(500, "CUDA error")
    server = OpenaiServer(script=only(broken) if is_well else lambda received: broken)

    async def program(backend: OpenaiBackend) -> None:
        told: list[bool] = []
        for number in range(3):
            with pytest.raises(TransientBackendError, match="CUDA error") as caught:
                await backend.generate(request(conversation=f"c-{number}"))
            told.append(caught.value.is_unreachable)

        assert told == [False, False, not is_well]
        assert [received.is_canary for received in server.received] == [False, False, False, True]

    run(program, server)


def test_overflow_is_a_reply() -> None:
    reply = reply_of(OpenaiServer(script=lambda received: failure(400, "", code="context_length_exceeded")))

    assert reply == Reply(text="", finish_reason=FinishReason.OVERFLOW, tokens=TokenCount())


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


def test_key_is_blotted_out_of_what_is_quoted_of_a_reply_that_is_none() -> None:
    said = Send(body=b'{"error": "I do not know sk-canary-0123456789"}')
    error = error_of(OpenaiServer(script=only(said)), key=KEY)

    assert "I do not know ***" in str(error)


@pytest.mark.usefixtures("hurried")
def test_silent_server_is_found_out_by_a_canary() -> None:
    error = error_of(OpenaiServer(script=lambda received: Hang()), settings={"timeout_s": 0.2})

    assert isinstance(error, TransientBackendError)
    assert "no answer within 0.2 s" in str(error)
    assert error.is_unreachable


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("behaviour", [Drip(interval_s=0.05), Hang(), Say(latency_s=30.0)])
def test_slow_server_is_not_a_dead_one(behaviour: Behaviour) -> None:
    """The whole time of a sending is bounded, not the time between two bytes; a canary tells slow from dead."""
    server = OpenaiServer(script=only(behaviour))

    error = error_of(server, settings={"timeout_s": 0.2})
    assert isinstance(error, TransientBackendError)
    assert not error.is_unreachable
    assert [received.is_canary for received in server.received] == [False, True]


@pytest.mark.usefixtures("hurried")
def test_requests_that_time_out_together_share_one_canary() -> None:
    server = OpenaiServer(script=lambda received: Hang())

    async def program(backend: OpenaiBackend) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(expect(backend, f"c-{number}"))

    async def expect(backend: OpenaiBackend, conversation: str) -> None:
        with pytest.raises(TransientBackendError):
            await backend.generate(request(conversation=conversation))

    run(program, server, settings={"timeout_s": 0.2})
    assert sum(received.is_canary for received in server.received) == 1


@pytest.mark.usefixtures("hurried")
def test_endpoint_that_is_gone_is_set_aside_and_taken_back() -> None:
    first, second = OpenaiServer(), OpenaiServer()
    said: list[str] = []

    async def program(backend: OpenaiBackend) -> None:
        await first.die()
        with pytest.raises(TransientBackendError, match="no connection") as caught:
            await backend.generate(request(conversation="x"))
        for number in range(10):
            await backend.generate(request(conversation=f"c-{number}"))
        served_alone = second.requests
        await first.__aenter__()
        await asyncio.sleep(0.1)
        for number in range(10, 20):
            await backend.generate(request(conversation=f"c-{number}"))

        assert not caught.value.is_unreachable
        assert served_alone == 10
        assert [received.is_canary for received in first.received].count(True) == 1
        assert first.requests > 1

    run(program, first, second, said=said)
    assert [line.removeprefix(f"model m: {first.url} ").split(" (")[0] for line in said] == [
        "is set aside",
        "serves again",
    ]


def test_server_that_hangs_up_on_kept_connections_is_sent_the_request_over_a_new_one() -> None:
    server = OpenaiServer(answers_per_connection=1)
    replies: list[Reply] = []

    async def program(backend: OpenaiBackend) -> None:
        for number in range(3):
            replies.append(await backend.generate(request(conversation=f"c-{number}")))

    run(program, server)
    assert [reply.text for reply in replies] == [replies[0].text] * 3
    assert server.requests == 3


def test_server_that_dies_over_a_request_on_a_kept_connection_is_told_as_a_death() -> None:
    is_there = asyncio.Event()

    def hang(received: Received) -> Behaviour:
        if received.number == 0:
            return Say()
        is_there.set()
        return Hang()

    server = OpenaiServer(script=hang)

    async def program(backend: OpenaiBackend) -> None:
        await backend.generate(request())
        asked = asyncio.ensure_future(backend.generate(request()))
        await is_there.wait()
        await server.die()
        with pytest.raises(TransientBackendError, match="the connection broke") as caught:
            await asked
        assert caught.value.is_engine_death

    run(program, server)


@pytest.mark.parametrize("others", [0, 1])
def test_server_that_dies_with_requests_in_flight_is_told_as_a_death(others: int) -> None:
    """Every request that it had tells of it, those of another server do not; one canary is sent for all of them."""
    caught: list[TransientBackendError] = []
    all_there, all_told = asyncio.Event(), asyncio.Event()

    def hang(_received: Received) -> Hang:
        if sum(one.requests for one in servers) == 6:
            all_there.set()
        return Hang()

    servers = [OpenaiServer(script=hang) for _ in range(1 + others)]
    server = servers[0]

    async def program(backend: OpenaiBackend) -> None:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(expect(backend, f"c-{number}")) for number in range(6)]
            await all_there.wait()
            await server.die()
            await all_told.wait()
            for task in asking:
                task.cancel()

    async def expect(backend: OpenaiBackend, conversation: str) -> None:
        with pytest.raises(TransientBackendError) as fault:
            await backend.generate(request(conversation=conversation))
        caught.append(fault.value)
        if len(caught) == server.requests:
            all_told.set()

    run(program, *servers)
    assert len(caught) == server.requests == 6 // (1 + others)
    assert all(fault.is_engine_death for fault in caught)


@pytest.mark.parametrize("behaviour", [Reset(), failure(500, "EngineCore encountered an issue. See stack trace")])
def test_server_that_breaks_off_and_answers_a_canary_has_not_died(behaviour: Behaviour) -> None:
    error = error_of(OpenaiServer(script=only(behaviour)))

    assert isinstance(error, TransientBackendError)
    assert not error.is_engine_death


def test_server_whose_engine_has_ended_is_dead() -> None:
    error = error_of(OpenaiServer(script=lambda received: failure(500, "EngineCore encountered an issue. See")))

    assert isinstance(error, TransientBackendError)
    assert error.is_engine_death
    assert error.is_unreachable


def test_nobody_left_is_told_as_an_engine_that_is_gone() -> None:
    server = OpenaiServer()

    async def program(backend: OpenaiBackend) -> None:
        await server.die()
        errors: list[TransientBackendError] = []
        for _ in range(3):
            with pytest.raises(TransientBackendError) as caught:
                await backend.generate(request())
            errors.append(caught.value)

        assert [error.is_unreachable for error in errors] == [True, True, True]
        assert "no connection" in str(errors[0])
        assert f"none of {server.url} answers" in str(errors[1])
        assert errors[1].retry_after_s is not None

    run(program, server)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_server_that_refuses_everybody_ends_the_run(status: int) -> None:
    error = error_of(
        OpenaiServer(script=lambda received: failure(status, "no such key")), settings={"api_key_env": "STUB_KEY"}
    )

    assert isinstance(error, EngineDeadError)
    assert f"status {status}: no such key" in str(error)
    assert "check the key in $STUB_KEY" in str(error)


@pytest.mark.parametrize("others", [0, 1])
def test_server_that_refuses_whatever_it_is_asked_costs_two_conversations_at_most(others: int) -> None:
    server = OpenaiServer(script=lambda received: failure(400, "no chat template"), latency_s=0.01)
    kinds: list[type[BackendError]] = []

    async def program(backend: OpenaiBackend) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(ask(backend, f"c-{number}"))

    async def ask(backend: OpenaiBackend, conversation: str) -> None:
        try:
            await backend.generate(request(conversation=conversation))
        except BackendError as error:
            kinds.append(type(error))

    run(program, server, *(OpenaiServer() for _ in range(others)))
    assert kinds.count(RequestRefusedError) == 2
    assert set(kinds) == {RequestRefusedError, TransientBackendError if others else EngineDeadError}


def test_server_that_refuses_some_in_a_row_and_answers_a_canary_serves_on() -> None:
    server = OpenaiServer(script=only(failure(400, "not with these words")))

    async def program(backend: OpenaiBackend) -> None:
        for number in range(7):
            with pytest.raises(RequestRefusedError):
                await backend.generate(request(conversation=f"c-{number}"))

    run(program, server)
    assert [received.is_canary for received in server.received].count(True) == 2


@pytest.mark.usefixtures("hurried")
def test_server_that_refuses_the_canary_alone_is_alive() -> None:
    def script(received: Received) -> Behaviour:
        return failure(400, "at least 16 tokens") if received.is_canary else Hang()

    error = error_of(OpenaiServer(script=script), settings={"timeout_s": 0.2})

    assert isinstance(error, TransientBackendError)
    assert not error.is_unreachable


def test_requests_refused_together_all_end_the_run() -> None:
    """None of them fails its conversation while the canary is under way."""
    server = OpenaiServer(script=lambda received: failure(401, "expired"), latency_s=0.01)
    errors: list[BackendError] = []

    async def program(backend: OpenaiBackend) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(expect(backend, f"c-{number}"))

    async def expect(backend: OpenaiBackend, conversation: str) -> None:
        with pytest.raises(BackendError) as caught:
            await backend.generate(request(conversation=conversation))
        errors.append(caught.value)

    run(program, server)
    assert {type(error) for error in errors} == {EngineDeadError}


def test_others_absorb_the_work_of_an_endpoint_that_refuses_everybody() -> None:
    bad, good = OpenaiServer(script=lambda received: failure(401, "who?")), OpenaiServer()

    async def program(backend: OpenaiBackend) -> None:
        refused = 0
        for number in range(10):
            try:
                await backend.generate(request(conversation=f"c-{number}"))
            except TransientBackendError:
                refused += 1

        assert refused == 1
        assert good.requests == 9

    run(program, bad, good)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("is_long", [True, False])
def test_requests_given_up_from_outside_count_against_the_endpoint_that_had_the_time_to_answer(
    monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    server = OpenaiServer(script=lambda received: Hang())
    monkeypatch.setattr(backend_module, "CANARY_S_MAX", 0.02 if is_long else 5.0)

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await backend.generate(request())
        if not is_long:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await backend.generate(request())
            return
        with pytest.raises(TransientBackendError, match="none of") as caught:
            async with asyncio.timeout(10):
                await backend.generate(request())
        assert caught.value.is_unreachable

    run(program, server)


def test_start_needs_one_server_that_answers() -> None:
    said: list[str] = []

    async def program() -> None:
        async with OpenaiServer() as server:
            backend = backend_for(NOBODY, server.url, said=said)
            await backend.start()
            reply = await backend.generate(request())
            await backend.close()
            assert reply.text

    asyncio.run(program())
    assert len(said) == 1
    assert said[0].startswith(f"model m: {NOBODY} does not answer (no connection: ")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (failure(401, "who are you?"), r"status 401: who are you\?; check the key in \$STUB_KEY"),
        (failure(400, "use max_completion_tokens"), "status 400: use max_completion_tokens"),
    ],
)
def test_start_with_a_wrong_setting_is_told_as_such(said: Send, text: str) -> None:
    async def program() -> None:
        async with OpenaiServer(page=said, script=lambda received: said) as server:
            backend = backend_for(server.url, settings={"api_key_env": "STUB_KEY"})
            try:
                with pytest.raises(ConfigError, match=text) as caught:
                    await backend.start()
                assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls")
            finally:
                await backend.close()

    asyncio.run(program())


@pytest.mark.parametrize("status", [403, 404, 405])
def test_server_that_does_not_list_its_models_is_known_by_a_completion(status: int) -> None:
    server = OpenaiServer(page=failure(status, "not for you"))

    assert reply_of(server).text
    assert [received.is_canary for received in server.received] == [True, False]


@pytest.mark.usefixtures("hurried")
def test_server_that_denied_everybody_and_then_died_is_no_reason_to_stop_for_good() -> None:
    server = OpenaiServer(script=lambda received: failure(401, "starting"))

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(EngineDeadError):
            await backend.generate(request())
        await server.die()
        await asyncio.sleep(0.1)
        with pytest.raises(TransientBackendError, match="none of"):
            await backend.generate(request())

    run(program, server)


def test_start_fails_when_no_server_answers() -> None:
    async def program() -> None:
        backend = backend_for(NOBODY)
        try:
            with pytest.raises(EngineDeadError, match=r"127\.0\.0\.1:9/v1 does not answer .* start the server"):
                await backend.start()
        finally:
            await backend.close()

    asyncio.run(program())


def test_start_names_the_models_there_are_when_one_is_missing() -> None:
    async def program() -> None:
        async with OpenaiServer() as good, OpenaiServer(models=("llama", "gemma")) as bad:
            backend = backend_for(good.url, bad.url)
            try:
                with pytest.raises(ConfigError, match="no model 'stub'; it has: gemma, llama") as caught:
                    await backend.start()
                assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls", 1)
            finally:
                await backend.close()

    asyncio.run(program())


def test_no_health_page_is_asked() -> None:
    server = OpenaiServer()
    reply_of(server)

    assert {received.path for received in server.received} == {"/v1/chat/completions"}


def test_model_that_the_only_server_lacks_is_told_as_the_setting_that_names_it() -> None:
    async def program() -> None:
        async with OpenaiServer(models=("llama",)) as server:
            backend = backend_for(server.url)
            try:
                with pytest.raises(
                    ConfigError, match=r"openai_config\.model: .*no model 'stub'; it has: llama$"
                ) as caught:
                    await backend.start()
                assert caught.value.key == ("model_definitions", "m", "openai_config", "model")
            finally:
                await backend.close()

    asyncio.run(program())


@pytest.mark.usefixtures("hurried")
def test_server_that_refuses_whatever_it_is_asked_is_no_matter_of_the_key() -> None:
    server = OpenaiServer(script=lambda received: failure(400, "no such parameter"))

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(2):
            with pytest.raises(RequestRefusedError):
                await backend.generate(request())
        with pytest.raises(EngineDeadError, match="no such parameter; check what the agents' settings") as caught:
            await backend.generate(request())
        assert "key" not in str(caught.value)

    run(program, server)


@pytest.mark.usefixtures("hurried")
def test_servers_that_are_all_set_aside_are_told_with_why() -> None:
    server = OpenaiServer(script=lambda received: Send(200, b"<html>Welcome!</html>"))

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(3):
            with pytest.raises(TransientBackendError, match="malformed"):
                await backend.generate(request())
        with pytest.raises(TransientBackendError, match=r"none of .* answers; the last word of .*: malformed reply"):
            await backend.generate(request())

    run(program, server)
