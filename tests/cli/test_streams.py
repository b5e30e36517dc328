"""Stdout has the report and nothing else, and its reader may leave early."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mac_runner import __version__
from tests.cli.lab import MAC_RUN, Lab, environ, experiment, scripted
from tests.faults.tier import SCALE
from tests.patience import LIMIT_S, wait_for

pytestmark = pytest.mark.ci


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe without a reader."""
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
        timeout=LIMIT_S,
        check=False,
    )

    assert process.returncode == 0
    assert b"Broken" not in process.stderr
    assert b"Traceback" not in process.stderr


def test_run_that_nobody_listens_to_plays_on(lab: Lab, unread: int) -> None:
    file = lab.write(experiment(conversations=1))

    process = subprocess.run(
        [*MAC_RUN, file], cwd=lab.path, env=environ(), stdout=unread, stderr=unread, timeout=LIMIT_S, check=False
    )

    assert process.returncode == 0
    assert lab.run_dir().statuses == {"finished": 1}


def test_run_without_a_reader_is_interrupted_like_any_other(lab: Lab, unread: int) -> None:
    file = lab.write(experiment(models={"m": scripted(latency_ms=5)}))
    process = subprocess.Popen([*MAC_RUN, file], cwd=lab.path, env=environ(), stdout=unread, stderr=unread)
    wait_for(lambda: bool(lab.run_dir().events("EVENT_INFER_DONE")), "a reply")

    process.send_signal(signal.SIGINT)

    assert process.wait(LIMIT_S) == 3


def test_report_that_cannot_be_stored_is_a_failed_write(finished: Lab) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*MAC_RUN, "small.yaml"],
            cwd=finished.path,
            env=environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
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


def test_version_and_help_are_printed(lab: Lab) -> None:
    script = shutil.which("mac-run", path=Path(sys.executable).parent)
    assert script is not None
    told = subprocess.run(
        [script, "--version"], env=environ(), capture_output=True, text=True, timeout=LIMIT_S, check=True
    )

    assert told.stdout == f"mac-run, version {__version__}\n"
    assert "mac-run FILE --dry-run" in lab.done("--help").stdout
    assert "3 interrupted and resumable" in " ".join(lab.done("run", "--help").stdout.split())


ENCODINGS = ("ascii", "latin-1")
SHAPES = {
    "stdout closed": "{} >&-",
    "stdout and stderr closed": "{} <&- >&- 2>&-",
    "a reader that leaves": "{} | head -1; exit ${{PIPESTATUS[0]}}",
    "stdout full": "{} > /dev/full",
    "all full": "{} > /dev/full 2>&1",
}
FULL = {"stdout full", "all full"}


def test_every_verb_survives_every_stream(finished: Lab) -> None:
    """No encoding and no state of the streams brings forth a traceback, or another exit code than it should."""
    verbs = {
        "small.yaml --quiet --out runs/other-{}": (0, 0),
        "small.yaml --no-live --out runs/another-{}": (0, 4),
        "small.yaml --dry-run": (0, 4),
        "show runs/small 0 --truth": (0, 4),
        "show runs/small 0 --turns": (0, 4),
        "status runs/small": (0, 4),
        "verify runs/small": (0, 4),
        "retry runs/small": (0, 4),
        "--help": (0, 4),
        "show": (2, 2),
    }
    cases = [
        (verb.format(number), shape, encoding, codes[shape in FULL])
        for verb, codes in verbs.items()
        for number, (shape, encoding) in enumerate(
            [*((shape, "utf-8") for shape in SHAPES), *(("", encoding) for encoding in ENCODINGS)]
        )
    ]

    def play(verb: str, shape: str, encoding: str, expected: int) -> str:
        command = SHAPES.get(shape, "{}").format(shlex.join((*MAC_RUN, *verb.split())))
        process = subprocess.run(
            ["bash", "-c", command],
            cwd=finished.path,
            env=environ({"PYTHONIOENCODING": encoding}),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        told = process.stdout + process.stderr
        is_clear = b"Traceback" not in told and b"Exception ignored" not in told
        return "" if (process.returncode, is_clear) == (expected, True) else f"{verb}, {shape} {encoding}: {told!r}"

    with ThreadPoolExecutor(4) as threads:
        # One in five is as good as all, for seven states of the streams: each verb meets some, each state some verbs.
        share = cases if SCALE > 1 else cases[::5]
        assert [told for told in threads.map(lambda case: play(*case), share) if told] == []


def test_a_stream_that_was_closed_lends_its_number_to_no_file(lab: Lab) -> None:
    """Whatever a library, or a process of an engine, prints there would end up in the journal."""
    file = lab.write(experiment(conversations=9, models={"m": scripted(latency_ms=20)}))
    process = subprocess.Popen(
        ["bash", "-c", f"exec {shlex.join((*MAC_RUN, file))} <&- >&- 2>&-"], cwd=lab.path, env=environ()
    )
    try:
        wait_for(lambda: bool(lab.run_dir().events("EVENT_INFER_DONE")), "a reply")
        held = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]
    finally:
        process.kill()
        process.wait()

    assert held == ["/dev/null"] * 3
