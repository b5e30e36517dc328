"""`mac-run init` writes a project that runs as written; the examples come with the wheel."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from subprocess import PIPE

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.init import FOLDERS
from tests.cli.lab import AtOnce, Lab, refusals
from tests.patience import run

ROOT = Path(__file__).parents[2]


@pytest.mark.ci
def test_a_new_project_runs_is_checked_and_tested_as_its_readme_says(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_once("init", "my-game").returncode == 0
    project = lab.path / "my-game"
    commands = [line.split("#")[0].split() for line in (project / "README.md").read_text().splitlines()]
    commands = [words for words in commands if words[:1] in (["mac-run"], ["pytest"]) and "ollama" not in words]
    monkeypatch.chdir(project)

    assert [words[:2] for words in commands] == [
        ["mac-run", "my_game.yaml"],
        ["mac-run", "show"],
        ["mac-run", "check"],
        ["mac-run", "verify"],
        ["pytest"],
    ]
    for program, *arguments in commands:
        if program == "mac-run":
            done = at_once(*arguments)
        else:
            command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
            done = run(command, cwd=project, stdout=PIPE, stderr=PIPE)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_may_begin_with_an_example(lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = at_once("init", "wolves", "--example", "werewolf")
    monkeypatch.chdir(lab.path / "wolves")
    done = at_once("wolves.yaml", "--limit", "3")

    assert (begun.returncode, done.returncode) == (0, 0), begun.stderr + done.stderr
    assert "werewolf" not in Path("wolves.yaml").read_text()


def test_what_is_there_stays_as_it_is(lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    (lab.path / "full").mkdir()
    (lab.path / "full" / "notes.txt").write_text("mine")
    (lab.path / "file").write_text("mine")
    places = ("full", "file", "--examples full", "1st", "class", "json", "echo", "", "new --examples all")
    commands = [f"init {place}" for place in (*places, "other --example chess")]

    assert refusals(at_once, commands) == snapshot
    assert {path.name for path in lab.path.rglob("*")} == {"full", "notes.txt", "file"}


def test_the_examples_are_written_and_come_with_the_wheel(lab: Lab, at_once: AtOnce) -> None:
    assert at_once("init", "--examples", "all").returncode == 0
    written = {
        path.relative_to(lab.path / "all").as_posix() for path in (lab.path / "all").rglob("*") if path.is_file()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert {"examples/werewolf.py", "examples/werewolf.yaml", "experiments/echo.yaml"} <= written
    assert included == {folder: f"mac_runner/shipped/{folder}" for folder in FOLDERS}
