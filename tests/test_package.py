"""The package as it is shipped: public names, version, examples."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mac_runner
from mac_runner.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "experiments").glob("*.yaml"))
NANO = tuple(path for room in ("nano", "backends/nano") for path in sorted((ROOT / "mac_runner" / room).rglob("*.py")))
"""They need torch, and are looked at in tests/nano."""
MODULES = [path for path in sorted((ROOT / "mac_runner").rglob("*.py")) if path not in NANO]


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def test_public_names_of_a_room_are_those_listed(subtests: pytest.Subtests) -> None:
    check_rooms(MODULES, subtests)


def check_rooms(modules: Sequence[Path], subtests: pytest.Subtests) -> None:
    """What the `__init__` of a room holds and does not list is a submodule, which Python puts there by itself.

    A package inside a room is nobody's way in: it may also hold what it needs for what it lists.
    """
    for room in [path.parent for path in modules if path.name == "__init__.py"]:
        with subtests.test(_dotted(room)):
            module = importlib.import_module(_dotted(room))
            listed: list[str] = getattr(module, "__all__", [])
            inner = {path.stem for path in room.iterdir()}
            held = {name for name in dir(module) if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}

            assert len(set(listed)) == len(listed)
            assert set(listed) <= held
            assert held - inner <= set(listed) or len(room.relative_to(ROOT).parts) > 2


def test_module_can_be_imported_and_says_what_it_is(subtests: pytest.Subtests) -> None:
    check_modules(MODULES, subtests)


def check_modules(modules: Sequence[Path], subtests: pytest.Subtests) -> None:
    for path in modules:
        with subtests.test(_dotted(path)):
            assert importlib.import_module(_dotted(path)).__doc__


def test_version_is_the_one_of_the_project() -> None:
    assert _project()["version"] == mac_runner.__version__


@pytest.mark.parametrize("command", ["mac-run", "mac-serve"])
def test_command_that_is_installed_is_there_without_any_extra(command: str) -> None:
    module, _, function = _project()["scripts"][command].partition(":")

    assert callable(getattr(importlib.import_module(module), function))


def test_there_are_examples() -> None:
    assert EXAMPLES != []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_ready_to_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mac-run", str(path), "--dry-run"])

    with pytest.raises(SystemExit) as ending:
        main()

    out, err = capsys.readouterr()
    assert (ending.value.code, err) == (0, "")
    assert re.search(rf"directory +runs/{path.stem}\n", out)
    assert list(tmp_path.iterdir()) == []
