"""`mac-run` completes its words in a shell, by the lines of docs/index.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.lab import AtOnce

ROOT = Path(__file__).parents[2]
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
        assert "mac-run" in at_once().stdout
