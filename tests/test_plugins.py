"""Code named in an experiment file: what is found, what its digest covers, and what is said of each slip."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError
from mac_runner.plugins import find_plugin, installed_plugins, loaded_plugin


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_is_found_relative_to_the_experiment_and_digested(tmp_path: Path) -> None:
    _write(tmp_path / "game.py", "def play(): return 1\n")

    found = find_plugin("environments", "./game.py:play", tmp_path)

    assert found.value() == 1  # type: ignore[operator]
    assert found.code.path == tmp_path / "game.py"
    assert (found.code.distribution, found.code.version) == (None, None)
    assert loaded_plugin("environments", "./game.py:play", found.code.sha256) == found
    assert loaded_plugin("backends", "./game.py:play", found.code.sha256) is None


def test_code_is_imported_once_and_again_when_it_or_what_it_imports_was_edited(tmp_path: Path) -> None:
    _write(tmp_path / "game.py", "from rules import LIMIT\ndef play(): return LIMIT\n")
    _write(tmp_path / "rules.py", "LIMIT = 1\n")
    first = find_plugin("environments", "./game.py:play", tmp_path)
    again = find_plugin("environments", "./game.py:play", tmp_path)
    _write(tmp_path / "rules.py", "LIMIT = 2\n")  # Same size, same second.
    edited = find_plugin("environments", "./game.py:play", tmp_path)
    _write(tmp_path / "rules.py", "LIMIT = 1\n")
    back = find_plugin("environments", "./game.py:play", tmp_path)

    assert first.value is again.value
    assert [one.value() for one in (first, edited, back)] == [1, 2, 1]  # type: ignore[operator]
    _write(tmp_path / "elsewhere/game.py", (tmp_path / "game.py").read_text())
    _write(tmp_path / "elsewhere/rules.py", "LIMIT = 1\n")
    _write(tmp_path / "elsewhere/more.py", "not imported")
    elsewhere = find_plugin("environments", "./game.py:play", tmp_path / "elsewhere")

    assert first.code.sha256 == back.code.sha256 == elsewhere.code.sha256 != edited.code.sha256
    assert loaded_plugin("environments", "./game.py:play", first.code.sha256) == first


def test_modules_of_two_folders_and_of_the_process_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, limit in (("one", 1), ("two", 2)):
        _write(tmp_path / folder / "game.py", "import rules.limits\ndef play(): return rules.limits.LIMIT\n")
        _write(tmp_path / folder / "rules/__init__.py", "")
        _write(tmp_path / folder / "rules/limits.py", f"LIMIT = {limit}\n")
    _write(tmp_path / "own/rules.py", "LIMIT = 3\n")
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    import rules  # type: ignore[import-not-found]

    found = [find_plugin("environments", "./game.py:play", tmp_path / folder) for folder in ("one", "two")]

    assert [one.value() for one in found] == [1, 2]  # type: ignore[operator]
    assert sys.modules["rules"] is rules
    assert "rules.limits" not in sys.modules
    assert not [path for path in tmp_path.rglob("__pycache__") if "own" not in path.parts]


def test_a_file_that_is_named_as_a_module_of_the_standard_library_replaces_none(tmp_path: Path) -> None:
    _write(tmp_path / "random.py", "import random\ndef play(): return random.Random(1).random()\n")

    found = find_plugin("environments", "./random.py:play", tmp_path)

    assert found.value() == pytest.approx(0.134, abs=0.001)  # type: ignore[operator]


def test_what_a_file_defines_can_be_pickled(tmp_path: Path) -> None:
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    _write(tmp_path / "game.py", f"{imports}@dataclass\nclass Game:\n    days: int\n")

    game = find_plugin("environments", "./game.py:Game", tmp_path).value(3)  # type: ignore[operator]

    assert pickle.loads(pickle.dumps(game)) == game


def test_a_module_is_digested_with_its_whole_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "pluginpack/__init__.py", "")
    _write(tmp_path / "pluginpack/games.py", "class Game: ...\n")
    _write(tmp_path / "pluginpack/rules.py", "LIMIT = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = find_plugin("environments", "pluginpack.games:Game", tmp_path)
    _write(tmp_path / "pluginpack/rules.py", "LIMIT = 2\n")

    assert found.value is sys.modules["pluginpack.games"].Game
    with pytest.raises(ConfigError, match="has changed since"):
        find_plugin("environments", "pluginpack.games:Game", tmp_path)


def test_an_installed_package_offers_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "villages", "2.1", "[mac_runner.environments]\nhamlet = villagepack:hamlet\n")
    _write(tmp_path / "villagepack.py", "def hamlet(): return 'played'\n")
    monkeypatch.syspath_prepend(tmp_path)

    listed = [one for one in installed_plugins("environments") if one.name == "hamlet"]
    (offered,) = listed
    assert (offered.target, offered.distribution, offered.version) == ("villagepack:hamlet", "villages", "2.1")
    assert "villagepack" not in sys.modules
    _distribution(tmp_path, "hamlets", "1", "[mac_runner.environments]\nlater = villagepack:hamlet\n")
    assert "later" in {one.name for one in installed_plugins("environments")}, "installed while this process runs"

    found = find_plugin("environments", "hamlet", tmp_path)
    by_module = find_plugin("environments", "villagepack:hamlet", tmp_path)

    assert found.value() == "played"  # type: ignore[operator]
    assert found.code[:2] == ("villages", "2.1")
    assert found.code.sha256 == by_module.code.sha256


def test_a_name_that_two_packages_offer_is_refused_naming_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first", "second"):
        _distribution(tmp_path, package, "1", f"[mac_runner.environments]\nhamlet = {package}pack:hamlet\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"\(firstpack:hamlet\) .* \(secondpack:"):
        find_plugin("environments", "hamlet", tmp_path)


SLIPS = {
    "./nowhere.py:play": ("cannot be read: No such file", "name a file that exists"),
    "./folder.py:play": ("it is a directory",),
    "./game.py:": ("names no object", "./game.py:NAME"),
    "./game.py:paly": ("has no 'paly'", "did you mean 'play'"),
    "./game.py:play.deep": ("has no 'deep'",),
    "./typo.py:play": ("typo.py:2: NameError: name 'wolves' is not defined",),
    "./syntax.py:play": ("syntax.py:1: SyntaxError",),
    "./uses_typo.py:play": ("typo.py:2: NameError",),
    "./needs.py:play": ("needs.py:1: ModuleNotFoundError: No module named 'no_such_package'",),
    "./leaves.py:play": ("ended the process", "leaves.py:1: SystemExit: 3", "__main__"),
    "./wide.py:play": ("SyntaxError",),
    "no_such_package.games:Game": ("there is no module 'no_such_package' here", "install the package"),
    "game:play": ("there is no module 'game' here", "./game.py:NAME"),
    "json:nowhere": ("has no 'nowhere'",),
    "two words:play": ("names nothing that can be imported", "package.module:Name"),
    "json:": ("names nothing that can be imported",),
    "hamlte": ("there is no 'hamlte' here", "did you mean 'hamlet'", "./file.py:name"),
}


@pytest.mark.ci
def test_each_slip_gets_a_message_with_its_place_and_a_remedy(tmp_path: Path) -> None:
    _write(tmp_path / "game.py", "from json import dumps\ndef play(): ...\n")
    _write(tmp_path / "typo.py", "import json\nfor wolf in wolves: ...\n")
    _write(tmp_path / "uses_typo.py", "import typo\n")
    _write(tmp_path / "syntax.py", "def play(:\n")
    _write(tmp_path / "needs.py", "import no_such_package\n")
    _write(tmp_path / "leaves.py", "raise SystemExit(3)\n")
    _write(tmp_path / "wide.py", "play = '\0'\n")
    (tmp_path / "folder.py").mkdir()
    path, finders = [*sys.path], [*sys.meta_path]

    wrong = {}
    for name, parts in SLIPS.items():
        before = set(sys.modules)
        try:
            find_plugin("environments", name, tmp_path, known=("hamlet", "echo"))
        except ConfigError as fault:
            if not all(part in str(fault) for part in parts) or "\n" in str(fault):
                wrong[name] = str(fault)
        else:
            wrong[name] = "accepted"
        left = {one for one in set(sys.modules) - before if "plugin_game" not in one}
        if left & {"typo", "game"} or any("plugin" in one for one in left):
            wrong[name] = f"left {left}"

    assert wrong == {}
    assert (sys.path, sys.meta_path) == (path, finders)


def _distribution(folder: Path, name: str, version: str, points: str) -> None:
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    _write(folder / f"{name}-{version}.dist-info/METADATA", about)
    _write(folder / f"{name}-{version}.dist-info/entry_points.txt", points)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
