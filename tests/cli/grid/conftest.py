"""A grid that was played once for all tests of a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.lab import Lab, RunDir


@pytest.fixture
def run(lab: Lab, played: Path) -> RunDir:
    """The directory of the grid that the file has `played`, in a working directory of the test's own."""
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    return lab.run_dir()
