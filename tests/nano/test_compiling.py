"""Kernels are compiled wherever the package lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mac_runner
from tests import patience

PROGRAM = """
import os, torch
from mac_runner.nano.cpu.row_kernels import argmax_and_logsumexp
if os.environ.get("PROGRAM_SAYS") == "sum":
    print(f"{argmax_and_logsumexp(torch.zeros(1, 32))[1].item():.4f}")
else:
    print(argmax_and_logsumexp(torch.tensor([[0.0, 3.0, 1.0]]))[0].tolist())
"""


def run(package: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    ended = patience.run(
        [sys.executable, "-c", PROGRAM],
        cwd="/",
        env={**kept, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without anything compiled."""
    source = Path(mac_runner.__file__).parent
    shutil.copytree(source, tmp_path / "lib" / "mac_runner", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "lib"


def test_what_was_compiled_is_kept_where_the_user_says(package: Path, tmp_path: Path) -> None:
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "kept")) == "[1]\n"

    assert list((tmp_path / "kept").rglob("row_kernels.*.nbc"))
    assert not list(package.rglob("*.nbc"))


def test_what_was_compiled_is_kept_beside_the_package_until_what_it_is_made_of_changes(package: Path) -> None:
    """The place and the file of a kernel are the same, the vectors are others."""
    vectors = package / "mac_runner" / "nano" / "cpu" / "vectors.py"
    before = run(package, PROGRAM_SAYS="sum")
    assert list((vectors.parent / "__pycache__").rglob("row_kernels.*.nbc"))
    text = vectors.read_text()
    assert "6.9314718e-1, 1.0)" in text
    vectors.write_text(text.replace("6.9314718e-1, 1.0)", "6.9314718e-1, 2.0)"))

    assert (before, run(package, PROGRAM_SAYS="sum")) == ("3.4657\n", "4.1589\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a place that nobody can write to")
def test_where_nothing_can_be_kept_kernels_are_compiled_anew(package: Path) -> None:
    """Files in the places of the folders: not even root can make anything below them."""
    for folder in (package / "mac_runner").rglob("cpu"):
        (folder / "__pycache__").write_text("")

    assert run(package, HOME="/dev/full", XDG_CACHE_HOME="/dev/full/cache") == "[1]\n"
