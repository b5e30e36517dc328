"""`mac-run view` and `mac-run FILE --view`: where the pages are, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.cli.view import has_browser
from mac_runner.store import ShardsRecord
from mac_runner.store.testing import encode_shards
from tests.cli.lab import AtOnce, Lab, experiment, refusals
from tests.patience import LIMIT_S, ended

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
    """A run with pages that ends once there is no gate any more."""
    (lab.path / "gate").touch()
    arguments = (lab.write(experiment()), "--view", "--no-open", "--no-live")
    return lab.start(*arguments, program=(sys.executable, "-c", HELD))


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
        code, out, words = ended(process)
        assert (code, out) == (Exit.OK, "")
        told.add(words)
    assert [*told] == snapshot


@pytest.mark.ci
def test_run_is_shown_while_it_plays_and_the_pages_end_with_it(lab: Lab) -> None:
    """No transcript is published before its page has been read."""
    gate = lab.path / "gate"
    gate.touch()
    process = lab.start(
        lab.write(experiment()), "--view", "--no-open", "--no-live", program=(sys.executable, "-c", HELD)
    )
    page = page_of(first_line(process, "pages: "))
    gate.unlink()
    code, _, words = ended(process)

    assert '"name":"small"' in page or "not begun yet" in page
    assert code == Exit.OK
    assert "view runs/small" in words
    assert "failed before" not in words
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
    (lab.path / "shared").mkdir()
    record = ShardsRecord(of=2, experiment_name="small", identity="ab12", conversations=2)
    (lab.path / "shared" / "shards.json").write_bytes(encode_shards(record))
    asked = (
        *("view shared", "view nothing", f"view {file}", "view .", "view . --host 0.0.0.0", "view . --port 99999"),
        *(f"{file} --view --dry-run", f"{file} --view --quiet", f"{file} --no-open"),
    )

    assert refusals(at_once, asked) == snapshot


@pytest.mark.ci
def test_port_that_is_taken_is_named(finished: Lab) -> None:
    first = finished.start("view", "runs/small", "--no-open")
    port = first_line(first).partition("127.0.0.1:")[2].partition("/")[0]

    second = finished.run("view", "runs/small", "--no-open", "--port", port)

    assert second.returncode == Exit.BAD_INPUT
    assert f"on 127.0.0.1 port {port}" in second.stderr
    first.send_signal(signal.SIGINT)
    assert ended(first)[0] == Exit.OK


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
