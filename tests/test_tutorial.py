"""docs/tutorial.md, from the first file to the last command, with a stub in the place of the model's server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.behaviour import Received, Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "docs/tutorial.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000/v1"
INSTALLING = "pip install"
"""The block with this is not run here: it needs the package index. `.ci/wheel` installs the package alone."""
PACKAGE = f"#!{sys.executable}\nfrom mac_runner.cli import main\nmain()\n"


def choice(received: Received) -> Say:
    """What the model says: one or the other, by the request."""
    return Say("cooperate" if len(received.body) % 2 else "defect")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Has `mac-run` and `python` of this source on the search path."""
    bin_path = tmp_path / "bin"
    bin_path.mkdir()
    for name, text in (("mac-run", PACKAGE), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (bin_path / name).write_text(text)
        (bin_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{bin_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def test_every_command_of_the_tutorial_does_what_it_says(tmp_path: Path, environ: dict[str, str]) -> None:
    place = tmp_path / "dilemma"
    place.mkdir()
    said = ""
    with in_a_thread(OpenaiServer(script=choice, models=("qwen3",))) as server:
        for kind, text in BLOCKS:
            if kind != "sh":
                name = text.partition("\n")[0].removeprefix("# ")
                (place / name).write_text(text.replace(ADDRESS, server.url), encoding="utf-8")
            elif INSTALLING not in text:
                ended = subprocess.run(
                    ("bash", "-euo", "pipefail", "-c", text),
                    cwd=place,
                    env=environ,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
                said += ended.stdout

    assert [kind for kind, _ in BLOCKS] == ["sh", "python", "yaml", "sh", "sh", "sh", "python", "sh"]
    assert len(server.received) > 100
    for part in ("outcomes of dilemma, by agent", "plays again to the same end", "grudger", "cooperate"):
        assert part in said
    assert re.search(r"^qwen [\d.]+ \[[\d.]+, [\d.]+\]$", said, re.MULTILINE)
