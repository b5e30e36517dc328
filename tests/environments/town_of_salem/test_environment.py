"""From an experiment to games: deals, options, gates and policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import build_environment
from mac_runner.environments.town_of_salem.testing import LOBBIES, NAMES, Options, TownOfSalem
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks

TEXT = """\
experiment_metadata: {experiment_name: trial}
conversation_config: {environment: town_of_salem, conversations: 8}
model_definitions: {m: {backend: scripted, scripted_config: {policy: random}}}
agent_definitions:
  - {agent_id: early, role: player, model: m}
  - {agent_id: late, role: player, model: m, role_specific_config: {speak_after_within_round: [early]}}
game:
  lobby: classic-8
  flags: {sheriff: typed, haunt_pool: guilty, mafia_parity: true}
  calendar:
    {greeting_rounds: 2, discussion_rounds: 3, vote_rounds: 4, night_chat_rounds: 5, trials_per_day: 6, max_days: 7}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    path = tmp_path / "trial.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_experiment(path).experiment


def test_registry_builds_the_game_an_experiment_names(experiment: Experiment) -> None:
    assert isinstance(build_environment(experiment), TownOfSalem)


def test_registry_refuses_an_unknown_environment_naming_those_there_are(experiment: Experiment) -> None:
    other = experiment.conversation_config.model_copy(update={"environment": "chess"})

    with pytest.raises(ConfigError, match=r"'chess'; .* discussion, echo"):
        build_environment(experiment.model_copy(update={"conversation_config": other}))


def test_lineup_is_the_role_list_and_the_names(experiment: Experiment) -> None:
    lineup = TownOfSalem(experiment).lineup

    assert lineup.slots == LOBBIES["classic-8"]
    assert lineup.names == NAMES


def test_seat_gets_the_role_of_its_agents_slot(experiment: Experiment) -> None:
    environment = TownOfSalem(experiment)
    for task in plan_tasks(experiment, environment.lineup):
        game = environment.open(task)
        assert [player.name for player in game.state.players] == [agent.agent_id for agent in task.agents]
        assert [player.dealt for player in game.state.players] == [LOBBIES["classic-8"][a.slot] for a in task.agents]


def test_every_flag_and_count_of_the_experiment_reaches_the_rules(experiment: Experiment) -> None:
    environment = TownOfSalem(experiment)
    game = environment.open(next(iter(plan_tasks(experiment, environment.lineup))))

    assert game.state.options == Options(
        sheriff="typed",
        haunt_pool="guilty",
        mafia_parity=True,
        greeting_rounds=2,
        discussion_rounds=3,
        vote_rounds=4,
        night_chat_rounds=5,
        trials_per_day=6,
        max_days=7,
    )


def test_definitions_that_speak_after_others_do(experiment: Experiment) -> None:
    environment = TownOfSalem(experiment)
    for task in plan_tasks(experiment, environment.lineup):
        kinds = [task.agents[seat].definition for seat in environment.open(task).state.order]
        assert kinds == sorted(kinds)


def test_same_task_opens_the_same_game_and_another_task_another(experiment: Experiment) -> None:
    environment = TownOfSalem(experiment)
    first, second, *_ = plan_tasks(experiment, environment.lineup)

    assert environment.open(first).fingerprint() == environment.open(first).fingerprint()
    assert environment.open(first).fingerprint() != environment.open(second).fingerprint()


def test_unknown_policy_is_refused_naming_those_there_are(experiment: Experiment) -> None:
    with pytest.raises(ConfigError, match=r"'clever'; .* heuristic, random"):
        TownOfSalem(experiment).policy("clever")
