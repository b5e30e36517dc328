"""The package as it is shipped: public names, version, examples."""

from __future__ import annotations

import importlib
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import mac_runner
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import AtOnce, Lab

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "mac_runner").rglob("*.py"))
ROOMS = [path.parent for path in MODULES if path.name == "__init__.py"]
NANO = (ROOT / "mac_runner" / "nano", ROOT / "mac_runner" / "backends" / "nano")
"""Of all rooms only nano, and the backend of that name, need torch, which comes with `[nano]` and takes seconds."""


def _is_nano(path: Path) -> bool:
    return any(path.is_relative_to(room) for room in NANO)


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _faults(rooms: list[Path]) -> list[str]:
    """The rooms whose public names are not those that their `__init__` lists.

    What the `__init__` of a room holds and does not list is a submodule, which Python puts there by itself.
    A package inside a room is nobody's way in: it may also hold what it needs for what it lists.
    """
    wrong = []
    for room in rooms:
        module = importlib.import_module(_dotted(room))
        listed: list[str] = getattr(module, "__all__", [])
        inner = {path.stem for path in room.iterdir()}
        held = {name for name in dir(module) if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}
        is_own = held - inner <= set(listed) or len(room.relative_to(ROOT).parts) > 2
        if len(set(listed)) != len(listed) or not set(listed) <= held or not is_own:
            wrong.append(_dotted(room))
    return wrong


def test_public_names_of_a_room_are_those_listed() -> None:
    assert _faults([room for room in ROOMS if not _is_nano(room)]) == []


@pytest.mark.ci
def test_module_can_be_imported() -> None:
    for path in MODULES:
        if find_spec("torch") is not None or not _is_nano(path):
            importlib.import_module(_dotted(path))
    assert _faults([room for room in ROOMS if find_spec("torch") is not None and _is_nano(room)]) == []


def test_version_is_the_one_of_the_project() -> None:
    assert _project()["version"] == mac_runner.__version__


def test_commands_that_are_installed_are_there_without_any_extra() -> None:
    for command in ("mac-run", "mac-serve"):
        module, _, function = _project()["scripts"][command].partition(":")

        assert callable(getattr(importlib.import_module(module), function))


def test_examples_are_ready_to_run(lab: Lab, at_once: AtOnce) -> None:
    files = sorted((ROOT / "experiments").glob("*.yaml"))
    for path in files:
        ended = at_once(str(path), "--dry-run")

        assert (ended.returncode, ended.stderr) == (0, ""), path
        assert re.search(rf"directory +runs/{path.stem}\n", ended.stdout)
    assert files != []
    assert list(lab.path.iterdir()) == []
