"""The commands and files of docs/clusters.md can be read by what they are for."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import yaml

from mac_runner.cli.commands import cli

PAGE = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_files_are_yaml_and_commands_are_shell() -> None:
    assert len(blocks("yaml")) >= 2
    assert all(isinstance(yaml.safe_load(text), dict) for text in blocks("yaml"))
    for text in blocks("sh"):
        assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


def test_every_command_of_ours_has_flags_that_there_are() -> None:
    words = [" ".join(text.replace("\\\n", " ").split(" #")[0].split()) for text in _commands()]
    words += [yaml.safe_load(text).get("run", "") for text in blocks("yaml")]

    found = [shlex.split(line) for line in words if line.startswith("mac-run")]

    assert len(found) >= 7
    for _, *arguments in found:
        verb = arguments.pop(0) if arguments[0] in cli.commands else "run"
        cli.commands[verb].make_context(verb, arguments)


def _commands() -> list[str]:
    lines = [line for text in blocks("sh") for line in text.replace("\\\n", " ").splitlines()]
    return [line.rpartition(" -- ")[2] for line in lines]
