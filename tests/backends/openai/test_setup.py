"""What a kind of server cannot do is refused before anything is touched, and a key is never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from mac_runner.backends.openai import OpenaiBackend, build
from mac_runner.config import AgentDefinition, ModelDefinition, OpenaiConfig
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue
from tests.backends.building import built
from tests.sim.loop import SimulatedClock

VARIABLE = "STUB_API_KEY"


def definition(*, record_tokens: bool = False, **settings: JsonValue) -> ModelDefinition:
    section = {"model": "m", "base_urls": ["http://h/v1"], **settings}
    return ModelDefinition(
        backend="openai", openai_config=OpenaiConfig.model_validate(section), record_tokens=record_tokens
    )


def agent(**settings: JsonValue) -> AgentDefinition:
    return AgentDefinition.model_validate({"agent_id": "a", "role": "player", "model": "stub", **settings})


def build_it(asked: ModelDefinition, *agents: AgentDefinition) -> OpenaiBackend:
    backend = built(asked, *agents, name="stub")
    assert isinstance(backend, OpenaiBackend)
    return backend


def refusal(asked: ModelDefinition, *agents: AgentDefinition) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build_it(asked, *agents)
    assert str(caught.value).startswith(".".join(map(str, caught.value.key)) + ": ")
    return caught.value


def test_capacity_is_known_before_the_start() -> None:
    assert build_it(definition(max_in_flight=9)).capacity == 9


@pytest.mark.parametrize("setting", ["top_k", "min_p", "repetition_penalty"])
def test_setting_outside_the_protocol_needs_a_server_of_vllm(setting: str) -> None:
    found = refusal(definition(), agent(), agent(**{setting: 1}))

    assert found.key == ("agent_definitions", 1, setting)
    assert "server: vllm" in str(found)
    build_it(definition(server="vllm"), agent(**{setting: 1}))
    build_it(definition(), agent(model="another", **{setting: 1}))


def test_recording_tokens_needs_a_server_of_vllm() -> None:
    assert "server: vllm" in str(refusal(definition(record_tokens=True)))
    build_it(definition(record_tokens=True, server="vllm"))


def test_template_switches_need_the_chat_of_a_server_of_vllm() -> None:
    switches: dict[str, JsonValue] = {"enable_thinking": False}

    assert "server: vllm" in str(refusal(definition(chat_template_kwargs=switches)))
    refusal(definition(chat_template_kwargs=switches, server="vllm", endpoint="completions"))
    build_it(definition(chat_template_kwargs=switches, server="vllm"))


def test_base_url_that_stands_there_twice_is_refused() -> None:
    found = refusal(definition(base_urls=["http://h/v1", "http://h/v1/"]))

    assert found.key == ("model_definitions", "stub", "openai_config", "base_urls", 1)


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}, {VARIABLE: "  \n"}])
def test_missing_key_is_an_error_that_names_the_variable(environ: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"the environment variable {VARIABLE} is not set"):
        build("stub", definition(api_key_env=VARIABLE), clock=SimulatedClock(), say=print, environ=environ)


@pytest.mark.parametrize("key", ["sk-se cret", "sk-sécret", "sk-se\ncret"])
def test_key_that_cannot_be_one_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("stub", definition(api_key_env=VARIABLE), clock=SimulatedClock(), say=print, environ={VARIABLE: key})

    assert "sk-" not in str(caught.value)
    assert VARIABLE in str(caught.value)


def test_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, VARIABLE, "sk-secret\n")

    build_it(definition(api_key_env=VARIABLE))
