"""What a person sees of a run: on a terminal, which is left as it was, and on pages, which end with it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.pages import has_browser
from tests.cli.lab import AtOnce, Lab, Terminal, ending, experiment, refusals, scripted
from tests.patience import LIMIT_S
from tests.sim.held_run import held

HELD = """
import time
from pathlib import Path
from mac_runner.cli import main
from mac_runner.store.disk import System
link = System.link
def held(*args):
    while args[-1].parent.name == "transcripts" and Path("gate").exists():
        time.sleep(0.005)
    return link(*args)
System.link = held
main()
"""


def start_held(lab: Lab) -> subprocess.Popen[str]:
    """A run with pages that ends once there is no gate any more: no transcript is published before."""
    (lab.path / "gate").touch()
    return lab.start(
        *(lab.write(experiment()), "--view", "--no-open", "--no-live"), program=(sys.executable, "-c", HELD)
    )


def page_of(url: str) -> str:
    """The JSON of the head of a run, asked for as a browser does."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    assert browser.open(url, timeout=LIMIT_S).status == 200
    return str(browser.open(url.partition("?")[0] + "api/run", timeout=LIMIT_S).read().decode())


def first_line(process: subprocess.Popen[str], beginning: str = "") -> str:
    """The first line with this beginning that a process prints, from there on."""
    stream = process.stderr if beginning else process.stdout
    assert stream is not None
    for line in stream:
        if line.startswith(beginning):
            return line.removeprefix(beginning).strip()
    raise AssertionError(f"no line begins with {beginning!r}")


@pytest.mark.smoke
def test_view_prints_its_address_and_ends_well_at_an_interrupt(finished: Lab, snapshot: SnapshotAssertion) -> None:
    told = set()
    for number in (signal.SIGINT, signal.SIGTERM):
        process = finished.start("view", "runs/small", "--no-open")
        assert '"state":"complete"' in page_of(first_line(process))
        process.send_signal(number)
        found = ending(process).done()
        assert found.stdout == ""
        told.add(found.stderr)
    assert [*told] == snapshot


@pytest.mark.ci
def test_run_is_shown_while_it_plays_and_the_pages_end_with_it(lab: Lab) -> None:
    process = start_held(lab)
    page = page_of(first_line(process, "pages: "))
    (lab.path / "gate").unlink()

    assert '"name":"small"' in page or "not begun yet" in page
    assert "failed before" not in ending(process).done(told="view runs/small").stderr
    lab.verified(lab.run_dir().path)


@pytest.mark.ci
def test_pages_end_when_the_run_is_killed(lab: Lab) -> None:
    process = start_held(lab)
    url = first_line(process, "pages: ")
    page_of(url)
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT_S)
    # What the pages hold of the pipe ends with them.
    assert process.stdout is not None
    process.stdout.read()
    try:
        while True:
            page_of(url)
    except OSError:
        pass


def test_what_cannot_be_shown_is_refused_in_words(lab: Lab, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    file = lab.write(experiment())
    asked = (
        *("view nothing", f"view {file}", "view .", "view . --host 0.0.0.0", "view . --port 99999"),
        *(f"{file} --view --dry-run", f"{file} --view --quiet", f"{file} --no-open"),
    )

    assert refusals(at_once, asked) == snapshot


@pytest.mark.ci
def test_port_that_is_taken_is_named(finished: Lab) -> None:
    first = finished.start("view", "runs/small", "--no-open")
    port = first_line(first).partition("127.0.0.1:")[2].partition("/")[0]

    finished.run("view", "runs/small", "--no-open", "--port", port).refused(f"on 127.0.0.1 port {port}")

    first.send_signal(signal.SIGINT)
    ending(first).done()


def test_browser_is_opened_only_where_the_user_sits() -> None:
    for environ, platform, is_there in (
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "x"}, "linux", False),
        ({"SSH_TTY": "x"}, "darwin", False),
        ({}, "darwin", True),
        ({"BROWSER": "x", "SSH_CONNECTION": "x"}, "linux", True),
    ):
        assert has_browser(environ, platform) == is_there, environ


HIDE_CURSOR, ALTERNATE_SCREEN = "\x1b[?25l", "\x1b[?1049h"

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.ci
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
    assert "--tables" in shown
    assert max(map(len, view.replace("\r", "\n").split("\n"))) <= columns
    assert HIDE_CURSOR not in terminal.text
    assert ALTERNATE_SCREEN not in terminal.text


@pytest.mark.ci
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


@pytest.mark.ci
def test_without_live_view_there_is_a_bar(lab: Lab, on_terminal: Callable[..., Terminal]) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=3)}))

    terminal = on_terminal(file, "--no-live")

    assert terminal.end() == 0
    assert re.search(r"small +\d+%\|.{16}\| \d/2", terminal.text)
    assert "turns/s" in terminal.text
    assert HIDE_CURSOR not in terminal.text


@pytest.mark.ci
def test_quiet_shows_nothing_on_a_terminal_either(lab: Lab, on_terminal: Callable[..., Terminal]) -> None:
    terminal = on_terminal(lab.write(experiment(conversations=1)), "--quiet")

    assert terminal.end() == 0
    assert terminal.text == ""


@pytest.mark.ci
def test_live_view_can_be_asked_for_without_a_terminal(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(experiment(conversations=1), "--live").done()

    assert "READY" in process.stderr.upper()
    assert HIDE_CURSOR not in process.stderr
    assert "\x1b" not in process.stdout
