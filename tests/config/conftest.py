"""Experiment files written for a test, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mac_runner.config import Loaded, load_experiment
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

TALK = """\
experiment_metadata: {experiment_name: talk}
conversation_config: {environment: discussion, conversations: 1}
discussion: {topics: [bridges]}
model_definitions: {m: {backend: scripted, scripted_config: {policy: discussant}}}
agent_definitions:
"""


@pytest.fixture
def game_text() -> str:
    """The smallest experiment with a game; 11 lines."""
    return GAME


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loaded]:
    """Load a text as the file `trial.yaml`, named as a user would name it."""
    monkeypatch.chdir(tmp_path)

    def load_text(
        text: str, *, profile: str | None = None, overrides: Sequence[str] = (), seed: int | None = None
    ) -> Loaded:
        Path("trial.yaml").write_text(text, encoding="utf-8")
        return load_experiment(Path("trial.yaml"), profile=profile, overrides=overrides, seed=seed)

    return load_text


@pytest.fixture
def refusal(load: Callable[..., Loaded]) -> Callable[..., list[str]]:
    """The lines of the ConfigError a text is refused with."""

    def refused(
        text: str, *, profile: str | None = None, overrides: Sequence[str] = (), seed: int | None = None
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, profile=profile, overrides=overrides, seed=seed)
        return str(caught.value).splitlines()

    return refused


@pytest.fixture
def talk_among(refusal: Callable[..., list[str]]) -> Callable[[dict[str, list[str]]], list[str]]:
    """The refusal of a discussion in which each agent waits for the ones given."""

    def refused(waits: dict[str, list[str]]) -> list[str]:
        agents = "".join(
            f"  - {{agent_id: {agent}, role: participant, model: m, "
            f"role_specific_config: {{speak_after_within_round: [{', '.join(others)}]}}}}\n"
            for agent, others in waits.items()
        )
        return refusal(TALK + agents)

    return refused
