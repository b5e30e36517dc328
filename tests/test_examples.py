"""Each shipped game plays its conversations (200 by night), goes on after a kill, and plays again to the same end."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mac_runner.types import JsonObject
from tests import patience
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import AtOnce, Lab
from tests.faults.tier import SCALE
from tests.kit import copied, own_game, written

CONVERSATIONS = 50 * SCALE
EXAMPLES = Path(__file__).parents[1] / "examples"
GAMES = ("werewolf", "negotiation", "twenty_questions")
KILLED = """
import os
import time
from pathlib import Path
from mac_runner.environments.generators.conversation import GeneratorConversation
from mac_runner.cli import main
received = GeneratorConversation.receive
turns = []
def receive(self, turn, reply):
    turns.append(turn)
    if len(turns) == {turns}:
        # Replies are written by another thread, which may not have begun.
        while not any(b'"kind":"reply"' in path.read_bytes() for path in Path("killed/journal").glob("*")):
            time.sleep(0.001)
        os.kill(os.getpid(), 9)
    return received(self, turn, reply)
GeneratorConversation.receive = receive
main()
"""


@pytest.fixture
def place(lab: Lab) -> Path:
    """A directory with the examples."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            copied(path, lab.path)
    return lab.path


def played(run: Path) -> dict[str, Any]:
    """What was played, without times."""
    kept = ("outcome", "record", "final_state_sha256")
    found = {path.name: json.loads(path.read_text()) for path in sorted((run / "transcripts").iterdir())}
    return {name: [transcript[key] for key in kept] for name, transcript in found.items()}


@pytest.mark.ci
@pytest.mark.parametrize("game", GAMES)
def test_games_go_on_after_a_kill_to_what_an_undisturbed_run_has(place: Path, at_once: AtOnce, game: str) -> None:
    played_by_day = ("--set", f"conversation_config.conversations={CONVERSATIONS}", "--quiet")
    at_once(f"{game}.yaml", "--out", "straight", *played_by_day).done()
    straight = played(place / "straight")
    turns = json.loads((place / "straight" / "summary.json").read_text())["turns"]
    program = (sys.executable, "-c", KILLED.format(turns=turns // 2), f"{game}.yaml", "--out", "killed")
    killed = patience.run([*program, *played_by_day], cwd=place)
    begun = len(list((place / "killed" / "transcripts").iterdir()))
    at_once(f"{game}.yaml", "--out", "killed", *played_by_day).done()

    assert killed.returncode == -9
    # Replies were recorded; by day all games are open at once, and perhaps none has ended.
    assert begun < CONVERSATIONS
    assert len(straight) == CONVERSATIONS
    assert played(place / "killed") == straight
    at_once("verify", "killed", "--trust").done()


@pytest.mark.ci
@pytest.mark.parametrize("game", GAMES)
def test_examples_keep_the_contract(place: Path, at_once: AtOnce, game: str) -> None:
    at_once("check", f"{game}.yaml", "--conversations", "3").done()


def test_files_of_the_examples_are_ready_for_every_profile(place: Path, at_once: AtOnce) -> None:
    for game, profile in product(GAMES, ("ollama", "openai")):
        at_once(f"{game}.yaml", "--dry-run", "--profile", profile).done("directory")


@pytest.mark.ci
def test_werewolf_is_short_and_its_players_do_not_play_by_chance_alone(place: Path, at_once: AtOnce) -> None:
    assert len((EXAMPLES / "werewolf.py").read_text().splitlines()) <= 40
    outcomes = {}
    for game in GAMES[1:]:
        at_once(f"{game}.yaml", "--quiet", "--limit", "100").done()
        outcomes[game] = [outcome for outcome, *_ in played(place / "runs" / game).values()]
    solved = [outcome["solved"] for outcome in outcomes["twenty_questions"]]
    gains = [sum(outcome["payoff"].values()) for outcome in outcomes["negotiation"]]

    assert all(solved)
    assert sum(gain > 0 for gain in gains) > 20


@pytest.mark.ci
def test_role_of_an_example_is_played_and_verified_by_those_who_trust_its_code(place: Path, lab: Lab) -> None:
    lab.done("nurse.yaml", "--limit", "3")

    lab.run("verify", "runs/nurse").refused("nurse")
    lab.done("verify", "runs/nurse", "--trust")


@pytest.mark.ci
def test_players_of_sharing_do_as_well_as_they_can(place: Path, at_once: AtOnce) -> None:
    """The first gets what it likes, and so does the second unless it is gone."""
    at_once("check", "sharing.py:sharing", "--agents", "2", "--conversations", "3").done()
    content = own_game("./sharing.py:sharing", name="sharing", conversations=40)
    agents: JsonObject = {"agent_definitions": [{"agent_id": "keen", "role": "player", "model": "keen"}]}
    models: JsonObject = {"keen": {"backend": "scripted", "scripted_config": {"policy": "keen"}}}
    written(place / "sharing.yaml", {**content, **agents, "model_definitions": models})
    at_once("sharing.yaml", "--quiet").done()
    payoffs = set()
    for outcome, record, _ in played(place / "runs" / "sharing").values():
        liked = [event["data"]["liked"] for event in record["events"] if "liked" in event["data"]]
        payoffs.add((liked[0] == liked[1], *outcome["payoff"].values()))

    assert payoffs == {(False, 1.0, 1.0), (True, 1.0, 0.25)}
