"""One whole game and some prompts as text, to be read by people and compared to the letter.

A change of wording, rules or players shows here as a difference to be looked at. To take the present output as right:
`python -m tests.environments.town_of_salem.test_golden` from the root of the repository, then read the difference.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import get_args

from mac_runner.environments.town_of_salem.testing import LOBBIES, POLICIES, Asking, Game, Phase
from mac_runner.types import Prompt, Reply, ReplyForm, Turn
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
        **of_both_forms(),
    }


def of_both_forms() -> dict[str, str]:
    """The last vote of the first day that has one, after a reply that could not be used, in markup and in JSON."""
    found: dict[str, str] = {}
    for form in get_args(ReplyForm):
        asking = Asking(form=form, reasoning="required", reasoning_chars_max=600)
        game = open_game(LOBBIES["classic-10"], seed=SEED, lobby=LOBBIES["classic-10"], tools=(), asking=asking)
        while game.state.phase is not Phase.VOTING:
            turn = game.turns()[0]
            game.receive(turn, Reply(text=POLICIES["heuristic"](game.prompt(turn).view, Random(turn.key))))
        game.receive(game.turns()[0], Reply(text="I vote for Abel."))
        found[f"prompt_{form}.txt"] = written(game.prompt(game.turns()[0]))
    return found


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


def test_game_and_prompts_read_as_they_did() -> None:
    for name, text in told().items():
        assert text == (GOLDEN / name).read_text(encoding="utf-8"), name


if __name__ == "__main__":
    for name, text in told().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
