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
    assert told.stdout.startswith("Usage: mac-serve [OPTIONS] MODEL")


@pytest.mark.parametrize("package", ["torch", "fastapi"])
def test_model_without_the_extra_is_told_in_a_line_how_to_get_it(package: str) -> None:
    told = mac_serve_without(package, "some/model")

    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.endswith(" not installed here; `pip install 'mac_runner[nano]'` installs it\n")
    assert told.stderr.startswith("Error: mac-serve needs ")
    assert told.stderr.count("\n") == 1


def test_key_that_is_not_set_is_bad_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--admin-key-env", "NO_SUCH_VARIABLE"])

    assert result.exit_code == 2
    assert "NO_SUCH_VARIABLE is not set" in result.output


@pytest.mark.parametrize("key", ["Schlüssel", "two\nlines"])
def test_key_that_no_header_can_carry_is_bad_usage(tmp_path: Path, key: str) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--admin-key-env", "MAC_KEY"], env={"MAC_KEY": key})

    assert result.exit_code == 2
    assert "MAC_KEY holds a space or a character that no key may have" in result.output
    assert key not in result.output


@pytest.mark.parametrize("option", ["--kv-cache-gib", "--gpu-memory-utilization"])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_number_that_is_none_is_bad_usage(tmp_path: Path, option: str, number: str) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), option, number])

    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


def test_version_is_printed() -> None:
    result = CliRunner().invoke(main, ["--version"])

    assert result.exit_code == 0
    assert result.output == f"mac-serve, version {__version__}\n"
