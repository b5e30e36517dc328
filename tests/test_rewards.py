"""What an outcome says of single agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mac_runner.errors import ConversationError
from mac_runner.rewards import default_rewards, rewards_of
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, RunDir
from tests.kit import played

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
    wrong = {
        str(outcome): found for outcome, due in CASES if (found := default_rewards(outcome, "Abel", AGENTS)) != due
    }

    assert wrong == {}


class Own:
    def __init__(self, found: object) -> None:
        self.found = found

    def rewards(self, _outcome: JsonObject, agent: str) -> Any:
        return {"skill": len(agent)} if self.found is None else self.found


def test_an_environment_may_say_its_rewards_itself() -> None:
    assert rewards_of(Own(None), {"winner": "Abel"}, "Abel", AGENTS) == {"skill": 4.0}
    assert rewards_of(object(), {"winner": "Abel"}, "Abel", AGENTS) == {"won": 1.0}


def test_rewards_that_are_not_numbers_by_name_fail_the_conversation_with_the_place() -> None:
    for found in (3, {"skill": "much"}, {"skill": float("nan")}, {1: 2.0}, {"skill": 10**400}):
        with pytest.raises(ConversationError, match=r"rewards of 'Abel'"):
            rewards_of(Own(found), {}, "Abel", AGENTS)


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
