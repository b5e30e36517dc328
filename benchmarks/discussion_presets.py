"""What the presets of `game.discussion` cost: turns a game, and the longest chain of turns that wait for each other.

    python -m benchmarks.discussion_presets --games 50

The chain is what a game takes on an engine that answers all at once that may be asked at once, counted in replies: the
number of times that all turns which are ready are answered together. Players are scripted (`heuristic`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from mac_runner.config import Experiment
from mac_runner.environments import Conversation, Environment, build_environment
from mac_runner.environments.town_of_salem.settings import DISCUSSIONS
from mac_runner.plan import plan_tasks
from mac_runner.types import Reply, Turn, stable_hash


class Cost(NamedTuple):
    """Turns of a game, and how many of them follow one another at least."""

    turns: float
    chain: float
    days: float


def played(environment: Environment, conversation: Conversation, seed: int) -> Cost:
    """Play one game, wave by wave: all turns that wait for no other are answered together."""
    policy = environment.policy("heuristic")
    turns = waves = 0
    while ready := _ready(conversation.turns()):
        waves += 1
        turns += len(ready)
        prompts = [(turn, conversation.prompt(turn)) for turn in ready]
        for turn, prompt in prompts:
            text = policy(prompt.view, Random(stable_hash(seed, turn.key)))
            conversation.receive(turn, Reply(text=text))
    outcome = conversation.outcome or {}
    days = outcome["days"]
    assert isinstance(days, int)
    return Cost(turns, waves, days)


def _ready(turns: tuple[Turn, ...]) -> list[Turn]:
    waiting = {turn.agent for turn in turns}
    return [turn for turn in turns if waiting.isdisjoint(turn.after)]


def experiment_of(preset: str, *, lobby: str, games: int) -> Experiment:
    """Games of heuristic players under one preset."""
    model = {"backend": "scripted", "scripted_config": {"policy": "heuristic"}}
    return Experiment.model_validate(
        {
            "experiment_metadata": {"experiment_name": "discussion_presets"},
            "seed": 2026,
            "conversation_config": {"environment": "town_of_salem", "conversations": games},
            "model_definitions": {"m": model},
            "agent_definitions": [{"agent_id": "player", "role": "player", "model": "m"}],
            "game": {"lobby": lobby, "discussion": preset},
        }
    )


def mean_cost(preset: str, *, lobby: str, games: int) -> Cost:
    """The mean of `games` games of one seed."""
    experiment = experiment_of(preset, lobby=lobby, games=games)
    environment = build_environment(experiment)
    costs = [
        played(environment, environment.open(task), task.seed) for task in plan_tasks(experiment, environment.lineup)
    ]
    return Cost(*(sum(column) / len(costs) for column in zip(*costs, strict=True)))


def rows(*, lobby: str, games: int) -> Iterator[str]:
    """What the table of docs/town_of_salem.md says of costs, one row per preset."""
    yield "| `game.discussion` | turns a game | chain | turns a day | chain a day |"
    yield "|---|---|---|---|---|"
    for preset in DISCUSSIONS:
        turns, chain, days = mean_cost(preset, lobby=lobby, games=games)
        yield f"| `{preset}` | {turns:.0f} | {chain:.0f} | {turns / days:.0f} | {chain / days:.0f} |"


def main() -> None:
    """Play the games and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lobby", default="classic-10")
    parser.add_argument("--games", type=int, default=50)
    asked = parser.parse_args()
    for line in rows(lobby=asked.lobby, games=asked.games):
        print(line)


if __name__ == "__main__":
    main()
