"""Rewards: what an outcome says of single agents, shaped ones, and weights that make one number of all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mac_runner
from mac_runner.errors import ConfigError, ConversationError, IdentityError
from mac_runner.rewards import default_rewards, rewards_by_agent, rewards_of
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, RunDir
from tests.kit import own_game, played, written

AGENTS = ("Abel", "Cain")
CASES: list[tuple[JsonObject, dict[str, float]]] = [
    ({"payoff": {"Abel": 3, "Cain": 5}}, {"payoff": 3.0}),
    ({"cooperated": {"Abel": True, "Cain": False}}, {"cooperated": 1.0}),
    ({"payoff": {"Cain": 5}}, {}),
    ({"payoff": {"Abel": None, "Cain": 5}}, {}),
    ({"payoff": {"Abel": 3, "the bank": 5}}, {}),
    ({"payoff": {"Abel": 3, "Cain": "much"}}, {}),
    ({"payoff": {"Abel": 10**400, "Cain": 1}}, {}),
    ({"payoff": {}}, {}),
    ({"winner": "Abel"}, {"won": 1.0}),
    ({"winner": "Cain"}, {"won": 0.0}),
    ({"winners": ["Cain", "Abel"]}, {"won": 1.0}),
    ({"winner": None}, {"won": 0.0}),
    ({"winners": []}, {"won": 0.0}),
    ({"winner": "town"}, {}),
    ({"winners": ["Abel", "town"]}, {}),
    ({"winner": "Abel", "won": {"Abel": 0.25, "Cain": 0.75}}, {"won": 0.25}),
    ({"rounds": 3, "is_fair": True}, {}),
]


def test_rewards_are_the_values_by_agent_and_whether_it_won() -> None:
    for outcome, due in CASES:
        assert default_rewards(outcome, "Abel", AGENTS) == due, outcome


def test_an_environment_may_say_its_rewards_itself_if_they_are_numbers_by_name() -> None:
    def own(found: object) -> SimpleNamespace:
        return SimpleNamespace(rewards=lambda _outcome, _agent: found)

    assert rewards_of(own({"skill": 4}), {"winner": "Abel"}, "Abel", AGENTS) == {"skill": 4.0}
    assert rewards_of(object(), {"winner": "Abel"}, "Abel", AGENTS) == {"won": 1.0}
    for found in (3, {"skill": "much"}, {"skill": float("nan")}, {1: 2.0}, {"skill": 10**400}):
        with pytest.raises(ConversationError, match=r"rewards of 'Abel'"):
            rewards_of(own(found), {}, "Abel", AGENTS)


def outcomes(place: Path, name: str) -> list[Any]:
    """Of three conversations of an example."""
    run = played(ROOT / "experiments" / f"{name}.yaml", place / "run", limit=3)
    return [row["outcome"] for index in run.rglob("*_index.jsonl") for row in RunDir(path=index.parent).index]


@pytest.mark.ci
def test_a_player_of_a_game_is_rewarded_for_its_goal_its_faction_and_its_life(tmp_path: Path) -> None:
    for outcome in outcomes(tmp_path, "tos_100games"):
        players, winners = outcome["players"], outcome["winners"]
        for player in players:
            found = rewards_of(None, outcome, player["agent"], [player["agent"] for player in players])
            assert (found["won"], found["survived"]) == (float(player["won"]), float(player["alive"]))
            if player["faction"] in ("town", "mafia") and player["final_role"] == player["role"]:
                assert found["faction_won"] == float(player["faction"] in winners)


@pytest.mark.ci
def test_a_participant_is_rewarded_for_a_right_last_answer_where_there_is_one(tmp_path: Path) -> None:
    keyed, seen = 0, 0
    for outcome in outcomes(tmp_path, "bbq_moderated"):
        for agent, given in outcome["answers"].items():
            found = rewards_of(None, outcome, agent, [*outcome["answers"]])
            right = outcome["correct_answer_id"]
            keyed += right is not None
            seen += 1
            assert found == ({} if right is None else {"right": float(given[-1] == right)})
    assert 0 < keyed <= seen


GAME = """
from mac_runner import Ask, game

@game
def pick(table):
    first, *_ = table.agents
    yield Ask(first, "Pick.", choices=["a", "b"], default="a")
    return {"payoff": {name: place for place, name in enumerate(table.agents)}, "winner": first}
