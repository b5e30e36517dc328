"""What the backend does in its own way over real sockets: what a request carries, what is told, and how it starts."""

from __future__ import annotations

import pytest

from mac_runner.errors import ConfigError, EngineDeadError, TransientBackendError
from tests.backends.asking import KEY, NOBODY, error_of, found, only, reply_of, started, up
from tests.sim.behaviour import Send, failure, squeezed
from tests.sim.held_time import held
from tests.sim.openai_run import backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request

NO_SERVER = f"{NOBODY}/v1"


@pytest.mark.parametrize(("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")])
def test_request_carries_its_id_and_the_key(endpoint: str, path: str) -> None:
    server = OpenaiServer()
    asked = request(agent="Zoë\r\nX-Evil: 1", conversation="task 7")
    reply_of(server, asked, key=KEY, settings={"endpoint": endpoint})
    (received,) = server.received

    assert received.path == path
    assert received.headers["x-request-id"] == "task%207/0/Zo%C3%AB%0D%0AX-Evil%3A%201/0/0"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["accept-encoding"] == "identity"
    assert "x-evil" not in received.headers
    assert server.pages == ["/v1/models"]  # No page of its health is asked for.


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_a_pause_is_told_of_as_one_that_turns_requests_away(status: int) -> None:
    told: list[str] = []
    busy = failure(status, f"{KEY} is busy", headers=(("Retry-After", "7"),))
    error_of(OpenaiServer(script=lambda _received: busy), key=KEY, said=told)

    (line,) = told
    assert f"(status {status}: *** is busy" in line


@held
async def test_nobody_waits_for_a_server_that_can_go_to_another() -> None:
    busy = failure(429, "slow down", headers=(("Retry-After", "60"),))
    async with up(OpenaiServer(script=lambda _received: busy), OpenaiServer()) as backend:
        error = await found(backend)

        assert isinstance(error, TransientBackendError)
        assert error.retry_after_s is None
        assert (await backend.generate(request())).text


def test_key_is_blotted_out_of_a_compressed_error() -> None:
    said = squeezed(failure(400, f"bad header: Bearer {KEY}").body, 400)

    assert "bad header: Bearer ***" in str(error_of(OpenaiServer(script=only(said)), key=KEY))


@held
async def test_start_needs_one_server_that_answers() -> None:
    said: list[str] = []
    async with OpenaiServer() as server, started(backend_for(NO_SERVER, server.url, said=said)) as backend:
        assert (await backend.generate(request())).text

    (line,) = said
    assert line.startswith(f"model m: {NO_SERVER} does not answer ")
    with pytest.raises(EngineDeadError, match=f"{NO_SERVER} does not answer"):
        async with started(backend_for(NO_SERVER)):
            pass


@held
async def test_setting_that_every_request_is_refused_for_is_bad_input() -> None:
    def refuse(_received: object) -> Send:
        return failure(400, "use max_completion_tokens")

    with pytest.raises(ConfigError, match="status 400: use max_completion_tokens") as caught:
        async with up(OpenaiServer(page=refuse, script=refuse)):
            pass
    assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls")


@pytest.mark.parametrize("status", [403, 404, 405])
def test_server_that_does_not_list_its_models_is_known_by_a_completion(status: int) -> None:
    server = OpenaiServer(page=lambda _received: failure(status, "not for you"))

    assert reply_of(server).text
    assert [received.is_canary for received in server.received] == [True, False]


@held
async def test_start_names_the_server_whose_model_is_missing_and_the_models_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'stub'; .*: gemma, llama") as caught:
        async with up(OpenaiServer(), OpenaiServer(models=("llama", "gemma"))):
            pass
    assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls", 1)
