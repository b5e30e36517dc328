"""Experiment files written for a test, and what is said about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mac_runner.config import Loaded, load, load_experiment
from mac_runner.errors import ConfigError

GAME = """\
experiment_metadata:
  experiment_name: trial
conversation_config:
  environment: town_of_salem
  conversations: 3
model_definitions:
  folk:
    backend: scripted
    scripted_config: {policy: random}
agent_definitions:
  - {agent_id: player, role: player, model: folk}
"""
"""The smallest experiment with a game."""

SWEPT = """\
experiment_metadata: {experiment_name: trial, description: plain}
seed: 5
conversation_config: {environment: town_of_salem, conversations: 3}
game: {lobby: classic-7}
model_definitions:
  folk: {backend: scripted, scripted_config: {policy: random}}
agent_definitions:
  - {agent_id: player, role: player, model: folk}
  - {agent_id: other, role: player, model: folk}
"""

TALK = """\
experiment_metadata: {experiment_name: talk}
conversation_config: {environment: discussion, conversations: 1}
discussion: {topics: [bridges]}
model_definitions: {m: {backend: scripted, scripted_config: {policy: discussant}}}
agent_definitions:
"""
ANN = "  - {agent_id: ann, role: participant, model: m}\n"

SCRIPTED = "backend: scripted, scripted_config: {policy: random}"
OPENAI = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1]}"
PLAIN = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1], endpoint: completions}"
OURS = "backend: openai, openai_config: {model: m, base_urls: [http://h/v1], endpoint: completions, server: vllm}"
VLLM = "backend: vllm, vllm_config: {model: m}"
OLLAMA = "backend: ollama, ollama_config: {model: m}"
NANO = "backend: nano, nano_config: {model: m}"

FILE = Path("trial.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a file in it is named as a user would name it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, **flags: Any) -> Loaded:
    """What is loaded from a text as `trial.yaml`."""
    FILE.write_text(text, encoding="utf-8")
    return load_experiment(FILE, **flags)


def refused(text: str, **flags: Any) -> list[str]:
    """The lines of the ConfigError that the text is refused with."""
    FILE.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(FILE, **flags)
    return str(caught.value).splitlines()


def with_model(base: str, definition: str) -> str:
    """The experiment with `definition` as its only model."""
    before, _, after = base.partition("model_definitions:")
    return f"{before}model_definitions: {{folk: {{{definition}}}}}\n{after[after.index('agent_definitions:') :]}"


def on_fleet(settings: str) -> tuple[str]:
    """The flag that serves the model by a fleet."""
    return (f"model_definitions.folk={{backend: fleet, fleet_config: {{model: m, {settings}}}}}",)