"""


SHAPING = """
def spoke(conversation):
    return {agent.name: len(conversation.turns_of(agent.name)) for agent in conversation.agents}

def odd(conversation):
    if conversation.index == 1:
        raise ValueError("an odd one")
    return {agent.name: 0.5 for agent in conversation.agents}

def partial(conversation):
    return {conversation.agents[0].name: 1}

def stranger(conversation):
    return {**{agent.name: 1 for agent in conversation.agents}, "nobody": 1}

def nan(conversation):
    return {agent.name: float("nan") for agent in conversation.agents}
"""


def experiment(tmp_path: Path, rewards: JsonObject | None) -> Path:
    (tmp_path / "pick.py").write_text(GAME)
    (tmp_path / "shaping.py").write_text(SHAPING)
    content = own_game("./pick.py:pick", name="shaped")
    return written(tmp_path / "shaped.yaml", content | ({} if rewards is None else {"rewards": rewards}))


def shaped(**named: str) -> JsonObject:
    return {name: f"./shaping.py:{function}" for name, function in named.items()}


def shaped_games(tmp_path: Path, rewards: JsonObject | None) -> list[Any]:
    return [*mac_runner.run(experiment(tmp_path, rewards), out=tmp_path / "run", progress=False)]


def test_shaped_rewards_are_added_and_weighed(tmp_path: Path) -> None:
    first, _ = shaped_games(tmp_path, {"shaped": shaped(talk="spoke"), "total": {"won": 1, "talk": 0.5, "payoff": -2}})

    assert first.rewards == {
        "Abel": {"payoff": 0.0, "won": 1.0, "talk": 1.0, "reward": 1.5},
        "Cain": {"payoff": 1.0, "won": 0.0, "talk": 0.0, "reward": -2.0},
    }
    assert first.transcript["shaped_rewards"] == {"talk": {"Abel": 1, "Cain": 0}}
    rows = {row["agent"]: row for row in first.rows("agents")}
    assert rows["Cain"]["reward"] == -2.0
    (verified,) = mac_runner.open_run(tmp_path / "run").verify()
    assert verified.report.ok


def test_without_the_section_the_reward_is_the_chance_to_win_and_no_byte_changes(tmp_path: Path) -> None:
    first, _ = shaped_games(tmp_path, None)

    assert first.rewards["Abel"] == {"payoff": 0.0, "won": 1.0, "reward": 1.0}
    assert first.transcript.keys().isdisjoint({"shaped_rewards", "reward_errors"})
    assert "rewards" not in mac_runner.open_run(tmp_path / "run").experiment


def test_a_reward_that_is_wrong_costs_its_own_value_and_the_total_that_needs_it_and_is_counted(tmp_path: Path) -> None:
    wrong = {"partial": "no value for 'Cain'", "stranger": "'nobody', which is not an agent", "nan": "not a number"}
    named = shaped(good="spoke", odd="odd", **{name: name for name in wrong})
    first, second = shaped_games(tmp_path, {"shaped": named, "total": {"good": 1, "odd": 2}})

    assert first.rewards["Abel"] == {"payoff": 0.0, "won": 1.0, "good": 1.0, "odd": 0.5, "reward": 2.0}
    for name, words in wrong.items():
        assert words in first.transcript["reward_errors"][name]
    assert second.rewards["Abel"] == {"payoff": 0.0, "won": 1.0, "good": 1.0}
    errors: Any = mac_runner.open_run(tmp_path / "run").summary["reward_errors"]
    assert (errors["odd"]["conversations"], errors["nan"]["conversations"]) == (1, 2)
    assert "an odd one" in errors["odd"]["errors"][0]["error"]


def test_other_code_is_another_run_and_other_weights_are_not(tmp_path: Path) -> None:
    shaped_games(tmp_path, {"shaped": shaped(talk="spoke"), "total": {"talk": 1}})
    (first, _) = shaped_games(tmp_path, {"shaped": shaped(talk="spoke"), "total": {"talk": 3}})
    assert first.rewards["Abel"]["reward"] == 3.0

    with pytest.raises(IdentityError, match=r"rewards\.shaped"):
        shaped_games(tmp_path, {"shaped": shaped(talk="odd")})
    file = experiment(tmp_path, {"shaped": shaped(talk="spoke")})
    (tmp_path / "shaping.py").write_text(SHAPING.replace("len(", "1 + len("))
    with pytest.raises(IdentityError, match=r"shaping\.py:spoke changed"):
        mac_runner.run(file, out=tmp_path / "run", progress=False)


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused: list[tuple[JsonObject, str]] = [
        ({"shaped": {"talk": "./shaping.py:missing"}}, r"rewards\.shaped\.talk: .*missing"),
        ({"shaped": {"talk": "./pick.py:GAME"}}, r"rewards\.shaped\.talk"),
        ({"shaped": {"reward": "./shaping.py:spoke"}}, "another name"),
        ({"total": {"won": "much"}}, r"rewards\.total\.won"),
        ({"totals": {"won": 1}}, r"rewards\.totals: unknown key"),
        ({"total": {}}, r"shaped\.yaml:1: rewards\.total: has no weight"),
    ]
    for rewards, words in refused:
        with pytest.raises(ConfigError, match=words):
            shaped_games(tmp_path, rewards)
    assert not (tmp_path / "run").exists()


def test_a_weight_of_a_name_that_is_no_reward_is_refused_with_its_place_and_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "game.yaml"
    experiment(tmp_path, None)
    seats = "".join(f"  - {{agent_id: player{seat}, role: player, model: m}}\n" for seat in range(7))
    file.write_text(
        "experiment_metadata: {experiment_name: weighed}\n"
        "conversation_config: {environment: town_of_salem, conversations: 1}\n"
        "model_definitions: {m: {backend: scripted, scripted_config: {policy: random}}}\n"
        f"agent_definitions:\n{seats}"
        "rewards:\n"
        "  shaped: {brief: './shaping.py:spoke'}\n"
        "  total:\n"
        "    survived: 1\n"
        "    breif: 1\n"
        "    faction_one: 0.5\n"
    )
    with pytest.raises(ConfigError) as caught:
        mac_runner.run(file, out=tmp_path / "run", progress=False)

    places = {line.split(": there is no such")[0]: line for line in str(caught.value).splitlines()}
    assert [*places] == [f"{file}:16: rewards.total.breif", f"{file}:17: rewards.total.faction_one"]
    for (_, line), near in zip(places.items(), ("brief", "faction_won"), strict=True):
        assert f", won (did you mean {near!r}?)" in line
    assert not (tmp_path / "run").exists()


RARE = """
from mac_runner import Ask, game

