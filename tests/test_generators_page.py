"""The game of docs/generators.md works as the page has it, survives a kill, and keeps the contract."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "generators.md"
REGISTERED = "from mac_runner import registry\nregistry.ENVIRONMENTS['werewolf'] = 'werewolf'\n"
COMMAND = "from mac_runner.__main__ import main\nmain()\n"
KILLED = """
import os
from mac_runner.environments.generators.conversation import GeneratorConversation
heard = GeneratorConversation.receive
counted = []
def receive(self, turn, reply):
    counted.append(turn)
    if len(counted) == 700:
        os.kill(os.getpid(), 9)
    return heard(self, turn, reply)
GeneratorConversation.receive = receive
"""
CONTRACT = """
from pathlib import Path
from mac_runner.config import Experiment, load_experiment
from mac_runner.testing.environments import EnvironmentContract

class TestWerewolf(EnvironmentContract):
    policy = "random"
    conversations = 8

    def experiment(self) -> Experiment:
        return load_experiment(Path(__file__).with_name("werewolf.yaml")).experiment
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the page; what starts there finds its line in the registry."""
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, text in zip(("werewolf.yaml", "werewolf.py"), blocks, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(REGISTERED, encoding="utf-8")
    (tmp_path / "mac_run.py").write_text(REGISTERED + COMMAND, encoding="utf-8")
    (tmp_path / "killed.py").write_text(REGISTERED + KILLED + COMMAND, encoding="utf-8")
    (tmp_path / "test_contract.py").write_text(CONTRACT, encoding="utf-8")
    return tmp_path


def at(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)


def transcripts(run: Path) -> dict[str, Any]:
    """What was played, without times."""
    found = {}
    for path in sorted((run / "transcripts").iterdir()):
        transcript = json.loads(path.read_text())
        found[path.name] = [transcript["outcome"], transcript["record"], transcript["final_state_sha256"]]
    return found


def test_fifty_games_are_played_shown_and_verified(place: Path) -> None:
    played = at(place, "mac_run.py", "werewolf.yaml")
    shown = at(place, "mac_run.py", "show", "runs/werewolf", "0", "--seat", "Abel")
    winners = {outcome["winner"] for outcome, *_ in transcripts(place / "runs/werewolf").values()}

    assert played.returncode == 0, played.stderr
    assert winners == {"wolf", "village"}
    assert "was killed." in shown.stdout
    assert at(place, "mac_run.py", "verify", "runs/werewolf").returncode == 0


def test_a_killed_run_goes_on_to_what_an_undisturbed_one_has(place: Path) -> None:
    assert at(place, "killed.py", "werewolf.yaml", "--out", "killed").returncode == -9
    assert len(list((place / "killed/transcripts").iterdir())) < 50
    assert at(place, "mac_run.py", "werewolf.yaml", "--out", "killed").returncode == 0
    assert at(place, "mac_run.py", "werewolf.yaml", "--out", "undisturbed").returncode == 0

    assert transcripts(place / "killed") == transcripts(place / "undisturbed")
    assert at(place, "mac_run.py", "verify", "killed").returncode == 0


def test_what_a_generator_does_not_read_is_refused(place: Path) -> None:
    file = place / "werewolf.yaml"
    file.write_text(file.read_text().replace("agent_id: Abel,", "agent_id: Abel, persona: nurse,"))
    process = at(place, "mac_run.py", "werewolf.yaml", "--dry-run")

    assert process.returncode == 2
    assert "agent_definitions[0].persona" in process.stderr or "persona" in process.stderr


def test_it_keeps_the_contract(place: Path) -> None:
    tried = at(place, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_contract.py")

    assert tried.returncode == 0, tried.stdout
