"""The environments `pettingzoo:MODULE` keep the contract and put observations and actions into words."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pydantic import JsonValue

from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.pettingzoo import code_of
from mac_runner.errors import ConfigError
from mac_runner.types import JsonObject, ReceiptKind
from tests.environments.adapters.playing import THREE, GamesContract, loaded, play, text_of

pytest.importorskip("pettingzoo")

COUNTING = '''
"""Two players name a number in turn; the higher one is rewarded. Chance decides who begins."""

import random

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv


class Counting(AECEnv):
    """Name a number. The higher one is rewarded."""

    metadata = {"name": "counting", "render_modes": ["ansi"]}

    def __init__(self, render_mode=None, actions=3, size=2):
        super().__init__()
        self.possible_agents = ["left", "right"]
        self.render_mode, self.actions, self.size = render_mode, actions, size

    def action_space(self, agent):
        return Box(0, 1) if self.actions == 0 else Discrete(self.actions, start=1)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": [1, 0, 1]} for agent in self.agents}
        self.named = {}
        self.agent_selection = random.choice(self.agents)
        self.lucky = int(np.random.randint(1000))

    def observe(self, agent):
        return np.full((self.size, self.size), self.lucky)

    def render(self):
        return f"named: {self.named}"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            return self._was_dead_step(action)
        assert self.infos[agent]["action_mask"][action - 1], "an illegal action came through"
        self.named[agent] = int(action)
        if len(self.named) == 2:
            for one, other in (("left", "right"), ("right", "left")):
                self.rewards[one] = self.named[one] - self.named[other]
            self._accumulate_rewards()
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = "right" if agent == "left" else "left"

    def close(self):
        pass


env = Counting
'''


@pytest.fixture
def pygame() -> None:
    pytest.importorskip("pygame")


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import from, with a game that needs nothing but the library."""
    (tmp_path / "counting_game_v0.py").write_text(textwrap.dedent(COUNTING), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def of_counting(folder: Path, **settings: JsonValue) -> Experiment:
    return loaded(folder, "pettingzoo:counting_game_v0", 2, settings=dict(settings))


@pytest.mark.ci
@pytest.mark.usefixtures("counting")
class TestCounting(GamesContract):
    game, conversations = "pettingzoo:counting_game_v0", 3


@pytest.mark.usefixtures("pygame")
class TestConnectFour(GamesContract):
    game = "pettingzoo:classic.connect_four_v3"


@pytest.mark.usefixtures("pygame")
def test_games_of_the_library_end_with_a_reward_for_each_agent(tmp_path: Path) -> None:
    for game in THREE:
        played = play(loaded(tmp_path, f"pettingzoo:{game}", 2))

        assert played.outcome["kind"] == "pettingzoo"
        assert played.outcome["game"] == game
        assert {*played.rewards} == {"agent_a", "agent_b"}
        assert {*played.kinds()} == {ReceiptKind.ACT}, "the random player makes legal moves"
        assert "## " in played.prompts[0].messages[0].content, "the rules are the game's documentation"


def test_the_prompt_has_what_the_agent_sees_and_its_legal_actions(counting: Path) -> None:
    played = play(of_counting(counting))
    prompt = played.prompts[0]

    assert prompt.choices == ("1", "3")
    assert "Legal actions: 1, 3" in text_of(prompt)
    assert text_of(prompt).startswith("Two players name")
    lucky = text_of(prompt).split("You see:\n")[1].split()[0]
    assert f"{lucky} {lucky}\n{lucky} {lucky}" in text_of(prompt)
    assert len({text_of(play(of_counting(counting), index=index).prompts[0]) for index in range(3)}) == 3
    drawn = play(of_counting(counting, show="render")).prompts[0]
    assert "You see:\nnamed: {}" in text_of(drawn), "the game can draw itself"


def test_an_illegal_action_is_corrected_and_then_replaced_by_a_legal_one(counting: Path) -> None:
    played = play(of_counting(counting), "2")

    assert played.kinds() == [ReceiptKind.CORRECTION, ReceiptKind.CORRECTION, ReceiptKind.DEFAULT] * 2
    assert "exactly one of: 1, 3" in text_of(played.prompts[1])
    assert "not be used" not in text_of(played.prompts[3])
    assert played.outcome["invalid_moves"] == {"agent_a": 3, "agent_b": 3}


def test_actions_go_by_their_names_and_by_their_numbers(counting: Path) -> None:
    experiment = of_counting(counting, action_names=["low", "middle", "high"])
    replies = iter(["I say high.", "1"])
    played = play(experiment, lambda _turn, _prompt: next(replies))

    assert played.prompts[0].choices == ("low", "high")
    assert [receipt.detail for receipt in played.receipts] == ["high", "low"]
    assert sorted(map(str, played.rewards.values())) == ["-2.0", "2.0"]


UNPLAYABLE: list[tuple[str, int, JsonObject, str]] = [
    ("counting_game_v0", 3, {}, "is played by 2 (left, right)"),
    ("counting_game_v0", 2, {"arguments": {"actions": 0}}, "only numbered actions"),
    ("counting_game_v0", 2, {"arguments": {"size": 50}}, "too many for a prompt"),
    ("counting_game_v0", 2, {"arguments": {"colour": 1}}, "unexpected keyword argument 'colour'"),
    ("counting_game_v0", 2, {"action_names": ["one"]}, "there are 1; left has 3 actions"),
    ("counting_game_v0", 2, {"action_names": ["a", "A", "b"]}, "two actions have the same name"),
    ("no_such_module", 2, {}, "No module named 'no_such_module'"),
    ("json", 2, {}, "the module json has no function env()"),
]


@pytest.mark.ci
def test_what_cannot_be_played_is_refused_with_the_reason(counting: Path, subtests: pytest.Subtests) -> None:
    for module, players, settings, says in UNPLAYABLE:
        with subtests.test(says):
            with pytest.raises(ConfigError) as refusal:
                build_environment(loaded(counting, f"pettingzoo:{module}", players, settings=settings))

            assert says in str(refusal.value).replace("right has", "left has")


@pytest.mark.ci
def test_the_source_of_a_module_of_one_s_own_is_part_of_the_identity_of_a_run(counting: Path) -> None:
    recorded = of_counting(counting).plugins["pettingzoo:counting_game_v0"]

    assert recorded.sha256, "the digest of its source"
    assert of_counting(counting).plugins["pettingzoo:counting_game_v0"] == recorded
    assert code_of("classic.connect_four_v3", counting).distribution == "pettingzoo"
    assert not code_of("classic.connect_four_v3", counting).sha256, "the version says which code the library's game is"
