"""What the backend makes of an endpoint that fails, hangs, dies or refuses, over real sockets in held time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest

from mac_runner.backends import Backend
from mac_runner.backends.testing import CANARY_S_MAX, ENDPOINT_REST_S
from mac_runner.errors import BackendError, EngineDeadError, RequestRefusedError, TransientBackendError
from mac_runner.types import Reply
from tests.backends.asking import (
    HELD_S,
    KEY,
    Script,
    Wire,
    fault_of,
    first,
    found,
    once_there,
    only,
    started,
    up,
)
from tests.sim import ollama_server
from tests.sim.behaviour import Behaviour, Hang, Raw, Received, Reset, Say, Send, echo, failure, head
from tests.sim.held_time import held, move
from tests.sim.ollama_server import OllamaServer
from tests.sim.openai_run import backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

TIMEOUT_S = 20.0  # Longer than a canary is waited for.
DRIP = Raw((head(200, 999), *[b" "] * 999), interval_s=1.0)
HURRIED = {"timeout_s": TIMEOUT_S}


def always(behaviour: Behaviour) -> Script:
    return lambda _received: behaviour


def silence(_received: Received) -> Hang:
    """Longer than anybody waits."""
    move(TIMEOUT_S)
    return Hang()


async def die(server: OpenaiServer) -> None:
    """It dies, and its clients have found out that their connections are gone."""
    await server.die()
    for _ in range(5):
        await asyncio.sleep(0)


def asking(backend: Backend, numbers: Iterable[int]) -> list[asyncio.Task[Reply | BackendError]]:
    """A request of each of these conversations, all at once."""
    return [asyncio.create_task(found(backend, request(conversation=f"c-{number}"))) for number in numbers]


async def faults(backend: Backend, count: int) -> list[TransientBackendError]:
    """The faults of so many requests, each of a conversation of its own, one after the other."""
    errors = [await found(backend, request(conversation=f"c-{number}")) for number in range(count)]
    assert all(isinstance(error, TransientBackendError) for error in errors), errors
    return [error for error in errors if isinstance(error, TransientBackendError)]


@held
async def test_server_that_asks_for_a_pause_is_sent_nothing_before_it_is_over(wire: Wire) -> None:
    server = wire.serve(always(wire.fail(503, "loading", headers=(("Retry-After", "30"),))))
    async with up(server, key=KEY) as backend:
        assert all("loading" in str(error) for error in await faults(backend, 3))
        move(29.0)
        (error,) = await faults(backend, 1)

    assert "none of" in str(error)
    assert error.retry_after_s == 1.0
    assert server.requests == 3


@pytest.mark.parametrize("is_well", [True, False])
@held
async def test_server_that_fails_in_a_row_is_found_out_by_a_canary(wire: Wire, is_well: bool) -> None:
    broken = wire.fail(500, "CUDA error")
    server = wire.serve(only(broken) if is_well else always(broken))
    async with up(server, key=KEY) as backend:
        errors = await faults(backend, 3)

    assert all("CUDA error" in str(error) for error in errors)
    assert [error.is_unreachable for error in errors] == [False, False, not is_well]
    assert [received.is_canary for received in server.received] == [False, False, False, True]


@pytest.mark.ci
@pytest.mark.parametrize("canary", [None, failure(400, "at least 16 tokens")])
def test_silent_server_is_found_out_by_a_canary_unless_it_refuses_the_canary_alone(canary: Send | None) -> None:
    server = OpenaiServer(script=lambda received: (received.is_canary and canary) or silence(received))
    error = fault_of(server, settings=HURRIED)

    assert "within 20 s" in str(error)
    assert error.is_unreachable is (canary is None)


@pytest.mark.ci
@pytest.mark.parametrize("behaviour", [DRIP, Hang(), Say(latency_s=30.0)])
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
    error = fault_of(server, settings=HURRIED)

    assert not error.is_unreachable
    assert [received.is_canary for received in server.received] == [False, True]


def once(*behaviours: Behaviour) -> Script:
    """The first requests are answered so. All canaries have to wait."""
    answers = first(*behaviours)
    return lambda received: silence(received) if received.is_canary else answers(received)


@held
async def test_refused_request_fails_alone_where_a_word_with_its_settings_takes_long(wire: Wire) -> None:
    async with up(wire.serve(once(wire.fail(400, "not with these words"))), key=KEY) as backend:
        with pytest.raises(RequestRefusedError, match="not with these words"):
            await backend.generate(request())
        assert (await backend.generate(request())).text


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ([ollama_server.failure(403, "not with these words")], RequestRefusedError),
        ([Reset(), Reset()], TransientBackendError),  # The second one over a new connection.
        ([ollama_server.failure(500, "out of memory")] * 3, TransientBackendError),
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
@held
async def test_ollama_where_a_word_has_to_wait_works_if_it_tells_its_version(
    faults: list[Behaviour], kind: type[BackendError], is_there: bool
) -> None:
    """It generates for others, or loads the model again after a rest: both may take minutes."""

    def look(received: Received, _due: Send) -> Hang | None:
        return silence(received) if received.path == "/api/version" and not is_there else None

    server = OllamaServer(answer=once(*faults))
    async with up(server) as backend:
        server.look = look
        errors = [await found(backend) for _ in range(len(faults) if len(faults) == 3 else 1)]
        last = errors[-1]
        assert type(last) is (kind if is_there else TransientBackendError)
        assert getattr(last, "is_unreachable", False) is not is_there
        assert not (is_there and getattr(last, "is_engine_death", False))
        if is_there:
            assert (await backend.generate(request())).text


@pytest.mark.ci
@held
async def test_requests_that_time_out_together_share_one_canary() -> None:
    server = OpenaiServer(script=lambda received: Hang() if received.number < 19 else silence(received))
    async with up(server, settings=HURRIED) as backend:
        errors = await asyncio.gather(*asking(backend, range(20)))

    assert all(isinstance(error, TransientBackendError) for error in errors)
    assert sum(received.is_canary for received in server.received) == 1


@held
async def test_endpoint_that_is_gone_is_set_aside_and_taken_back(wire: Wire) -> None:
    first, second = wire.serve(echo), wire.serve(echo)
    said: list[str] = []
    async with up(first, second, key=KEY, said=said) as backend:
        del said[:]
        await die(first)
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
        homes = {(await backend.generate(request(conversation="x"))).timing.server for _ in range(5)}

    assert not caught.value.is_unreachable
    assert served_alone == 10
    assert [received.is_canary for received in first.received[:2]] == [True, False]
    assert [line.split(" (")[0].split(" ", 3)[3] for line in said] == ["is set aside", "serves again"]
    assert len(homes) == 1  # A conversation stays where its prefix is.


@pytest.mark.parametrize("others", [0, 1])
@held
async def test_server_that_dies_with_requests_in_flight_is_told_as_a_death(wire: Wire, others: int) -> None:
    """Every request that it had tells of it, those of another server do not; one canary is sent for all of them."""
    all_there = asyncio.Event()

    def hang(_received: Received) -> Hang:
        if sum(one.requests for one in servers) == 6:
            all_there.set()
        return Hang()

    servers = [wire.serve(hang) for _ in range(1 + others)]
    async with up(*servers, key=KEY, settings={"max_in_flight": 16}) as backend:
        left = {*asking(backend, range(6))}
        await all_there.wait()
        await servers[0].die()
        caught: list[Reply | BackendError] = []
        while len(caught) < servers[0].requests:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            caught += [task.result() for task in done]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    assert len(caught) == servers[0].requests == 6 // (1 + others)
    assert all(isinstance(fault, TransientBackendError) and fault.is_engine_death for fault in caught)


def test_server_whose_engine_has_ended_is_dead() -> None:
    error = fault_of(OpenaiServer(script=always(failure(500, "EngineCore encountered an issue. See"))))

    assert error.is_engine_death
    assert error.is_unreachable


@held
async def test_nobody_left_is_told_as_an_engine_that_is_gone(wire: Wire) -> None:
    server = wire.serve(echo)
    async with up(server, key=KEY) as backend:
        await die(server)
        errors = await faults(backend, 3)

    assert [error.is_unreachable for error in errors] == [True, True, True]
    assert "no connection" in str(errors[0])
    assert f"none of {server.host}" in str(errors[1])
    assert errors[1].retry_after_s is not None


@pytest.mark.parametrize("others", [0, 1])
@held
async def test_server_that_refuses_whatever_it_is_asked_costs_no_conversation(wire: Wire, others: int) -> None:
    server = wire.serve(once_there(20 // (1 + others), always(wire.fail(400, "no chat template"))))
    server.latency_s = HELD_S
    servers = server, *(wire.serve(echo) for _ in range(others))
    async with up(*servers, key=KEY, settings={"max_in_flight": 64}) as backend:
        kinds = [type(one) for one in await asyncio.gather(*asking(backend, range(20))) if not isinstance(one, Reply)]

    assert set(kinds) == {TransientBackendError if others else EngineDeadError}


@held
async def test_server_that_refuses_some_in_a_row_and_answers_a_canary_serves_on(wire: Wire) -> None:
    server = wire.serve(only(wire.fail(400, "not with these words")))
    async with up(server, key=KEY) as backend:
        errors = [await found(backend, request(conversation=f"c-{number}")) for number in range(7)]

    assert {type(error) for error in errors} == {RequestRefusedError}
    assert [received.is_canary for received in server.received].count(True) == 3


@held
async def test_requests_refused_together_all_end_the_run(wire: Wire) -> None:
    """None of them fails its conversation while the canary is under way."""
    server = wire.serve(once_there(20, always(wire.fail(401, "expired"))))
    server.latency_s = HELD_S
    async with up(server, key=KEY, settings={"max_in_flight": 64}) as backend:
        errors = await asyncio.gather(*asking(backend, range(20)))

    assert {type(error) for error in errors} == {EngineDeadError}


@pytest.mark.parametrize(
    ("status", "words"), [(401, "who?"), (400, "conversation roles must alternate"), (400, "system role not supported")]
)
@held
async def test_others_absorb_the_work_of_an_endpoint_that_refuses_everybody(
    wire: Wire, status: int, words: str
) -> None:
    """Also where it says that it objects to the roles of a request, and refuses a single word as well."""
    good = wire.serve(echo)
    async with up(wire.serve(always(wire.fail(status, words))), good, key=KEY) as backend:
        errors = [await found(backend, request(conversation=f"c-{number}")) for number in range(10)]

    assert [type(error) for error in errors if not isinstance(error, Reply)] == [TransientBackendError]
    assert good.requests == 9


async def give_up(backend: Backend, after_s: float) -> None:
    """Wait no longer for a reply."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await backend.generate(request())


