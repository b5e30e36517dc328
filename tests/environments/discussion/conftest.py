"""A discussion of two speakers and a moderator who is defined between them."""

from __future__ import annotations

import pytest

from mac_runner.config import (
    AgentDefinition,
    ConversationConfig,
    DiscussionConfig,
    Experiment,
    ExperimentMetadata,
    ModelDefinition,
    RetryConfig,
    ScriptedConfig,
)
from mac_runner.config.agent_definition import RoleSpecificConfig
from mac_runner.plan import plan_tasks
from mac_runner.types import Task


@pytest.fixture
def experiment() -> Experiment:
    definitions = tuple(
        AgentDefinition(
            agent_id=agent_id,
            role=role,
            model="m",
            role_specific_config=RoleSpecificConfig(speak_after_within_round=after),
        )
        for agent_id, role, after in (
            ("ann", "participant", ()),
            ("mod", "moderator", ("ann", "bob")),
            ("bob", "participant", ()),
        )
    )
    return Experiment(
        experiment_metadata=ExperimentMetadata(experiment_name="talk"),
        model_definitions={
            "m": ModelDefinition(backend="scripted", scripted_config=ScriptedConfig(policy="statement"))
        },
        agent_definitions=definitions,
        conversation_config=ConversationConfig(environment="discussion", conversations=3),
        discussion=DiscussionConfig(topics=("bread & butter", "rain"), rounds=2),
        retry_config=RetryConfig(max_retries=1),
    )


@pytest.fixture
def plan(experiment: Experiment) -> list[Task]:
    return list(plan_tasks(experiment, None))
