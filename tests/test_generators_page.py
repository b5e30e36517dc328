"""The game of docs/generators.md is the example, and works as the page has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mac_runner.testing.request import CheckRequest
from mac_runner.testing.subjects import subject_of
from mac_runner.types import Prompt, Reply, Turn

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "generators.md").read_text(encoding="utf-8")
CONTRACT = """
from pathlib import Path
from mac_runner.config import Experiment, load_experiment
from mac_runner.testing.environments import EnvironmentContract

class TestWerewolf(EnvironmentContract):
    policy = "random"

    def experiment(self) -> Experiment:
        return load_experiment(Path(__file__).with_name("werewolf.yaml")).experiment
"""


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the page."""
    (tmp_path / "werewolf.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "werewolf.yaml").write_text(block("yaml"), encoding="utf-8")
    (tmp_path / "test_contract.py").write_text(CONTRACT, encoding="utf-8")
    return tmp_path


def at(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=place, capture_output=True, text=True, check=False)


def outcomes(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text())["outcome"] for path in sorted((run / "transcripts").iterdir())]


def test_its_code_is_the_example() -> None:
    assert block("python") == (ROOT / "examples" / "werewolf.py").read_text(encoding="utf-8")


def test_its_commands_play_show_check_and_verify(place: Path) -> None:
    said = []
    for line in block("bash").splitlines():
        program, *arguments = line.split()
        done = at(place, "mac_runner", *arguments)
        assert (program, done.returncode) == ("mac-run", 0), done.stdout + done.stderr
        said.append(done.stdout)
    _, shown, checked, _ = said

    assert {outcome["winner"] for outcome in outcomes(place / "runs" / "werewolf")} == {"wolves", "village"}
    assert "was killed." in shown
    assert "promises kept" in checked


def test_who_an_agent_is_stands_in_its_system_message(place: Path) -> None:
    subject = subject_of(CheckRequest(str(place / "werewolf.yaml"), conversations=1))
    usable = subject.player(subject.tasks[0])
    systems: dict[str, str] = {}

    def answer(turn: Turn, prompt: Prompt) -> Reply:
        systems[turn.agent] = prompt.messages[0].content
        return usable(turn, prompt)

    subject.play(subject.tasks[0], answer)

    assert systems["Abel"].endswith("You are Abel.")
    for agent, words in {
        "Bob": "You are Bob, a nurse.",
        "Caleb": "You are Caleb, a 70-year-old man.",
        "Dora": "You are Dora.\n\nKeep your answers short.",
    }.items():
        assert systems.get(agent, words).endswith(words)
    assert len(systems) > 4


def test_what_a_generator_does_not_read_is_refused(place: Path, subtests: pytest.Subtests) -> None:
    file = place / "werewolf.yaml"
    text = file.read_text()
    for key in ("reasoning: required", "role_specific_config: {visible_to: [Bob]}"):
        with subtests.test(key):
            file.write_text(text.replace("agent_id: Abel,", f"agent_id: Abel, {key},"))
            process = at(place, "mac_runner", "werewolf.yaml", "--dry-run")

            assert process.returncode == 2
            assert key.partition(":")[0] in process.stderr


def test_it_keeps_the_contract(place: Path) -> None:
    tried = at(place, "pytest", "-q", "-p", "no:cacheprovider", "test_contract.py")

    assert tried.returncode == 0, tried.stdout