@held
async def test_requests_given_up_from_outside_count_against_a_server_that_had_the_time_to_answer(wire: Wire) -> None:
    async with up(wire.serve(silence), key=KEY) as backend:
        for _ in range(3):
            await give_up(backend, CANARY_S_MAX)
        with pytest.raises(TransientBackendError, match="none of") as caught:
            await backend.generate(request())

    assert caught.value.is_unreachable


@pytest.mark.ci
@held
async def test_requests_given_up_from_outside_too_soon_count_against_nobody() -> None:
    def script(_received: Received) -> Hang:
        move(CANARY_S_MAX - 1.0)
        return Hang()

    server = OpenaiServer(script=script)
    async with up(server) as backend:
        for _ in range(4):
            await give_up(backend, CANARY_S_MAX - 1.0)

    assert not any(received.is_canary for received in server.received)


@held
async def test_server_that_denied_everybody_and_then_died_is_no_reason_to_stop_for_good(wire: Wire) -> None:
    server = wire.serve(always(wire.fail(401, "starting")))
    async with up(server, key=KEY) as backend:
        with pytest.raises(EngineDeadError):
            await backend.generate(request())
        await die(server)
        move(ENDPOINT_REST_S)
        with pytest.raises(TransientBackendError, match="none of"):
            await backend.generate(request())


