"""`mac-serve` before it serves: what needs no engine is said without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mac_runner import __version__
from mac_runner.serve import main

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
        assert "'mac_runner[nano]'" in told.stderr
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


def test_version_is_printed() -> None:
    result = CliRunner().invoke(main, ["--version"])

    assert result.exit_code == 0
    assert result.output == f"mac-serve, version {__version__}\n"
