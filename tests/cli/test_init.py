"""What a user begins with: `mac-run init`, the examples, and words that the shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.games import FOLDERS
from tests.cli.lab import ROOT, AtOnce, Lab, ending, refusals


@pytest.mark.ci
def test_a_new_project_runs_is_checked_and_tested_as_its_readme_says(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once("init my-game").done()
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
            at_once(*arguments).done()
        else:
            command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
            ending(lab.start(program=command, cwd=project)).done()


def test_a_project_may_begin_with_an_example(lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once("init wolves --example werewolf").done()
    monkeypatch.chdir(lab.path / "wolves")
    at_once("wolves.yaml --limit 3").done()

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
    at_once("init --examples all").done()
    written = {
        path.relative_to(lab.path / "all").as_posix() for path in (lab.path / "all").rglob("*") if path.is_file()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert {"examples/werewolf.py", "examples/werewolf.yaml", "experiments/echo.yaml"} <= written
    assert included == {folder: f"mac_runner/shipped/{folder}" for folder in FOLDERS}


PAGE = ROOT / "docs" / "index.md"

LINES = dict(re.findall(r"^- (bash|zsh|fish), `.*`: `(.*)`$", PAGE.read_text("utf-8"), re.MULTILINE))


ASKED = """
COMP_WORDS=({words}) COMP_CWORD={place} COMPREPLY=()
compopt() {{ COMPREPLY+=("$*"); }}
_mac_run_completion mac-run
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path with `mac-run` of this source on it."""
    command = tmp_path / "mac-run"
    command.write_text(f"#!{sys.executable}\nfrom mac_runner.cli import main\nmain()\n")
    command.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def shell(path: str, script: str) -> str:
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    command = ("bash", "--norc", "-c", script)
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.ci
def test_bash_completes_verbs_flags_and_files(path: str) -> None:
    """What `compopt` gets: `-o default` has the shell complete names of files."""
    due = {
        "mac-run ver": "verify",
        "mac-run show --whe": "--where",
        "mac-run FILE.yaml --dry": "--dry-run",
        "mac-run show runs/": "-o default",
    }
    asked = [ASKED.format(words=words, place=len(words.split()) - 1) for words in due]

    assert shell(path, "\n".join((LINES["bash"], *asked))).split() == " ".join(due.values()).split()


def test_each_documented_line_is_answered_with_a_script_for_its_shell(
    at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zsh", "fish"):  # That of bash is tried above.
        variable = f"_MAC_RUN_COMPLETE={name}_source"
        assert variable in LINES[name]
        monkeypatch.setenv(*variable.split("="))
        at_once().done("mac-run")
