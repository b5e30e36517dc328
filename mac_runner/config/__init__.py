"""The experiment file: YAML → a frozen Experiment, and what makes two of them the same run.

`load` reads, resolves and checks, one experiment or a grid of them; `differences` compares two resolved configs.
Nothing else of the package reads YAML that a person wrote.
"""

from __future__ import annotations

from mac_runner.config.agent_definition import AgentDefinition, RoleSpecificConfig
from mac_runner.config.expansion import in_words, renamed
from mac_runner.config.experiment import (
    ConversationConfig,
    DiscussionConfig,
    Experiment,
    ExperimentMetadata,
    RetryConfig,
)
from mac_runner.config.game import GameCalendar, GameConfig, GameFlags
from mac_runner.config.grid import BroadcastGroup, Combination, Grid, GridSection
from mac_runner.config.identity import Difference, IdentityDiff, differences
from mac_runner.config.latency import EngineLatency, GameLatency
from mac_runner.config.loading import load, load_experiment
from mac_runner.config.model_definition import (
    ModelDefinition,
    OllamaConfig,
    OpenaiConfig,
    ScriptedConfig,
    VllmConfig,
)
from mac_runner.config.resolving import Loaded

__all__ = [
    "AgentDefinition",
    "BroadcastGroup",
    "Combination",
    "ConversationConfig",
    "Difference",
    "DiscussionConfig",
    "EngineLatency",
    "Experiment",
    "ExperimentMetadata",
    "GameCalendar",
    "GameConfig",
    "GameFlags",
    "GameLatency",
    "Grid",
    "GridSection",
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
    "in_words",
    "load",
    "load_experiment",
    "renamed",
]
