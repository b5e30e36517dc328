"""The package as it is shipped: public names, version, examples."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mac_runner
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import AtOnce, Lab

ROOT = Path(__file__).parents[1]
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


@pytest.mark.ci
def test_module_can_be_imported_and_says_what_it_is(subtests: pytest.Subtests) -> None:
    check_modules(MODULES, subtests)


def check_modules(modules: Sequence[Path], subtests: pytest.Subtests) -> None:
    for path in modules:
        with subtests.test(_dotted(path)):
            assert importlib.import_module(_dotted(path)).__doc__


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
