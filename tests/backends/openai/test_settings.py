"""What a kind of server cannot do is refused before anything is touched, and a key is never shown."""

from __future__ import annotations

import os

import pytest

from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.openai.testing import OpenaiBackend
from mac_runner.config import AgentDefinition, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue
from tests.backends.building import bare, built, defined

VARIABLE = "STUB_API_KEY"


def definition(*, record_tokens: bool = False, **settings: JsonValue) -> ModelDefinition:
    section = {"model": "m", "base_urls": ["http://h/v1"], **settings}
    return defined(OpenaiConfig.model_validate(section), record_tokens=record_tokens)


def agent(**settings: JsonValue) -> AgentDefinition:
    return AgentDefinition.model_validate({"agent_id": "a", "role": "player", "model": "stub", **settings})


def build_it(asked: ModelDefinition, *agents: AgentDefinition) -> OpenaiBackend:
    backend = bare(built(asked, *agents, name="stub"))
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


def test_missing_key_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "  \n", None):
        if value is None:
            monkeypatch.delenv(VARIABLE)
        else:
            monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(ConfigError, match=f"the environment variable {VARIABLE} is not set"):
            build_it(definition(api_key_env=VARIABLE))


@pytest.mark.parametrize("key", ["sk-se cret", "sk-sécret", "sk-se\ncret"])
def test_key_that_cannot_be_one_is_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(ConfigError) as caught:
        build_it(definition(api_key_env=VARIABLE))

    assert "sk-" not in str(caught.value)
    assert VARIABLE in str(caught.value)


@pytest.mark.parametrize("pasted", ["gsk_1a2b3c4d5e6f7g8h9i0j", "a" * 32])
def test_key_in_the_place_of_the_name_of_its_variable_is_not_quoted(pasted: str) -> None:
    with pytest.raises(ConfigError, match="environment variable is") as caught:
        build_it(definition(api_key_env=pasted))

    assert pasted not in str(caught.value)


def test_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, VARIABLE, "sk-secret\n")

    build_it(definition(api_key_env=VARIABLE))