@held
async def test_server_that_refuses_whatever_it_is_asked_is_no_matter_of_the_key(wire: Wire) -> None:
    async with up(wire.serve(always(wire.fail(400, "no such parameter"))), key=KEY) as backend:
        dead = await found(backend)

    assert isinstance(dead, EngineDeadError)
    assert "no such parameter; " in str(dead)
    assert "key" not in str(dead)


@held
async def test_servers_that_are_all_set_aside_are_told_with_why(wire: Wire) -> None:
    async with up(wire.serve(always(wire.fail(502, "no worker"))), key=KEY) as backend:
        assert all("no worker" in str(error) for error in await faults(backend, 3))
        with pytest.raises(TransientBackendError, match=r"none of .*: no worker"):
            await backend.generate(request())


@pytest.mark.parametrize("count", [0, 1])
@held
async def test_reply_without_token_ids_ends_the_run_where_none_had_any_before(count: int) -> None:
    """The server would send none to any request; later it is an oddity of this reply."""
    bare = {"message": {"content": "x"}, "finish_reason": "stop"}
    whole = {**bare, "token_ids": [7], "logprobs": {"content": [{"logprob": -1.5}]}}
    bodies = [{"choices": [choice], "prompt_token_ids": [1]} for choice in [whole] * count + [bare]]
    server = OpenaiServer(script=first(*(Send(200, json.dumps(body).encode()) for body in bodies)))
    async with server, started(backend_for(server.url, has_tokens=True)) as backend:
        *_, error = [await found(backend) for _ in bodies]

    assert type(error) is (TransientBackendError if count else EngineDeadError)
    assert "no token_ids" in str(error)
