"""What the engines of a fleet understand: vLLM's additions, or the protocol as OpenAI has it."""

from __future__ import annotations

import pytest

from mac_runner.backends.fleet import FleetModelConfig
from mac_runner.config import AgentDefinition
from mac_runner.errors import ConfigError
from tests.backends.building import built, defined

COMMAND = {"model": "stub", "engine": "command", "command": ("serve", "{port}")}
PICKY = AgentDefinition.model_validate({"agent_id": "a", "model": "m", "role": "r", "top_k": 5})


@pytest.mark.parametrize("more", [{"engine": "vllm"}, {"engine": "nano"}, {**COMMAND, "server": "vllm"}])
def test_engines_with_additions_take_every_setting_and_record_tokens(more: dict[str, object]) -> None:
    config = FleetModelConfig.model_validate({"model": "stub", **more})

    built(defined(config, record_tokens=True), PICKY)


def test_command_without_them_is_refused_what_it_would_ignore() -> None:
    config = FleetModelConfig.model_validate(COMMAND)

    with pytest.raises(ConfigError, match=r"agent_definitions\.0\.top_k: .*`fleet_config.server: vllm`"):
        built(defined(config), PICKY)
    with pytest.raises(ConfigError, match=r"record_tokens: "):
        built(defined(config, record_tokens=True))
