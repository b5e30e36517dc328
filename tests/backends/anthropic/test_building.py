"""What is refused before anything is sent, with the agent and the key."""

from __future__ import annotations

import pytest

from mac_runner.backends.anthropic import AnthropicConfig
from mac_runner.config import AgentDefinition
from mac_runner.errors import ConfigError
from tests.backends.anthropic.asking import KEY
from tests.backends.building import built, defined


def build(config: AnthropicConfig | None = None, **agent: object) -> None:
    definition = defined(config or AnthropicConfig(model="stub"))
    built(definition, AgentDefinition.model_validate({"agent_id": "a", "role": "r", "model": "m", **agent}))


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ({"temperature": 1.5}, r"temperature: found 1\.5; Anthropic's API takes 0 to 1"),
        ({"min_p": 0.1}, "min_p: the backend 'anthropic' of model 'm' does not support it"),
        ({"presence_penalty": 1.0}, "presence_penalty: .*does not support it"),
        ({"frequency_penalty": 1.0}, "frequency_penalty: .*does not support it"),
        ({"repetition_penalty": 1.1}, "repetition_penalty: .*does not support it"),
        ({"stop": ["\n"]}, "stop: .*no text of blanks alone"),
        ({"thinking": True, "temperature": 0.5}, r"temperature: found 0\.5; beside `thinking: true`"),
        ({"thinking": True, "top_k": 4}, "top_k: beside `thinking: true`"),
        ({"thinking": True, "top_p": 0.5}, r"top_p: found 0\.5; beside `thinking: true`"),
        ({"thinking": True, "max_tokens": 2000}, "max_tokens: found 2000; .*must exceed thinking_budget_tokens, 2000"),
    ],
)
def test_setting_that_the_api_has_not_is_refused(
    agent: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    with pytest.raises(ConfigError, match=rf"^agent_definitions\.0\.{expected}"):
        build(AnthropicConfig(model="stub", api_version="2023-06-01", thinking_budget_tokens=2000), **agent)


def test_settings_that_the_api_has_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    old = AnthropicConfig(model="stub", api_version="2023-06-01")
    build(old, temperature=0.5, top_p=0.5, top_k=3, stop=["x"], reasoning_effort="low", thinking=False)
    build(old, thinking=True, top_p=0.99, max_tokens=4000)
    build(thinking=True, temperature=1)


@pytest.mark.parametrize(("setting", "value"), [("temperature", 0), ("top_p", 0.5), ("top_k", 3)])
def test_how_tokens_are_drawn_is_refused_with_the_version_that_takes_it(
    setting: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    with pytest.raises(ConfigError, match=rf"{setting}: .*or set anthropic_config.api_version: 2023-06-01"):
        build(None, **{setting: value})


def test_missing_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    with pytest.raises(ConfigError, match=r"api_key_env: .*ANTHROPIC_API_KEY"):
        build()
