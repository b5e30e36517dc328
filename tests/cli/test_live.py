"""What a person sees on a terminal, and that the terminal is left as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.cli.lab import MAC_RUN, AtOnce, Lab, environ, experiment, scripted
from tests.patience import LIMIT_S, wait_for
from tests.sim.held_run import held

pytestmark = pytest.mark.ci

HIDE_CURSOR, ALTERNATE_SCREEN = "\x1b[?25l", "\x1b[?1049h"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(slots=True, kw_only=True)
class Terminal:
    """A process on a terminal of its own, and all that was written to it."""

    process: subprocess.Popen[bytes]
    descriptor: int
    raw: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """Everything written so far, control sequences included."""
        return self.raw.decode(errors="replace")

    def read_until(self, condition: Callable[[str], object], what: str) -> None:
        """Read on until `condition` holds of the text."""

        def holds() -> object:
            self._read()
            return condition(self.text)

        wait_for(holds, what)

    def end(self) -> int:
        """Read on until the process has ended; its exit code."""
        wait_for(lambda: not self._read() and self.process.poll() is not None, "the end of the process")
        self._read()
        return self.process.wait(LIMIT_S)

    def _read(self) -> bool:
        """Take what there is; whether there was anything."""
        if not select.select([self.descriptor], [], [], 0)[0]:
            return False
        try:
            data = os.read(self.descriptor, 1 << 16)
        except OSError:  # Linux says so when the last process has closed the terminal.
            return False
        self.raw += data
        return bool(data)


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


@pytest.mark.parametrize(("columns", "lines"), [(120, 40), (80, 24)])
def test_live_view_shows_the_pools_within_the_screen(
    lab: Lab, on_terminal: Callable[..., Terminal], columns: int, lines: int
) -> None:
    file = lab.write(experiment())
    lab.play(file, "--limit", "1", "--quiet")
    terminal = on_terminal(file, columns=columns, lines=lines, program=held(10))
    terminal.read_until(lambda text: re.search(r"[12]/8", text) and "ETA" in text, "the live view")
    view = _CONTROL.sub("", terminal.text)

    terminal.process.send_signal(signal.SIGINT)

    assert terminal.end() == 3
    shown = _CONTROL.sub("", terminal.text)
    assert "READY" in shown.upper()
    assert "BLOCKED" in shown.upper()
    assert re.search(r"[12]/8", shown)
    assert "ETA" in shown
    assert "wins by faction" in shown
    assert max(map(len, view.replace("\r", "\n").split("\n"))) <= columns
    assert HIDE_CURSOR not in terminal.text
    assert ALTERNATE_SCREEN not in terminal.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 3), (signal.SIGKILL, -9)])
def test_cursor_is_never_left_hidden(
    lab: Lab, on_terminal: Callable[..., Terminal], number: signal.Signals, code: int
) -> None:
    terminal = on_terminal(lab.write(experiment()), program=held(5))
    terminal.read_until(lambda text: "2/8" in text, "the live view")

    terminal.process.send_signal(number)

    assert terminal.end() == code
    assert HIDE_CURSOR not in terminal.text
    assert ("same command again" in terminal.text) == (number == signal.SIGINT)


def test_without_live_view_there_is_a_bar(lab: Lab, on_terminal: Callable[..., Terminal]) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=3)}))

    terminal = on_terminal(file, "--no-live")

    assert terminal.end() == 0
    assert re.search(r"small +\d+%\|.{16}\| \d/2", terminal.text)
    assert "turns/s" in terminal.text
    assert HIDE_CURSOR not in terminal.text


def test_quiet_shows_nothing_on_a_terminal_either(lab: Lab, on_terminal: Callable[..., Terminal]) -> None:
    terminal = on_terminal(lab.write(experiment(conversations=1)), "--quiet")

    assert terminal.end() == 0
    assert terminal.text == ""


def test_live_view_can_be_asked_for_without_a_terminal(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(lab.write(experiment(conversations=1)), "--live")

    assert process.returncode == 0
    assert "READY" in process.stderr.upper()
    assert HIDE_CURSOR not in process.stderr
    assert "\x1b" not in process.stdout
