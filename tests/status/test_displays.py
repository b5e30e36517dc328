from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import pytest

from mac_runner.status import Display, Reading, StatusFrame, choose_display
from mac_runner.status.testing import BarDisplay, Expendable, LiveDisplay, PlainDisplay
from tests.patience import LIMIT_S

MakeReading = Callable[..., Reading]

SHOW_CURSOR = b"\x1b[?25h"
HIDE_CURSOR = b"\x1b[?25l"
MARK = b"\x00all of it\x00"

# Shows two frames on stderr, says so, and then ends in the way it is told to.
SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background inherits it ignored.
from mac_runner.status import Meter, Reading, choose_display

display = choose_display(sys.stderr, live=None if sys.argv[1] == "live" else False)
meter = Meter()
display.start()
for elapsed_s in (0.0, 1.0):
    display.update(meter.frame(Reading(experiment_name="demo", profile="p", elapsed_s=elapsed_s, planned=4,
        finished=1, failed=0, written=1)))
print("shown", flush=True)
if sys.argv[2] == "raise":
    raise RuntimeError("boom")
while sys.argv[2] == "wait":
    time.sleep(0.05)  # `signal.pause` would not end for a signal that comes just before it.
display.close()
"""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Both ends of a pseudo-terminal."""

    leader: int
    stream: TextIO

    def output(self) -> bytes:
        """What was written so far. The kernel hands it over when it has the time, so a mark is written behind it."""
        os.write(self.stream.fileno(), MARK)
        output = b""
        while MARK not in output:
            output += os.read(self.leader, 65_536)
        return output.replace(MARK, b"")

    def has_output(self) -> bool:
        """Whether anything comes out, also of a terminal that is stopped."""
        return bool(select.select([self.leader], [], [], 0)[0])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    leader, follower = os.openpty()
    tty.setraw(follower)
    termios.tcsetwinsize(follower, (24, 80))
    stream = os.fdopen(follower, "w", encoding="utf-8")
    yield Terminal(leader, stream)
    stream.close()
    os.close(leader)


def _child(terminal: Terminal, display: str, end: str) -> subprocess.Popen[bytes]:
    """The script up to the moment it has shown its frames."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, display, end],
        stdin=terminal.stream,
        stdout=subprocess.PIPE,
        stderr=terminal.stream,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"shown\n"
    child.stdout.close()
    return child


def _shown(stream: TextIO, frame: StatusFrame, **flags: bool | None) -> Display:
    """A display of the stream that suits the flags and shows a frame."""
    display = choose_display(stream, **flags)  # type: ignore[arg-type]
    display.start()
    display.update(frame)
    return display


def _inner(display: Display) -> type[object]:
    return type(display.display) if isinstance(display, Expendable) else type(display)


def test_display_suits_the_stream_and_the_flags(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for live, quiet, on_terminal, off_terminal in (
        (None, False, LiveDisplay, PlainDisplay),
        (False, False, BarDisplay, PlainDisplay),
        (True, False, LiveDisplay, LiveDisplay),
        (True, True, Display, Display),
    ):
        assert _inner(choose_display(terminal.stream, live=live, quiet=quiet)) is on_terminal
        assert _inner(choose_display(io.StringIO(), live=live, quiet=quiet)) is off_terminal
    monkeypatch.setenv("TERM", "dumb")
    assert _inner(choose_display(terminal.stream)) is PlainDisplay


@pytest.mark.ci
@pytest.mark.parametrize(
    ("display", "end", "kill"),
    [
        *(("live", "wait", number) for number in (signal.SIGKILL, signal.SIGINT)),
        *(("live", end, None) for end in ("raise", "close")),
        ("bar", "wait", signal.SIGKILL),
    ],
)
def test_cursor_is_visible_however_the_process_ends(
    terminal: Terminal, display: str, end: str, kill: signal.Signals | None
) -> None:
    child = _child(terminal, display, end)
    while_shown = terminal.output()
    if kill is not None:
        child.send_signal(kill)
    child.wait(LIMIT_S)
    output = while_shown + terminal.output()

    assert b"1/4" in output
    assert HIDE_CURSOR not in output
    if display == "live":
        assert SHOW_CURSOR in while_shown


def test_live_view_is_redrawn_in_place(terminal: Terminal, frame: StatusFrame) -> None:
    display = _shown(terminal.stream, frame, live=True)
    terminal.output()
    display.update(frame)
    output = terminal.output()
    display.close()

    assert b"\x1b[1A" in output
    assert b"finished 45/100" in output
    assert HIDE_CURSOR not in output


def test_displays_start_no_thread_and_quiet_shows_nothing(terminal: Terminal, frame: StatusFrame) -> None:
    before = threading.active_count()
    for flags in ({"quiet": True}, {"live": True}, {"live": False}):
        display = _shown(terminal.stream, frame, **flags)
        assert threading.active_count() == before

        display.close()
        assert (terminal.output() == b"") is ("quiet" in flags)


def test_bar_shows_progress_on_one_line(terminal: Terminal, frame: StatusFrame) -> None:
    display = _shown(terminal.stream, frame, live=False)
    display.update(replace(frame, reading=replace(frame.reading, finished=60)))
    output = terminal.output()
    display.close()

    assert b"46%" in output
    assert HIDE_CURSOR not in output
    assert b"61/100, failed 1, in flight 254/256" in output
    assert b"\n" not in output
    assert terminal.output().endswith(b"\n")


def test_plain_lines_hold_no_control_character(make_reading: MakeReading) -> None:
    stream = io.StringIO()
    first, second = (make_reading(experiment_name="x\x1b[2J\r\ny", finished=finished) for finished in (1, 2))
    display = _shown(stream, StatusFrame(reading=first))
    display.update(StatusFrame(reading=second))
    display.close()
    lines = stream.getvalue().splitlines()

    assert len(lines) == 2
    assert lines[0].startswith(r"x\x1b[2J\r\ny: finished 1/100")
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("live", [True, False])
def test_display_on_a_stopped_terminal_does_not_block_the_run(
    terminal: Terminal, frame: StatusFrame, live: bool
) -> None:
    """Ctrl-S, then more frames than any buffer holds; without care the first write would wait for ever."""
    display = _shown(terminal.stream, frame, live=live)
    terminal.output()
    termios.tcflow(terminal.stream, termios.TCOOFF)
    for _ in range(200):
        display.update(frame)
    is_stopped = not terminal.has_output()
    termios.tcflow(terminal.stream, termios.TCOON)
    display.update(frame)
    resumed = terminal.output()
    display.close()

    assert is_stopped
    assert b"45/100" in resumed or b"46/100" in resumed


@pytest.mark.parametrize("live", [True, False, None])
def test_display_whose_stream_is_gone_ends_the_view_and_not_the_run(frame: StatusFrame, live: bool | None) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    display = _shown(stream, frame, live=live)
    for _ in range(2):
        display.update(frame)
    display.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_live_view_on_a_narrowed_terminal_erases_the_lines_that_it_wrapped(
    terminal: Terminal, frame: StatusFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((140, 24)))
    display = _shown(terminal.stream, frame, live=True)
    drawn = terminal.output().decode().count("\n")
    display.update(frame)
    same = terminal.output().count(b"\x1b[1A")
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((60, 24)))
    display.update(frame)
    narrowed = terminal.output().count(b"\x1b[1A")
    display.close()

    # The title, the bar and the line of the model fill 140 columns, which are three rows of 60; the pools as well.
    assert same == drawn
    assert narrowed > same + 6
