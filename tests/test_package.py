"""The package as it is shipped: public names, version, commands, examples, benchmarks."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from click.testing import CliRunner

import mac_runner
from mac_runner.serve import main
from tests import patience
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import ROOT, AtOnce, Lab

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


def test_version_is_the_one_of_the_project_and_is_printed() -> None:
    printed = CliRunner().invoke(main, ["--version"])

    assert _project()["version"] == mac_runner.__version__
    assert (printed.exit_code, printed.output) == (0, f"mac-serve, version {mac_runner.__version__}\n")


def test_commands_that_are_installed_are_there_without_any_extra() -> None:
    for command in ("mac-run", "mac-serve"):
        module, _, function = _project()["scripts"][command].partition(":")

        assert callable(getattr(importlib.import_module(module), function))


def test_examples_are_ready_to_run(lab: Lab, at_once: AtOnce) -> None:
    files = sorted((ROOT / "experiments").glob("*.yaml"))
    for path in files:
        ended = at_once(path, "--dry-run")

        assert (ended.returncode, ended.stderr) == (0, ""), path
        assert re.search(rf"directory +runs/{path.stem}\n", ended.stdout)
    assert files != []
    assert list(lab.path.iterdir()) == []


WITHOUT = (
    "import sys; sys.modules[{package!r}] = None; from mac_runner.serve import main; main({arguments!r}, 'mac-serve')"
)


def mac_serve_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process that does not find a package, whether it is installed or not."""
    program = WITHOUT.format(package=package, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.smoke
def test_help_is_printed_without_the_extra() -> None:
    told = mac_serve_without("torch", "--help")

    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("Usage: mac-serve ")


@pytest.mark.ci
def test_model_without_the_extra_is_told_in_a_line_how_to_get_it() -> None:
    for package in ("torch", "fastapi"):
        told = mac_serve_without(package, "some/model")

        assert (told.returncode, told.stdout) == (2, "")
        assert "[nano]" in told.stderr
        assert told.stderr.startswith("Error: mac-serve ")
        assert told.stderr.count("\n") == 1


def test_bad_usage_is_told_by_its_option(tmp_path: Path) -> None:
    """A key that is not set, one that no header can carry, and numbers that are none."""
    unusable = "MAC_KEY holds a space or a character that no key may have"
    cases = [("--admin-key-env", "NO_SUCH_VARIABLE", "", "NO_SUCH_VARIABLE is not set")]
    cases += [("--admin-key-env", "MAC_KEY", key, unusable) for key in ("Schlüssel", "two\nlines")]
    cases += [
        (option, number, "", f"Invalid value for '{option}'")
        for option in ("--kv-cache-gib", "--gpu-memory-utilization")
        for number in ("nan", "inf", "-inf")
    ]
    for option, value, key, words in cases:
        result = CliRunner().invoke(main, [str(tmp_path), option, value], env={"MAC_KEY": key})

        assert result.exit_code == 2, (option, value)
        assert words in result.output
        assert not key or key not in result.output


def row_of(name: str, place: Path, *flags: str) -> Any:
    """The last line that a benchmark prints."""
    script = str(ROOT / "benchmarks" / f"{name}.py")
    process = patience.run([sys.executable, script, *flags], cwd=place, stdout=PIPE, stderr=PIPE)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_benchmarks_run_from_anywhere_and_end_with_their_rows(tmp_path: Path) -> None:
    played = row_of("orchestrator", tmp_path, "--conversations", "6", "--slots", "4", "--latency-ms", "5")
    scale = row_of("scale", tmp_path, "--conversations", "60")

    assert all(0 < played[key] <= 1 for key in ("slot_utilisation", "bare_slot_utilisation"))
    assert played["wall_over_bound"] > 0.9
    assert min(played["client_cpu_ms_per_request"], played["backend_cpu_ms_per_request"]) > 0
    assert (scale["conversations"], scale["turns"]) == (60, 360)
    measured = {"bookkeeping_us_per_conversation", "bookkeeping_us_per_turn", "scheduler_us_per_turn", "peak_rss_mb"}
    assert all(scale[key] > 0 for key in measured | {"resume_to_first_request_s", "finished_again_s"})
