"""The experiment file: YAML → a frozen Experiment, and what makes two of them the same run.

`load` reads, resolves and checks, one experiment or a grid of them; `differences` compares two resolved configs.
Nothing else of the package reads YAML that a person wrote.
"""

from __future__ import annotations

from mac_runner.config.agent_definition import AgentDefinition, RoleSpecificConfig
from mac_runner.config.discussion import (
    AnswerConfig,
    DiscussionConfig,
    IdentityRevealConfig,
    PromptConfig,
    RoutingStrategy,
    StoppingConfig,
)
from mac_runner.config.expansion import in_words, renamed
from mac_runner.config.experiment import ConversationConfig, EchoConfig, Experiment, ExperimentMetadata, RetryConfig
from mac_runner.config.game import GameCalendar, GameConfig, GameFlags
from mac_runner.config.grid import BroadcastGroup, Combination, Grid, GridSection
from mac_runner.config.identity import Difference, IdentityDiff, differences
from mac_runner.config.latency import EngineLatency, GameLatency
from mac_runner.config.loading import load, load_experiment
from mac_runner.config.materials import read_material
from mac_runner.config.model_definition import (
    ModelDefinition,
    NanoConfig,
    OllamaConfig,
    OpenaiConfig,
    ScriptedConfig,
    VllmConfig,
)
from mac_runner.config.questions import Choice, Question, QuestionType, parse_question, read_questions
from mac_runner.config.resolving import Loaded

__all__ = [
    "AgentDefinition",
    "AnswerConfig",
    "BroadcastGroup",
    "Choice",
    "Combination",
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
    "Grid",
    "GridSection",
    "IdentityDiff",
    "IdentityRevealConfig",
    "Loaded",
    "ModelDefinition",
    "NanoConfig",
    "OllamaConfig",
    "OpenaiConfig",
    "PromptConfig",
    "Question",
    "QuestionType",
    "RetryConfig",
    "RoleSpecificConfig",
    "RoutingStrategy",
    "ScriptedConfig",
    "StoppingConfig",
    "VllmConfig",
    "differences",
    "in_words",
    "load",
    "load_experiment",
    "parse_question",
    "read_material",
    "read_questions",
    "renamed",
]
