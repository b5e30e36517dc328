"""A disk that refuses ends the run with code 4 and a clear word, and the run can go on afterwards."""

from __future__ import annotations

import re
import resource
import shutil

import pytest

from tests.cli.lab import AtOnce, Lab, RunDir, experiment, scripted
from tests.patience import ended, wait_for


@pytest.mark.ci
@pytest.mark.parametrize(
    ("size_bytes_max", "where"),
    [(10, "write"), (4_000, r"journal/000001\.jsonl|events\.jsonl"), (60_000, "small")],
)
def test_full_disk_is_reported_and_the_run_resumes_to_the_same_transcripts(
    finished: Lab, size_bytes_max: int, where: str
) -> None:
    """A file that may not grow is the part of a full disk that a test can have anywhere.

    Two writers reach 4,000 bytes at about the same time: that of the journal, and that of the events.
    """
    process = finished.start(
        "small.yaml",
        "--out",
        "full",
        preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes_max, size_bytes_max)),
    )

    code, _, err = ended(process)
    assert code == 4
    assert "run: cannot write" in err
    assert "EFBIG" in err
    assert re.search(where, err)
    assert "same command again" in err
    assert "Traceback" not in err
    finished.play("small.yaml", "--out", "full")

    assert RunDir(path=finished.path / "full").transcripts == finished.run_dir().transcripts
    finished.verified(finished.path / "full")


def test_place_that_takes_no_directory_is_reported(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(lab.write(experiment()), "--out", "/proc/small")

    assert process.returncode == 4
    assert "directory /proc/small" in process.stderr


@pytest.mark.ci
def test_run_directory_removed_while_it_runs_is_reported(lab: Lab) -> None:
    # More games than it can play until its directory is gone.
    process = lab.start(lab.write(experiment(conversations=1000, models={"m": scripted(capacity=2, latency_ms=5)})))
    wait_for(lambda: process.poll() is not None or lab.run_dir().events("EVENT_INFER_DONE"), "a reply")

    # At one blow: a file that is written meanwhile would be in the way of its removal.
    shutil.rmtree(lab.run_dir().path.rename(lab.path / "elsewhere"))

    code, _, err = ended(process)
    assert code == 4
    assert "mac-run: cannot" in err
    assert "Traceback" not in err
