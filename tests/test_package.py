"""The package as it is shipped: public names, version, examples."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tomllib
from pathlib import Path

import pytest

import mac_runner
from mac_runner.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "experiments").glob("*.yaml"))
ROOMS = [module.name for module in pkgutil.walk_packages(mac_runner.__path__, "mac_runner.") if module.ispkg]


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_of_a_room_are_those_listed(room: str) -> None:
    """What a room's `__init__` holds that is not listed is a submodule, which Python puts there by itself."""
    module = importlib.import_module(room)
    listed = getattr(module, "__all__", None)
    held = {name for name in vars(module) if not name.startswith("_") and name != "annotations"}
    inner = {found.name for found in pkgutil.iter_modules(module.__path__)}

    assert module.__doc__
    if listed is None:
        assert held <= inner, f"{room} holds names and lists none"
    else:
        assert sorted(set(listed)) == listed
        assert held - inner == set(listed) - inner


def test_every_module_can_be_imported_and_says_what_it_is() -> None:
    names = [module.name for module in pkgutil.walk_packages(mac_runner.__path__, "mac_runner.")]

    assert [name for name in names if not importlib.import_module(name).__doc__] == []


def test_version_is_the_one_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["version"] == mac_runner.__version__


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
    assert f"run directory  runs/{path.stem}\n" in out
    assert list(tmp_path.iterdir()) == []
