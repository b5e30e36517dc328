"""Stdout has the report and nothing else, and its reader may leave early."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE

import pytest

from mac_runner import __version__
from mac_runner.cli.process import Exit
from tests.cli.lab import MAC_RUN, AtOnce, Lab, ending, environ, experiment
from tests.faults.tier import one_in
from tests.patience import run, wait_for
from tests.sim.held_run import held


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.ci
def test_reader_that_left_changes_nothing(finished: Lab, unread: int) -> None:
    assert ending(finished.start("verify", "runs/small", out=unread)).done().stderr == ""


@pytest.mark.ci
def test_run_that_nobody_listens_to_plays_on(lab: Lab, unread: int) -> None:
    ending(lab.start(lab.write(experiment(conversations=1)), out=unread, err=unread)).done()

    assert lab.run_dir().statuses == {"finished": 1}


@pytest.mark.ci
def test_run_without_a_reader_is_interrupted_like_any_other(lab: Lab, unread: int) -> None:
    process = lab.start(lab.write(experiment()), program=held(1), out=unread, err=unread)
    wait_for(lambda: process.poll() is not None or lab.run_dir().events("EVENT_INFER_DONE"), "a reply")

    process.send_signal(signal.SIGINT)

    ending(process).ends(Exit.INTERRUPTED)


@pytest.mark.ci
def test_report_that_cannot_be_stored_is_a_failed_write(finished: Lab) -> None:
    with open("/dev/full", "w") as full:
        process = ending(finished.start("small.yaml", out=full.fileno())).ends(Exit.STORAGE_FAILED)

    assert "No space left" in process.stderr.splitlines()[-1]


def test_stdout_holds_the_end_of_a_run_alone(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(experiment(conversations=1)).done()

    assert process.stdout.startswith("small   1 of 1 games")
    assert all("turns/s" in line for line in process.stderr.splitlines())
    assert "\x1b" not in process.stdout + process.stderr


@pytest.mark.ci
def test_version_and_help_are_printed(at_once: AtOnce) -> None:
    script = shutil.which("mac-run", path=Path(sys.executable).parent)
    assert script is not None
    told = run([script, "--version"], env=environ(), stdout=PIPE)

    assert told.stdout == f"mac-run, version {__version__}\n"
    at_once("--help").done("mac-run FILE means mac-run run FILE")
    assert "interrupted and resumable" in " ".join(at_once("run --help").stdout.split())


ENCODINGS = ("ascii", "latin-1")
SHAPES = {
    "stdout closed": "{} >&-",
    "stdout and stderr closed": "{} <&- >&- 2>&-",
    "a reader that leaves": "{} | head -1; exit ${{PIPESTATUS[0]}}",
    "stdout full": "{} > /dev/full",
    "all full": "{} > /dev/full 2>&1",
}
FULL = {"stdout full", "all full"}


@pytest.mark.ci
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
        process = run(
            ["bash", "-c", command],
            cwd=finished.path,
            env=environ({"PYTHONIOENCODING": encoding}),
            errors="replace",
            stdout=PIPE,
            stderr=PIPE,
        )
        told = process.stdout + process.stderr
        is_clear = "Traceback" not in told and "Exception ignored" not in told
        return "" if (process.returncode, is_clear) == (expected, True) else f"{verb}, {shape} {encoding}: {told!r}"

    with ThreadPoolExecutor(4) as threads:
        # Of seven states of the streams: each of them is met by a verb, and most verbs meet one.
        share = one_in(10, cases)
        assert [told for told in threads.map(lambda case: play(*case), share) if told] == []


@pytest.mark.ci
def test_a_stream_that_was_closed_lends_its_number_to_no_file(lab: Lab) -> None:
    """Whatever a library, or a process of an engine, prints there would end up in the journal."""
    command = f"exec {shlex.join((*held(1), lab.write(experiment())))} <&- >&- 2>&-"
    process = lab.start(program=("bash", "-c", command))
    wait_for(lambda: process.poll() is not None or lab.run_dir().events("EVENT_INFER_DONE"), "a reply")

    streams = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)]

    assert streams == ["/dev/null"] * 3
