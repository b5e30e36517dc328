"""Experiments of other libraries' games, and conversations of them played in this process."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import yaml

from mac_runner.config import Experiment, load_experiment
from mac_runner.environments import Conversation, build_environment
from mac_runner.plan import plan_tasks
from mac_runner.testing.environments import EnvironmentContract
from mac_runner.types import JsonObject, JsonValue, Prompt, Receipt, ReceiptKind, Reply, Task, Turn, stable_hash

TEN: Mapping[str, int] = {
    "TicTacToe": 2,
    "SimpleNegotiation": 2,
    "IteratedPrisonersDilemma": 2,
    "SecretMafia": 6,
    "KuhnPoker": 2,
    "ConnectFour": 2,
    "Nim": 2,
    "LiarsDice": 3,
    "Taboo": 4,
    "ThreePlayerTicTacToe": 3,
}
"""Games of TextArena that need no network and no downloads, with the players they are tried with."""
THREE = ("classic.tictactoe_v3", "classic.connect_four_v3", "classic.rps_v2")
"""Games of PettingZoo for two players that need nothing but pygame."""
Says = Callable[[Turn, Prompt], str]


def content(
    environment: str, players: int, *, name: str = "games", conversations: int = 3, **more: JsonValue
) -> JsonObject:
    """An experiment file: every agent is the random player."""
    return {
        "experiment_metadata": {"experiment_name": name},
        "seed": 5,
        "conversation_config": {"environment": environment, "conversations": conversations},
        "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random", "capacity": 4}}},
        "agent_definitions": [
            {"agent_id": f"agent_{letter}", "role": "player", "model": "m"}
            for letter in string.ascii_lowercase[:players]
        ],
        **more,
    }


def loaded(folder: Path, environment: str, players: int, **more: JsonValue) -> Experiment:
    """The experiment, read from a file."""
    file = folder / "games.yaml"
    file.write_text(yaml.safe_dump(content(environment, players, **more)), encoding="utf-8")  # type: ignore[arg-type]
    return load_experiment(file).experiment


class Played(NamedTuple):
    """A conversation that has ended, with what was sent for each turn and what became of each reply."""

    conversation: Conversation
    task: Task
    turns: list[Turn]
    prompts: list[Prompt]
    receipts: list[Receipt]

    @property
    def outcome(self) -> JsonObject:
        outcome = self.conversation.outcome
        assert outcome is not None
        return outcome

    @property
    def rewards(self) -> JsonObject:
        rewards = self.outcome["rewards"]
        assert isinstance(rewards, dict)
        return rewards

    def kinds(self) -> list[ReceiptKind]:
        return [receipt.kind for receipt in self.receipts]


def play(experiment: Experiment, says: Says | str | None = None, *, index: int = 0) -> Played:
    """Play a conversation; the random player answers where `says` does not, which may be one reply to all."""
    environment = build_environment(experiment)
    task = list(plan_tasks(experiment, None))[index]
    random_player = environment.policy("random")
    played = Played(environment.open(task), task, [], [], [])
    while turns := played.conversation.turns():
        (turn,) = turns
        prompt = played.conversation.prompt(turn)
        if says is None:
            text = random_player(prompt.view, Random(stable_hash(task.seed, turn.key)))
        else:
            text = says if isinstance(says, str) else says(turn, prompt)
        played.turns.append(turn)
        played.prompts.append(prompt)
        played.receipts.append(played.conversation.receive(turn, Reply(text=text)))
        if played.receipts[-1].kind is ReceiptKind.FAILURE:
            break
    return played


class GamesContract(EnvironmentContract):
    """The contract for `game`, from a file in the folder of the test, played by chance."""

    policy = "random"
    conversations = 1
    game = ""
    players = 2

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def experiment(self) -> Experiment:
        """The experiment to play."""
        return loaded(self.folder, self.game, self.players)


def text_of(prompt: Prompt) -> str:
    """All that an engine is sent, in one text."""
    return "\n".join(message.content for message in prompt.messages)
