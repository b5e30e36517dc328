"""The experiment file: YAML → a frozen Experiment, and what makes two of them the same run.

`load_experiment` reads, resolves and checks; `differences` compares two resolved configs. Nothing else of the
package reads YAML that a person wrote.
"""

from __future__ import annotations

from mac_runner.config.agent_definition import AgentDefinition, RoleSpecificConfig
from mac_runner.config.experiment import (
    ConversationConfig,
    DiscussionConfig,
    EchoConfig,
    Experiment,
    ExperimentMetadata,
    RetryConfig,
)
from mac_runner.config.game import GameCalendar, GameConfig, GameFlags
from mac_runner.config.identity import Difference, IdentityDiff, differences
from mac_runner.config.latency import EngineLatency, GameLatency
from mac_runner.config.loading import Loaded, load_experiment
from mac_runner.config.model_definition import (
    ModelDefinition,
    OllamaConfig,
    OpenaiConfig,
    ScriptedConfig,
    VllmConfig,
)

__all__ = [
    "AgentDefinition",
    "ConversationConfig",
    "Difference",
    "DiscussionConfig",
    "EchoConfig",
    "EngineLatency",
    "Experiment",
    "ExperimentMetadata",
    "GameCalendar",
    "GameConfig",
    "GameFlags",
    "GameLatency",
    "IdentityDiff",
    "Loaded",
    "ModelDefinition",
    "OllamaConfig",
    "OpenaiConfig",
    "RetryConfig",
    "RoleSpecificConfig",
    "ScriptedConfig",
    "VllmConfig",
    "differences",
    "load_experiment",
]
