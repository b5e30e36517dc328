from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mac_runner.cli import main
from mac_runner.cli.process import Exit
from tests.cli.lab import Lab, experiment
from tests.conftest import kept_signals


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
    file = lab.write(experiment())
    with pytest.MonkeyPatch.context() as monkeypatch, kept_signals():
        monkeypatch.chdir(lab.path)
        assert run_main(monkeypatch, file) == Exit.OK
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
        return subprocess.CompletedProcess(args, run_main(monkeypatch, *args), *capsys.readouterr())

    return run


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Run `mac-run` in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["mac-run", *args])
    with pytest.raises(SystemExit) as ending:
        main()
    assert isinstance(ending.value.code, int)
    return ending.value.code
