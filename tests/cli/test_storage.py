"""A disk that refuses ends the run with code 4 and a clear word, and the run can go on afterwards."""

from __future__ import annotations

import re
import resource
import shutil

import pytest

from tests.cli.lab import Lab, RunDir, experiment, scripted
from tests.patience import ended, wait_for

pytestmark = pytest.mark.ci


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
    assert "mac-run: cannot write" in err
    assert "EFBIG" in err
    assert re.search(where, err)
    assert "run the same command again" in err
    assert "Traceback" not in err
    finished.done("small.yaml", "--out", "full")

    assert RunDir(path=finished.path / "full").transcripts == finished.run_dir().transcripts
    finished.verified(finished.path / "full")


def test_place_that_takes_no_directory_is_reported(lab: Lab) -> None:
    process = lab.run(lab.write(experiment()), "--out", "/proc/small")

    assert process.returncode == 4
    assert "cannot make the directory /proc/small" in process.stderr


def test_run_directory_removed_while_it_runs_is_reported(lab: Lab) -> None:
    file, run = lab.write(experiment(models={"m": scripted(latency_ms=5)})), lab.run_dir()
    process = lab.start(file)
    wait_for(lambda: bool(run.events("EVENT_INFER_DONE")), "a reply")

    shutil.rmtree(run.path)

    code, _, err = ended(process)
    assert code == 4
    assert "mac-run: cannot" in err
    assert "Traceback" not in err
