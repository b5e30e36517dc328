"""What is found out at the start: server, version, model, and the context it was loaded with."""

from __future__ import annotations

import asyncio
import re

import pytest

from mac_runner.backends.ollama.testing import OLLAMA_PULL_SAY_INTERVAL_S, missing_in
from mac_runner.errors import ConfigError, EngineDeadError
from mac_runner.simulation.testing import SimulatedClock
from tests.backends.ollama.asking import ask, backend_at, started
from tests.sim.ollama_server import OllamaStub, StubModel

NEW = "llama3.2:3b"


def test_model_is_loaded_at_the_start_with_the_context_it_will_be_used_with() -> None:
    with OllamaStub() as stub:
        started(backend_at(stub.host, num_ctx=16384))

    (load,) = (body for path, body in stub.requests if path == "/api/chat")
    assert load["messages"] == []
    assert load["options"] == {"num_ctx": 16384}
    assert (load["truncate"], load["shift"], load["keep_alive"]) == (False, False, "5m")


def test_missing_model_is_refused_with_what_to_do() -> None:
    with OllamaStub() as stub:
        told = rf"m\.ollama_config\.model: .*{NEW}.*run `ollama pull {NEW}`, or start the run with --pull"
        with pytest.raises(ConfigError, match=told):
            started(backend_at(stub.host, model=NEW))

    assert not any(path == "/api/pull" for path, _ in stub.requests)


def test_missing_model_is_pulled_on_request_and_its_progress_told_now_and_then() -> None:
    lines: list[str] = []
    with OllamaStub() as stub:
        stub.library[NEW] = StubModel()
        started(backend_at(stub.host, model=NEW, is_pulling=True, num_ctx=2048, say=lines.append))

    assert NEW in stub.models
    assert lines == [f"pulling {NEW}: pulling manifest", f"pulling {NEW}: done"]


def test_long_pull_is_told_of_at_a_bounded_rate() -> None:
    lines: list[str] = []
    clock = _Striding(OLLAMA_PULL_SAY_INTERVAL_S / 10)
    with OllamaStub() as stub:
        stub.library[NEW] = StubModel()
        started(backend_at(stub.host, model=NEW, is_pulling=True, num_ctx=2048, say=lines.append, clock=clock))

    assert 8 <= len(lines) <= 13
    assert all(re.fullmatch(rf"pulling {NEW}: .* \d+% of 2,000 MB", line) for line in lines[1:-1])


def test_model_that_is_there_is_not_pulled_again() -> None:
    with OllamaStub() as stub:
        started(backend_at(stub.host, is_pulling=True))

    assert not any(path == "/api/pull" for path, _ in stub.requests)


def test_model_that_nobody_has_published_cannot_be_pulled() -> None:
    with OllamaStub() as stub, pytest.raises(ConfigError, match="manifest: file does"):
        started(backend_at(stub.host, model=NEW, is_pulling=True))


def test_model_without_a_tag_is_its_latest() -> None:
    with (
        OllamaStub(models={"thinker:latest": StubModel(context_max=512)}) as stub,
        pytest.raises(ConfigError, match="context of 512"),
    ):
        started(backend_at(stub.host, model="thinker", num_ctx=1024))


def test_context_that_the_model_does_not_have_is_refused() -> None:
    with (
        OllamaStub(models={"qwen3:4b": StubModel(context_max=8192)}) as stub,
        pytest.raises(ConfigError, match=r"num_ctx: found 16384; .* 8192 tokens"),
    ):
        started(backend_at(stub.host, num_ctx=16384))


def test_context_that_nobody_chose_is_told() -> None:
    lines: list[str] = []
    with OllamaStub() as stub:
        started(backend_at(stub.host, say=lines.append))

    assert len(lines) == 1
    assert "4096 tokens; set num_ctx" in lines[0]


def test_model_that_cannot_think_is_refused_when_it_shall() -> None:
    with OllamaStub() as stub, pytest.raises(ConfigError, match="thinking"):
        started(backend_at(stub.host, think=True))


@pytest.mark.parametrize("version", ["0.12.5", "0.9.6", "0.1.48-rc1"])
def test_server_that_would_shorten_prompts_is_refused(version: str) -> None:
    with (
        OllamaStub(version=version) as stub,
        pytest.raises(ConfigError, match=rf"Ollama {version} .*shortens prompts.*0\.12\.6"),
    ):
        started(backend_at(stub.host))


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


def test_server_that_is_no_ollama_is_told_as_such() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async def program() -> None:
        async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
            backend = backend_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(EngineDeadError, match="malformed answer"):
                await backend.start()
            await backend.close()

    asyncio.run(program())


def test_key_of_the_environment_goes_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "secret\n")
    with OllamaStub(api_key="secret") as stub:
        assert ask(backend_at(stub.host)).text == "Hello."


@pytest.mark.parametrize("key", [None, "secreta"])
def test_wrong_key_is_bad_input(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    if key:
        monkeypatch.setenv("OLLAMA_API_KEY", key)
    with (
        OllamaStub(api_key="secret") as stub,
        pytest.raises(ConfigError, match=r"status 401: unauthorized; set OLLAMA_API_KEY"),
    ):
        started(backend_at(stub.host))


@pytest.mark.parametrize("key", ["sk-se cret", "sk-sécret", "sk-se\ncret"])
def test_key_that_cannot_be_one_is_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", key)
    with pytest.raises(ConfigError, match="OLLAMA_API_KEY") as caught:
        backend_at("http://127.0.0.1:1")

    assert "sk-" not in str(caught.value)


class _Striding(SimulatedClock):
    """A clock that is `stride_s` further on whenever it is looked at."""

    def __init__(self, stride_s: float) -> None:
        super().__init__()
        self._stride_s = stride_s
        self._now_s = 0.0

    def monotonic_s(self) -> float:
        self._now_s += self._stride_s
        return self._now_s
