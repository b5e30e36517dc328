"""What is found out at the start: which servers answer, and whether they have the model."""

from __future__ import annotations

import asyncio

import pytest

from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
)
from tests.backends.openai.asking import NOBODY, reply_of
from tests.sim.behaviour import Send, failure
from tests.sim.openai_run import backend_for
from tests.sim.openai_server import OpenaiServer
from tests.sim.requests import request


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
    assert said[0].startswith(f"model m: {NOBODY} does not answer ")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (failure(401, "who are you?"), r"status 401: who are you\?; check the key in \$STUB_KEY"),
        (failure(400, "use max_completion_tokens"), "status 400: use max_completion_tokens"),
    ],
)
def test_start_with_a_wrong_setting_is_told_as_such(said: Send, text: str) -> None:
    async def program() -> None:
        async with OpenaiServer(page=lambda _received: said, script=lambda received: said) as server:
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
    server = OpenaiServer(page=lambda _received: failure(status, "not for you"))

    assert reply_of(server).text
    assert [received.is_canary for received in server.received] == [True, False]


def test_start_fails_when_no_server_answers() -> None:
    async def program() -> None:
        backend = backend_for(NOBODY)
        try:
            with pytest.raises(EngineDeadError, match=r"127\.0\.0\.1:9/v1 does not answer"):
                await backend.start()
        finally:
            await backend.close()

    asyncio.run(program())


def test_start_names_the_models_there_are_when_one_is_missing() -> None:
    async def program() -> None:
        async with OpenaiServer() as good, OpenaiServer(models=("llama", "gemma")) as bad:
            backend = backend_for(good.url, bad.url)
            try:
                with pytest.raises(ConfigError, match=r"'stub'; .*: gemma, llama") as caught:
                    await backend.start()
                assert caught.value.key == ("model_definitions", "m", "openai_config", "base_urls", 1)
            finally:
                await backend.close()

    asyncio.run(program())


def test_model_that_the_only_server_lacks_is_told_as_the_setting_that_names_it() -> None:
    async def program() -> None:
        async with OpenaiServer(models=("llama",)) as server:
            backend = backend_for(server.url)
            try:
                with pytest.raises(ConfigError, match=r"openai_config\.model: .*'stub'; .*: llama$") as caught:
                    await backend.start()
                assert caught.value.key == ("model_definitions", "m", "openai_config", "model")
            finally:
                await backend.close()

    asyncio.run(program())


def test_no_health_page_is_asked() -> None:
    server = OpenaiServer()
    reply_of(server)

    assert server.pages == ["/v1/models"]
    assert [received.path for received in server.received] == ["/v1/chat/completions"]
