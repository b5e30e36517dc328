"""Stdout holds the report and nothing else, and whoever reads it may leave early."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mac_runner import __version__
from tests.cli.lab import MAC_RUN, PATIENCE_S, Lab, environ, experiment, scripted, wait_for


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    "args", [("small.yaml", "--out", "new"), ("small.yaml", "--dry-run"), ("verify", "runs/small")]
)
def test_reader_that_left_changes_nothing(finished: Lab, unread: int, args: tuple[str, ...]) -> None:
    process = subprocess.run(
        [*MAC_RUN, *args],
        cwd=finished.path,
        env=environ(),
        stdout=unread,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )

    assert process.returncode == 0
    assert b"Broken" not in process.stderr
    assert b"Traceback" not in process.stderr


def test_run_that_nobody_listens_to_plays_on(lab: Lab, unread: int) -> None:
    file = lab.write(experiment(conversations=1))

    process = subprocess.run(
        [*MAC_RUN, file], cwd=lab.path, env=environ(), stdout=unread, stderr=unread, timeout=PATIENCE_S, check=False
    )

    assert process.returncode == 0
    assert lab.run_dir().statuses == {"finished": 1}


def test_run_that_nobody_listens_to_is_interrupted_like_any_other(lab: Lab, unread: int) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=5)}))
    process = subprocess.Popen([*MAC_RUN, file], cwd=lab.path, env=environ(), stdout=unread, stderr=unread)
    wait_for(lambda: bool(lab.run_dir().events("EVENT_INFER_DONE")), "a reply")

    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_S) == 3


def test_report_that_cannot_be_stored_is_a_failed_write(finished: Lab) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*MAC_RUN, "small.yaml"],
            cwd=finished.path,
            env=environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
            text=True,
        )

    assert process.returncode == 4
    assert "mac-run: cannot print the report: No space left on device" in process.stderr


def test_stdout_holds_the_table_alone(lab: Lab) -> None:
    process = lab.done(lab.write(experiment(conversations=1)))

    assert process.stdout.startswith("small\nconversations")
    assert "turns/s" in process.stderr.splitlines()[0]
    assert process.stderr.splitlines()[-1] == "written to runs/small"
    assert "\x1b" not in process.stdout + process.stderr


def test_version_and_help_are_told(lab: Lab) -> None:
    script = shutil.which("mac-run", path=Path(sys.executable).parent)
    assert script is not None
    told = subprocess.run(
        [script, "--version"], env=environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )

    assert told.stdout == f"mac-run, version {__version__}\n"
    assert "mac-run FILE --dry-run" in lab.done("--help").stdout
    assert "3 interrupted and resumable" in " ".join(lab.done("run", "--help").stdout.split())
