"""From an entry of `model_definitions` to the backend, and what is refused on the way."""

from __future__ import annotations

import sys

import pytest

import mac_runner.backends
from mac_runner.backends import Backend
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.ollama.testing import OllamaBackend
from mac_runner.config import AgentDefinition
from mac_runner.errors import ConfigError
from tests.backends.building import bare, built, defined


def build(*agents: AgentDefinition, record_tokens: bool = False, host: str = "http://127.0.0.1:11434") -> Backend:
    definition = defined(
        OllamaConfig(model="qwen3:4b", host=host, max_in_flight=7),
        record_tokens=record_tokens,
    )
    return built(definition, *agents)


def test_definition_makes_a_backend_that_has_not_touched_the_server() -> None:
    backend = build()

    assert isinstance(bare(backend), OllamaBackend)
    assert (backend.capacity, backend.token_budget) == (7, None)


def test_every_setting_of_an_agent_is_honoured() -> None:
    build(
        AgentDefinition(
            agent_id="a",
            role="r",
            model="m",
            top_p=0.5,
            top_k=3,
            min_p=0.1,
            presence_penalty=1.0,
            frequency_penalty=1.0,
            repetition_penalty=1.1,
            stop=("x",),
        )
    )


def test_effort_that_ollama_would_refuse_or_ignore_is_refused_with_its_agent() -> None:
    def agent(effort: str, *, thinking: bool | None = None) -> AgentDefinition:
        return AgentDefinition(agent_id="a", role="r", model="m", reasoning_effort=effort, thinking=thinking)

    build(agent("high", thinking=True))
    with pytest.raises(ConfigError, match=r"agent_definitions\.1\.reasoning_effort: found 'minimal'"):
        build(agent("low"), agent("minimal"))
    with pytest.raises(ConfigError, match=r"agent_definitions\.0\.reasoning_effort: `thinking: false`"):
        build(agent("low", thinking=False))


def test_tokens_that_ollama_does_not_tell_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model_definitions\.m\.record_tokens: .*'ollama'"):
        build(record_tokens=True)


def test_missing_package_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mac_runner.backends.ollama")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(mac_runner.backends, "ollama")
    monkeypatch.setitem(sys.modules, "ollama", None)

    with pytest.raises(ConfigError, match=r"'ollama'.*mac_runner\[ollama\]") as raised:
        build()

    assert raised.value.key == ("model_definitions", "m", "backend")
