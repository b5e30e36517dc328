"""The experiments of docs/adapters.md and examples/textarena.yaml are played as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.lab import RunDir

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
NEEDED = {"negotiations": "textarena", "connect_four": "pygame"}


def at(place: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mac_runner", *args]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NEEDED)
def test_experiments_of_the_page_are_played_shown_and_verified(tmp_path: Path, name: str) -> None:
    pytest.importorskip(NEEDED[name])
    texts = {text.split(".yaml")[0].removeprefix("# "): text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)}
    assert texts.keys() == NEEDED.keys()
    (tmp_path / f"{name}.yaml").write_text(texts[name], encoding="utf-8")

    played = at(tmp_path, f"{name}.yaml")
    shown = at(tmp_path, "show", f"runs/{name}", "0", "--seat", "Ann")
    verified = at(tmp_path, "verify", f"runs/{name}", "--trust")

    assert played.returncode == 0, played.stderr
    assert len(RunDir(path=tmp_path / "runs" / name).transcripts) == 50
    assert "only you" in shown.stdout
    assert "50" in verified.stdout
    assert verified.returncode == 0, verified.stdout


def test_the_example_is_played(tmp_path: Path) -> None:
    pytest.importorskip("textarena")
    played = at(tmp_path, str(ROOT / "examples" / "textarena.yaml"), "--set", "conversation_config.conversations=2")

    assert played.returncode == 0, played.stderr


def test_each_game_that_the_tests_play_is_on_the_page() -> None:
    from tests.environments.adapters.playing import TEN, THREE

    missing = [game for game in (*TEN, *(game.split(".")[1].rpartition("_")[0] for game in THREE)) if game not in PAGE]

    assert missing == []
