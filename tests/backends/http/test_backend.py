"""What a request carries, what is told of servers, and how a backend of several starts, whatever their protocol."""

from __future__ import annotations

import asyncio

import pytest

from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.backends.testing import WITHHELD, AnthropicDialect, HttpBackend
from mac_runner.errors import ConfigError, EngineDeadError, TransientBackendError
from mac_runner.planning.testing import SimulatedClock
from tests.backends.asking import KEY, Wire, backend_of, error_of, found, only, reply_of, started, up
from tests.sim.anthropic_server import AnthropicServer
from tests.sim.behaviour import Hang, Received, echo, squeezed
from tests.sim.held_time import held
from tests.sim.openai_run import backend_for
from tests.sim.requests import request


def test_request_carries_its_id_and_the_key(wire: Wire) -> None:
    server = wire.serve(echo)
    reply_of(server, request(agent="Zoë\r\nX-Evil: 1", conversation="task 7"), key=KEY)
    (received,) = server.received

    assert received.headers["x-request-id"] == "task%207/0/Zo%C3%AB%0D%0AX-Evil%3A%201/0/0"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["accept-encoding"] == "identity"
    assert "x-evil" not in received.headers


@pytest.mark.parametrize("status", [429, 503])
@held
async def test_server_that_asks_for_a_pause_is_told_of_as_one_that_turns_requests_away(wire: Wire, status: int) -> None:
    told: list[str] = []
    busy = wire.fail(status, f"{KEY} is busy", headers=(("Retry-After", "7"),))
    async with up(wire.serve(lambda _received: busy), key=KEY, said=told) as backend:
        del told[:]
        await found(backend)

    (line,) = told
    assert f"(status {status}: {WITHHELD}" in line


@held
async def test_nobody_waits_for_a_server_that_can_go_to_another(wire: Wire) -> None:
    busy = wire.fail(429, "slow down", headers=(("Retry-After", "60"),))
    async with up(wire.serve(lambda _received: busy), wire.serve(echo), key=KEY) as backend:
        error = await found(backend)

        assert isinstance(error, TransientBackendError)
        assert error.retry_after_s is None
        assert (await backend.generate(request())).text


def test_compressed_error_with_the_key_in_it_is_withheld(wire: Wire) -> None:
    said = squeezed(wire.fail(400, f"bad header: Bearer {KEY}").body, 400)

    assert f"status 400: {WITHHELD}" in str(error_of(wire.serve(only(said)), key=KEY))


@held
async def test_start_needs_one_server_that_answers(wire: Wire) -> None:
    said: list[str] = []
    there, late = wire.serve(echo), wire.serve(echo)
    late.port = 9  # The discard port: nobody listens there.
    async with there, started(backend_of(late, there, key=KEY, said=said)) as backend:
        assert (await backend.generate(request())).text

    (line,) = [line for line in said if "does not answer" in line]
    assert line.startswith(f"model m: {late.host}")
    with pytest.raises(EngineDeadError, match=f"{late.host}.* does not answer"):
        async with started(backend_of(late, key=KEY)):
            pass


@held
async def test_request_under_way_when_its_backend_is_closed_is_told_that(wire: Wire) -> None:
    has_come = asyncio.Event()

    def script(_received: Received) -> Hang:
        has_come.set()
        return Hang()

    server = wire.serve(script)
    async with server, started(backend_of(server, key=KEY)) as backend:
        asking = asyncio.create_task(found(backend))
        await has_come.wait()
        await backend.close()

    assert "closed" in str(await asking)


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("http://localhost:8000/v1", "http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000/v1", "http://[::1]:8000/v1/", True),
        ("http://GPU-1/v1", "http://gpu-1:80/v1", True),
        ("http://gpu-1/v1", "http://gpu-1/v1", True),
        ("http://localhost:8000/v1", "http://localhost:8001/v1", False),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.2:8000/v1", False),
        ("http://gpu-1/a/v1", "http://gpu-1/b/v1", False),
    ],
)
def test_server_that_is_listed_twice_is_refused_by_whatever_names(first: str, second: str, is_one: bool) -> None:
    """Each would get a share of the requests, and an update of weights."""
    if not is_one:
        backend_for(first, second)
        return
    with pytest.raises(ConfigError, match="is listed twice") as caught:
        backend_for(first, second)
    assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls", 1)


@held
async def test_address_that_the_file_does_not_have_is_not_named_as_the_setting_at_fault() -> None:
    dialect = AnthropicDialect(AnthropicConfig(model="stub"))
    denying = AnthropicServer(api_key="another")
    async with denying:
        dialect.servers = (denying.host,)
        backend = HttpBackend("m", dialect, key=KEY, clock=SimulatedClock(), say=print)
        with pytest.raises(ConfigError, match=f"{denying.host}: status 401.*check the key") as caught:
            async with started(backend):
                pass

    assert caught.value.key == ("model_definitions", "m", "anthropic_config")
