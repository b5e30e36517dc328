"""What the backend makes of an endpoint that fails, hangs, dies or refuses, over real sockets in held time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mac_runner.backends.openai.testing import CANARY_S_MAX, ENDPOINT_REST_S, OpenaiBackend
from mac_runner.errors import (
    BackendError,
    EngineDeadError,
    RequestRefusedError,
    TransientBackendError,
)
from mac_runner.types import Reply
from tests.backends.openai.asking import error_of, only, run
from tests.sim.behaviour import Behaviour, Drip, Hang, Received, Reset, Say, Send, encoded, failure
from tests.sim.held_time import move
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

TIMEOUT_S = 20.0  # Longer than a canary is waited for.
LATENCY_S = 1.0


def silence(_received: Received) -> Hang:
    """Longer than anybody waits."""
    move(TIMEOUT_S)
    return Hang()


def once_there(number: int, behaviour: Behaviour) -> Callable[[Received], Behaviour]:
    """Every request is answered so, the first of them once there are `number`."""

    def script(received: Received) -> Behaviour:
        if received.number >= number - 1:
            asyncio.get_running_loop().call_soon(move, LATENCY_S)
        return behaviour

    return script


def unkept(_received: Received) -> Send:
    """The models, over a connection that ends with them, so that none is left to find out that the server has died."""
    return Send(200, encoded({"data": [{"id": "stub"}]}), (("Connection", "close"),))


def test_server_that_asks_for_a_pause_is_sent_nothing_before_it_is_over() -> None:
    server = OpenaiServer(script=lambda received: failure(503, "loading", headers=(("Retry-After", "30"),)))

    async def program(backend: OpenaiBackend) -> None:
        for number in range(3):
            with pytest.raises(TransientBackendError, match="loading"):
                await backend.generate(request(conversation=f"c-{number}"))
        move(29.0)
        with pytest.raises(TransientBackendError, match="none of") as caught:
            await backend.generate(request())

        assert caught.value.retry_after_s == 1.0
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


@pytest.mark.ci
def test_silent_server_is_found_out_by_a_canary() -> None:
    error = error_of(OpenaiServer(script=silence), settings={"timeout_s": TIMEOUT_S})

    assert isinstance(error, TransientBackendError)
    assert "within 20 s" in str(error)
    assert error.is_unreachable


@pytest.mark.ci
@pytest.mark.parametrize("behaviour", [Drip(interval_s=1.0), Hang(), Say(latency_s=30.0)])
def test_slow_server_is_not_a_dead_one(behaviour: Behaviour) -> None:
    """The whole time of a sending is bounded, not the time between two bytes; a canary tells slow from dead."""
    passing: list[asyncio.Task[None]] = []

    async def pass_slowly() -> None:
        for _ in range(int(TIMEOUT_S) + 1):
            await asyncio.sleep(0)
            move(1.0)

    def script(received: Received) -> Behaviour:
        if received.is_canary:
            return Say()
        passing.append(asyncio.create_task(pass_slowly()))
        return behaviour

    server = OpenaiServer(script=script)

    error = error_of(server, settings={"timeout_s": TIMEOUT_S})
    assert isinstance(error, TransientBackendError)
    assert not error.is_unreachable
    assert [received.is_canary for received in server.received] == [False, True]


@pytest.mark.ci
def test_requests_that_time_out_together_share_one_canary() -> None:
    server = OpenaiServer(script=lambda received: Hang() if received.number < 19 else silence(received))

    async def program(backend: OpenaiBackend) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(expect(backend, f"c-{number}"))

    async def expect(backend: OpenaiBackend, conversation: str) -> None:
        with pytest.raises(TransientBackendError):
            await backend.generate(request(conversation=conversation))

    run(program, server, settings={"timeout_s": TIMEOUT_S})
    assert sum(received.is_canary for received in server.received) == 1


def test_endpoint_that_is_gone_is_set_aside_and_taken_back() -> None:
    first, second = OpenaiServer(page=unkept), OpenaiServer()
    said: list[str] = []

    async def program(backend: OpenaiBackend) -> None:
        await first.die()
        with pytest.raises(TransientBackendError, match="no connection") as caught:
            await backend.generate(request(conversation="x"))
        for number in range(10):
            await backend.generate(request(conversation=f"c-{number}"))
        served_alone = second.requests
        await first.__aenter__()
        move(ENDPOINT_REST_S)
        for number in range(10, 1000):
            if first.requests > 1:
                break
            await backend.generate(request(conversation=f"c-{number}"))

        assert not caught.value.is_unreachable
        assert served_alone == 10
        assert [received.is_canary for received in first.received] == [True, False]

    run(program, first, second, said=said)
    assert [line.removeprefix(f"model m: {first.url} ").split(" (")[0] for line in said] == [
        "is set aside",
        "serves again",
    ]


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
    server = OpenaiServer(page=unkept)

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
    assert "key in $STUB_KEY" in str(error)


@pytest.mark.parametrize("others", [0, 1])
def test_server_that_refuses_whatever_it_is_asked_costs_two_conversations_at_most(others: int) -> None:
    refused = failure(400, "no chat template")
    server = OpenaiServer(script=once_there(20 // (1 + others), refused), latency_s=LATENCY_S)
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


@pytest.mark.ci
def test_server_that_refuses_the_canary_alone_is_alive() -> None:
    def script(received: Received) -> Behaviour:
        return failure(400, "at least 16 tokens") if received.is_canary else silence(received)

    error = error_of(OpenaiServer(script=script), settings={"timeout_s": TIMEOUT_S})

    assert isinstance(error, TransientBackendError)
    assert not error.is_unreachable


def test_requests_refused_together_all_end_the_run() -> None:
    """None of them fails its conversation while the canary is under way."""
    server = OpenaiServer(script=once_there(20, failure(401, "expired")), latency_s=LATENCY_S)
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


def test_requests_given_up_from_outside_count_against_an_endpoint_that_had_the_time_to_answer() -> None:
    server = OpenaiServer(script=silence)

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(3):
            await give_up(backend, CANARY_S_MAX)
        with pytest.raises(TransientBackendError, match="none of") as caught:
            await backend.generate(request())
        assert caught.value.is_unreachable

    run(program, server)


@pytest.mark.ci
def test_requests_given_up_from_outside_too_soon_count_against_nobody() -> None:
    def script(_received: Received) -> Hang:
        move(CANARY_S_MAX - 1.0)
        return Hang()

    server = OpenaiServer(script=script)

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(4):
            await give_up(backend, CANARY_S_MAX - 1.0)

    run(program, server)
    assert not any(received.is_canary for received in server.received)


async def give_up(backend: OpenaiBackend, after_s: float) -> None:
    """Wait no longer for a reply."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await backend.generate(request())


