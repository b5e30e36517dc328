"""The backend of docs/engines.md works as the page has it, and nothing but its registry line names it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
REGISTERED = "from mac_runner import registry\nregistry.BACKENDS['parrot'] = 'parrot'\n"
COMMAND = "from mac_runner.__main__ import main\nmain()\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the page; what starts there finds its line in the registry."""
    _, section = PAGE.read_text(encoding="utf-8").split("\n## Add a backend\n")
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL)
    for name, text in zip(("parrot.py", "parrot.yaml", "test_parrot.py"), blocks, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(REGISTERED, encoding="utf-8")
    (tmp_path / "mac_run.py").write_text(REGISTERED + COMMAND, encoding="utf-8")
    return tmp_path


def at(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=place, capture_output=True, text=True, check=False)


def test_it_plays_an_experiment(place: Path) -> None:
    done = at(place, "mac_run.py", "parrot.yaml")
    index = (place / "runs" / "parrot" / "parrot_index.jsonl").read_text().splitlines()

    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["outcome"]["echoed"] for line in index] == [2] * 5


def test_setting_that_it_ignores_is_refused_with_its_place(place: Path) -> None:
    text = (place / "parrot.yaml").read_text()
    (place / "parrot.yaml").write_text(text.replace("model: bird}", "model: bird, top_p: 0.5}"))
    refused = at(place, "mac_run.py", "parrot.yaml")

    assert refused.returncode == 2
    assert "parrot.yaml:8: agent_definitions.0.top_p: the backend 'parrot'" in refused.stderr
    assert not (place / "runs").exists()


def test_it_keeps_the_contract(place: Path) -> None:
    tried = at(place, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parrot.py")

    assert tried.returncode == 0, tried.stdout
    assert "6 passed, 7 skipped" in tried.stdout
