"""One whole game and two of its prompts as text, to be read by people and compared to the letter.

A change of wording, rules or players shows here as a difference to be looked at. To take the present output as right:
`python -m tests.environments.town_of_salem.test_golden` from the root of the repository, then read the difference.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.conversation import Game
from mac_runner.environments.town_of_salem.game.lobbies import LOBBIES
from mac_runner.types import Prompt, Turn
from tests.environments.town_of_salem.table import open_game, play

GOLDEN = Path(__file__).parent / "golden"
SEED = 5


def told() -> dict[str, str]:
    """File name to text."""
    roles = [*LOBBIES["classic-7"]]
    Random(SEED).shuffle(roles)
    game = open_game(roles, seed=SEED)
    prompts: dict[tuple[str, int], str] = {}

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        prompts.setdefault((str(game.state.phase), game.state.day), written(prompt))

    play(game, POLICIES["heuristic"], seed=SEED, watch=watch)
    return {
        "classic-7.txt": "\n".join([*cast(game), "", *events(game), "", f"{game.outcome}", ""]),
        "prompt_night_2.txt": prompts["night", 2],
    }


def written(prompt: Prompt) -> str:
    return "\n\n".join(f"=== {message.role} ===\n{message.content}" for message in prompt.messages) + "\n"


def cast(game: Game) -> list[str]:
    return [f"{player.seat} {player.name}: {player.dealt}" for player in game.state.players]


def events(game: Game) -> list[str]:
    lines = []
    listed = game.record()["events"]
    assert isinstance(listed, list)
    for event in listed:
        assert isinstance(event, dict)
        audience = event["audience"]
        to = f" to {', '.join(map(str, audience))}:" if isinstance(audience, list) else ""
        lines.append(f"[{event['phase']} {event['day']}]{to} {event['text']}")
    return lines


@pytest.mark.parametrize("name", ["classic-7.txt", "prompt_night_2.txt"])
def test_game_reads_as_it_did(name: str) -> None:
    assert told()[name] == (GOLDEN / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, text in told().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