def test_server_that_denied_everybody_and_then_died_is_no_reason_to_stop_for_good() -> None:
    server = OpenaiServer(script=lambda received: failure(401, "starting"))

    async def program(backend: OpenaiBackend) -> None:
        with pytest.raises(EngineDeadError):
            await backend.generate(request())
        await server.die()
        move(ENDPOINT_REST_S)
        with pytest.raises(TransientBackendError, match="none of"):
            await backend.generate(request())

    run(program, server)


def test_server_that_refuses_whatever_it_is_asked_is_no_matter_of_the_key() -> None:
    server = OpenaiServer(script=lambda received: failure(400, "no such parameter"))

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(2):
            with pytest.raises(RequestRefusedError):
                await backend.generate(request())
        with pytest.raises(EngineDeadError, match="no such parameter; ") as caught:
            await backend.generate(request())
        assert "key" not in str(caught.value)

    run(program, server)


def test_servers_that_are_all_set_aside_are_told_with_why() -> None:
    server = OpenaiServer(script=lambda received: Send(200, b"<html>Welcome!</html>"))

    async def program(backend: OpenaiBackend) -> None:
        for _ in range(3):
            with pytest.raises(TransientBackendError, match="malformed"):
                await backend.generate(request())
        with pytest.raises(TransientBackendError, match=r"none of .*: malformed"):
            await backend.generate(request())

    run(program, server)


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