@game
def pick(table):
    first, *_ = table.agents
    yield Ask(first, "Pick.", choices=["a", "b"], default="a")
    scores = {"profit": {name: 1 for name in table.agents}}
    return {**scores, "profits": {first: 2}} if table.random("bonus").random() < 0.5 else scores
"""


def test_a_weight_of_a_name_that_no_outcome_has_is_refused_when_rewards_are_read_and_a_rare_one_is_not(
    tmp_path: Path,
) -> None:
    file = experiment(tmp_path, {"total": {"profits": 1}})
    (tmp_path / "pick.py").write_text(RARE)
    mac_runner.run(file, out=tmp_path / "run", limit=1, progress=False)
    (part,) = mac_runner.open_run(tmp_path / "run", trust=True)
    assert part.rewards == {"Abel": {"profit": 1.0}, "Cain": {"profit": 1.0}}

    first, second = mac_runner.run(file, out=tmp_path / "run", progress=False)
    assert (first.rewards["Abel"].get("reward"), second.rewards["Abel"]["reward"]) == (None, 2.0)

    experiment(tmp_path, {"total": {"proft": 1}})
    (tmp_path / "pick.py").write_text(RARE)
    run = mac_runner.run(file, out=tmp_path / "run", progress=False)
    words = r"rewards\.total\.proft: no agent .* allowed: profit, profits \(did you mean 'profit'"
    for read in (lambda: next(iter(run)).rewards, lambda: run.table("agents")):
        with pytest.raises(ConfigError, match=words):
            read()


def test_a_failed_conversation_has_no_rewards() -> None:
    task: JsonObject = {"agents": [{"agent_id": "Abel"}]}

    assert rewards_by_agent(None, {"outcome": None, "task": task}, {}) == {}
    assert rewards_by_agent(None, {"outcome": {}, "task": task}, {})["Abel"].total is None
