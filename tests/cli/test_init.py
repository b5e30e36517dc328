"""`mac-run init` writes a project that runs as written; the examples come with the wheel."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mac_runner.cli.init import FOLDERS

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


def at(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=place, capture_output=True, text=True, check=False)


def mac_run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return at(place, "mac_runner", *arguments)


def test_a_new_project_runs_is_checked_and_tested_as_its_readme_says(tmp_path: Path) -> None:
    assert mac_run(tmp_path, "init", "my-game").returncode == 0
    project = tmp_path / "my-game"
    commands = [line.split("#")[0].split() for line in (project / "README.md").read_text().splitlines()]
    commands = [words for words in commands if words[:1] in (["mac-run"], ["pytest"]) and "ollama" not in words]

    assert [words[:2] for words in commands] == [
        ["mac-run", "my_game.yaml"],
        ["mac-run", "show"],
        ["mac-run", "check"],
        ["mac-run", "verify"],
        ["pytest"],
    ]
    for program, *arguments in commands:
        module = "mac_runner" if program == "mac-run" else "pytest"
        done = at(project, module, *arguments, *(["-p", "no:cacheprovider"] if program == "pytest" else []))
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_may_begin_with_an_example(tmp_path: Path) -> None:
    begun = mac_run(tmp_path, "init", "wolves", "--example", "werewolf")
    done = mac_run(tmp_path / "wolves", "wolves.yaml", "--limit", "3")
    unknown = mac_run(tmp_path, "init", "other", "--example", "chess")

    assert (begun.returncode, done.returncode) == (0, 0), begun.stderr + done.stderr
    assert "werewolf" not in (tmp_path / "wolves" / "wolves.yaml").read_text()
    assert unknown.returncode == 2
    assert "allowed: negotiation, twenty_questions, werewolf" in unknown.stderr


def test_what_is_there_stays_as_it_is(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for arguments, words in {
        ("init", "full"): "is not empty; name another folder",
        ("init", "file"): "is not a directory",
        ("init", "--examples", "full"): "is not empty",
        ("init", "1st"): "cannot be the name of a game",
        ("init", "class"): "cannot be the name of a game: it is a word of Python",
        ("init", "json"): "'json' is the name of a module",
        ("init", "echo"): "or an environment that is here; write another name",
        ("init",): "name the folder of a new project",
        ("init", "new", "--examples", "all"): "or give --examples DIR",
    }.items():
        with subtests.test(" ".join(arguments)):
            done = mac_run(tmp_path, *arguments)

            assert done.returncode == 2, done.stdout
            assert words in done.stderr
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "notes.txt", "file"}


def test_the_examples_are_written_and_come_with_the_wheel(tmp_path: Path) -> None:
    assert mac_run(tmp_path, "init", "--examples", "all").returncode == 0
    written = {
        path.relative_to(tmp_path / "all").as_posix() for path in (tmp_path / "all").rglob("*") if path.is_file()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert {"examples/werewolf.py", "examples/werewolf.yaml", "experiments/echo.yaml"} <= written
    assert included == {folder: f"mac_runner/shipped/{folder}" for folder in FOLDERS}
