from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.lab import Lab, experiment, run_main


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
    lab.play(lab.write(experiment()))
    return lab.path


@pytest.fixture
def finished(lab: Lab, played: Path) -> Lab:
    """A separate working directory in which `small.yaml` has been played to its end."""
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    return lab


@pytest.fixture
def at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The whole command line in this process: what needs no process of its own then costs milliseconds."""
    monkeypatch.chdir(lab.path)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args, run_main(*args), *capsys.readouterr())

    return run
