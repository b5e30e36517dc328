from __future__ import annotations

import fcntl
import os
import pty
import shutil
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.lab import MAC_RUN, QUESTIONS, AtOnce, Lab, Terminal, environ, experiment
from tests.kit import copied
from tests.sim.ollama_server import OllamaServer
from tests.sim.openai_run import in_a_thread


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """An empty working directory."""
    lab = Lab(path=tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def stub() -> Iterator[OllamaServer]:
    """A stand-in for Ollama."""
    with in_a_thread(OllamaServer()) as stub:
        yield stub


@pytest.fixture
def dead_host() -> Iterator[str]:
    """An address without a listener, now and later."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def asked(lab: Lab) -> Lab:
    """A working directory with questions in it."""
    copied(QUESTIONS, lab.path / "q.jsonl")
    return lab


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
def at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> AtOnce:
    """The whole command line in this process: what needs no process of its own then costs milliseconds."""
    monkeypatch.chdir(lab.path)
    return AtOnce(lab=lab, heard=capsys.readouterr)


@pytest.fixture
def on_terminal(lab: Lab) -> Iterator[Callable[..., Terminal]]:
    """Starts `mac-run` on a terminal of the given size."""
    opened: list[Terminal] = []

    def start(*args: str, columns: int = 120, lines: int = 40, program: tuple[str, ...] = MAC_RUN) -> Terminal:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        process = subprocess.Popen(
            [*program, *args], cwd=lab.path, env=environ(), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        opened.append(Terminal(process=process, descriptor=ours))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.descriptor)
