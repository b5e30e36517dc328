"""A task carries its question, whatever else is planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.environment import DiscussionEnvironment
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from tests.environments.discussion.table import BUS, agent, talk


@pytest.fixture
def asking() -> Experiment:
    experiment = talk(agent("ann"))
    bank = (BUS, replace(BUS, question_id="bus_2"))
    return experiment.model_copy(update={"discussion": experiment.settings_as(DiscussionConfig).with_bank(bank)})


def test_questions_are_taken_in_turn_over_and_over(asking: Experiment) -> None:
    asked = [task.material["question_id"] for task in plan_tasks(asking, None) if task.material]

    assert asked == ["bus_1", "bus_2", "bus_1"]


def test_the_same_question_again_has_another_seed(asking: Experiment) -> None:
    tasks = list(plan_tasks(asking, None))

    assert tasks[0].material == tasks[2].material
    assert tasks[0].seed != tasks[2].seed


def test_a_task_is_opened_with_its_question_alone(asking: Experiment) -> None:
    task = next(plan_tasks(asking, None))
    resolved = Experiment.model_validate(asking.model_dump(mode="json"))

    assert DiscussionEnvironment(resolved).open(task).turns()
    with pytest.raises(ConfigError, match="were not read"):
        next(plan_tasks(resolved, None))


def test_a_task_without_a_question_is_refused(asking: Experiment) -> None:
    task = replace(next(plan_tasks(asking, None)), material=None)

    with pytest.raises(ConfigError, match="has no question"):
        DiscussionEnvironment(asking).open(task)
