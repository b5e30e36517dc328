from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import lab as lab
from tests.cli.lab import experiment
from tests.kit import played as run_of
from tests.viewer.served import Served, served


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of three games that has ended; not to be changed."""
    return run_of(experiment(conversations=3), tmp_path_factory.mktemp("viewed") / "small")


@pytest.fixture
def own_run(tmp_path: Path, played: Path) -> Path:
    """A separate copy of that directory."""
    return Path(shutil.copytree(played, tmp_path / "small"))


@pytest.fixture
def viewer(played: Path) -> Iterator[Served]:
    """A viewer of the run that has ended."""
    with served(played) as found:
        yield found
