"""From an entry of `model_definitions` to its backend: what is refused before anything is touched, under which key."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

import mac_runner.backends
from mac_runner.backends import factory
from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.ollama import OllamaConfig
from mac_runner.backends.openai import OpenaiConfig
from mac_runner.backends.testing import HttpBackend, OllamaBackend, ScriptedBackend, ScriptedConfig
from mac_runner.backends.vllm import VllmConfig
from mac_runner.errors import ConfigError, MissingPackageError
from mac_runner.section import Section
from mac_runner.spec import AgentDefinition
from tests.backends.building import built, defined

COMMAND = {"engine": "command", "command": ("serve", "{port}")}
OLD = {"api_version": "2023-06-01"}
KEY = "sk-canary-0123456789"
KEYS = {"openai": "STUB_API_KEY", "ollama": "OLLAMA_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
SWITCHES = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)


def openai(**settings: object) -> Section:
    return OpenaiConfig.model_validate({"model": "stub", "base_urls": ["http://h/v1"], **settings})


def ollama(**settings: object) -> Section:
    return OllamaConfig.model_validate({"model": "qwen3:4b", **settings})


def anthropic(**settings: object) -> Section:
    return AnthropicConfig.model_validate({"model": "stub", **settings})


def fleet(**settings: object) -> Section:
    return FleetModelConfig.model_validate({"model": "stub", **settings})


def agent(**settings: object) -> AgentDefinition:
    return AgentDefinition.model_validate({"agent_id": "a", "role": "r", "model": "m", **settings})


def test_what_a_package_builds_is_refused_unless_it_is_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = defined(ScriptedConfig(policy="p"))
    built_so: Any = object()
    monkeypatch.setattr(type(definition), "spec", replace(definition.spec, build=lambda _request: built_so))

    with pytest.raises(ConfigError, match=r"m\.backend: 'scripted' builds a object, .* mac_runner.backends.Backend"):
        built(definition)


def refusal(section: Section, *agents: AgentDefinition, **definition: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        built(defined(section, **definition), *agents)
    assert str(caught.value).startswith(".".join(map(str, caught.value.key)) + ": ")
    return caught.value


def test_definition_makes_a_backend_that_has_touched_nothing() -> None:
    found = {type(one): one for one in (built(defined(each(max_in_flight=7))) for each in (openai, ollama))}

    assert set(found) == {HttpBackend, OllamaBackend}
    assert {(one.capacity, one.token_budget) for one in found.values()} == {(7, None)}
    scripted = built(defined(ScriptedConfig(policy="echo", capacity=7)))
    assert isinstance(scripted, ScriptedBackend)
    assert scripted.capacity == 7


DRAWING = {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "stop": ["x"]}


@pytest.mark.parametrize(
    ("section", "asked"),
    [
        (openai(server="vllm"), DRAWING),
        (openai(), {"model": "another", **DRAWING}),
        (ollama(), {"presence_penalty": 1.0, "frequency_penalty": 1.0, **DRAWING}),
        (ollama(), {"reasoning_effort": "high", "thinking": True}),
        (ollama(), {"reasoning_effort": "low"}),
        (
            anthropic(**OLD),
            {"temperature": 0.5, "top_p": 0.5, "top_k": 3, "stop": ["x"], "reasoning_effort": "low", "thinking": False},
        ),
        (anthropic(**OLD), {"thinking": True, "top_p": 0.99, "max_tokens": 4000}),
        (anthropic(), {"thinking": True, "temperature": 1}),
        *((fleet(**engine), {"top_k": 5}) for engine in ({"engine": "vllm"}, {"engine": "nano"})),
        (fleet(**COMMAND, server="vllm"), {"top_k": 5}),
    ],
)
def test_settings_that_an_engine_has_are_taken(section: Section, asked: dict[str, object]) -> None:
    built(defined(section), agent(**asked))


BUDGET = anthropic(**OLD, thinking_budget_tokens=2000)


@pytest.mark.parametrize(
    ("section", "asked", "told"),
    [
        *((openai(), {name: 1}, f"{name}: .*server: vllm") for name in ("top_k", "min_p", "repetition_penalty")),
        (fleet(**COMMAND), {"top_k": 5}, "top_k: .*`fleet_config.server: vllm`"),
        (ollama(), {"reasoning_effort": "minimal"}, "reasoning_effort: found 'minimal'"),
        (ollama(), {"reasoning_effort": "low", "thinking": False}, "reasoning_effort: `thinking: false`"),
        (BUDGET, {"temperature": 1.5}, r"temperature: found 1\.5; Anthropic's API takes 0 to 1"),
        (BUDGET, {"min_p": 0.1}, "min_p: the backend 'anthropic' of model 'm' does not support it"),
        *(
            (BUDGET, {name: 1.1}, f"{name}: .*does not support it")
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        ),
        (BUDGET, {"stop": ["\n"]}, "stop: .*no text of blanks alone"),
        (BUDGET, {"thinking": True, "temperature": 0.5}, r"temperature: found 0\.5; beside `thinking: true`"),
        (BUDGET, {"thinking": True, "top_k": 4}, "top_k: beside `thinking: true`"),
        (BUDGET, {"thinking": True, "top_p": 0.5}, r"top_p: found 0\.5; beside `thinking: true`"),
        (
            BUDGET,
            {"thinking": True, "max_tokens": 2000},
            "max_tokens: found 2000; .*exceed thinking_budget_tokens",
        ),
        *(
            (anthropic(), {name: value}, f"{name}: .*or set anthropic_config.api_version: 2023-06-01")
            for name, value in {"temperature": 0, "top_p": 0.5, "top_k": 3}.items()
        ),
    ],
)
def test_setting_that_an_engine_has_not_is_refused_with_its_agent(
    section: Section, asked: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^agent_definitions\.1\.{told}"):
        built(defined(section), agent(), agent(**asked))


def test_tokens_are_recorded_where_the_engine_tells_them() -> None:
    for section in (openai(), ollama(), anthropic(), fleet(**COMMAND), ScriptedConfig(policy="echo")):
        assert refusal(section, record_tokens=True).key == ("model_definitions", "m", "record_tokens")
    assert "server: vllm" in str(refusal(openai(), record_tokens=True))
    for section in (openai(server="vllm"), fleet(engine="vllm"), fleet(engine="nano"), fleet(**COMMAND, server="vllm")):
        built(defined(section, record_tokens=True))


def test_template_switches_need_the_chat_of_a_server_of_vllm() -> None:
    assert "server: vllm" in str(refusal(openai(**SWITCHES)))
    refusal(openai(**SWITCHES, server="vllm", endpoint="completions"))
    built(defined(openai(**SWITCHES, server="vllm")))


def test_base_url_that_stands_there_twice_is_refused() -> None:
    found = refusal(openai(base_urls=["http://h/v1", "http://h/v1/"]))

    assert found.key == ("model_definitions", "m", "openai_config", "base_urls", 1)


def keyed(backend: str) -> Section:
    """A section whose key stands in the variable of KEYS."""
    return {"openai": openai(api_key_env="STUB_API_KEY"), "ollama": ollama(), "anthropic": anthropic()}[backend]


@pytest.mark.parametrize("backend", ["openai", "anthropic"])
@pytest.mark.parametrize("value", ["", "  \n", None])
def test_missing_key_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, backend: str, value: str | None
) -> None:
    monkeypatch.setenv(KEYS[backend], value or "")
    if value is None:
        monkeypatch.delenv(KEYS[backend])

    with pytest.raises(ConfigError, match=rf"api_key_env: .*{KEYS[backend]}.* not set"):
        built(defined(keyed(backend)))


@pytest.mark.parametrize("backend", KEYS)
@pytest.mark.parametrize("key", ["sk-se cret", "sk-sécret", "sk-se\ncret"])
def test_key_that_cannot_be_one_is_refused_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, backend: str, key: str
) -> None:
    monkeypatch.setenv(KEYS[backend], key)
    with pytest.raises(ConfigError, match=KEYS[backend]) as caught:
        built(defined(keyed(backend)))

    assert "sk-" not in str(caught.value)
    monkeypatch.setenv(KEYS[backend], "sk-secret\n")
    built(defined(keyed(backend)))


@pytest.mark.parametrize("pasted", ["gsk_1a2b3c4d5e6f7g8h9i0j", "a" * 32])
def test_key_in_the_place_of_the_name_of_its_variable_is_not_quoted(pasted: str) -> None:
    with pytest.raises(ConfigError, match="environment variable is") as caught:
        built(defined(openai(api_key_env=pasted)))

    assert pasted not in str(caught.value)


def test_missing_package_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mac_runner.backends.ollama")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(mac_runner.backends, "ollama")
    monkeypatch.setitem(sys.modules, "ollama", None)

    with pytest.raises(ConfigError, match=r"'ollama'.*\[ollama\]") as raised:
        built(defined(ollama()))

    assert raised.value.key == ("model_definitions", "m", "backend")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_vllm_is_told_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"vLLM .*\[vllm\]") as caught:
        built(defined(VllmConfig(model="some/model")))

    assert caught.value.key == ("model_definitions", "m", "backend")


def test_recording_tokens_without_the_package_for_their_files_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda _name: None)
    with pytest.raises(MissingPackageError, match=r"record_tokens: .*'pyarrow'.*\[data\]"):
        built(defined(ScriptedConfig(policy="echo"), record_tokens=True))
    built(defined(ScriptedConfig(policy="echo")))
