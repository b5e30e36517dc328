"""Small discussions to try things on."""

from __future__ import annotations

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion.testing import DiscussionConversation
from mac_runner.plan import plan_tasks
from mac_runner.types import Task
from tests.environments.discussion.table import agent, opened, talk


@pytest.fixture
def experiment() -> Experiment:
    """Two speakers, and a moderator who is defined between them, on topics."""
    return talk(
        agent("ann"),
        agent("mod", "moderator", after=("ann", "bob")),
        agent("bob"),
        topics=("bread & butter", "rain"),
        max_rounds=2,
        routing_strategy={"history_rounds": None},
    )


@pytest.fixture
def conversation(experiment: Experiment) -> DiscussionConversation:
    """Their first discussion."""
    return opened(experiment)


@pytest.fixture
def plan(experiment: Experiment) -> list[Task]:
    return list(plan_tasks(experiment, None))
