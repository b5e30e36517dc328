from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.lab import Lab, experiment


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty working directory."""
    lab = Lab(path=tmp_path)
    yield lab
    lab.close()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which `small.yaml` has been played to its end, without a flag; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("played"))
    lab.done(lab.write(experiment()))
    return lab.path


@pytest.fixture
def finished(lab: Lab, played: Path) -> Lab:
    """A working directory of one's own in which `small.yaml` has been played to its end."""
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    return lab
