"""Kernels are compiled wherever the package lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mac_runner

PROGRAM = """
import torch
from mac_runner.nano.row_kernels import argmax_and_logsumexp
print(argmax_and_logsumexp(torch.tensor([[0.0, 3.0, 1.0]]))[0].tolist())
"""


def run(package: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd="/",
        env={**kept, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package without anything compiled."""
    source = Path(mac_runner.__file__).parent
    shutil.copytree(source, tmp_path / "lib" / "mac_runner", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "lib"


def test_what_was_compiled_is_kept_beside_the_package(package: Path) -> None:
    assert run(package) == "[1]\n"

    kept = package / "mac_runner" / "nano" / "__pycache__"
    assert list(kept.glob("row_kernels.*.nbc"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a place that nobody can write to")
def test_where_nothing_can_be_kept_kernels_are_compiled_anew(package: Path) -> None:
    """Files in the places of the folders: not even root can make anything below them."""
    for folder in (package / "mac_runner").rglob("nano"):
        (folder / "__pycache__").write_text("")

    assert run(package, HOME="/dev/full", XDG_CACHE_HOME="/dev/full/cache") == "[1]\n"
