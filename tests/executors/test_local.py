"""Workers on this machine: kept alive, stopped together, and never left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError
from mac_runner.executors.testing import QUICK_ENDS_MAX, QUICK_S, LocalExecutor
from tests.executors.harness import Listener, running, starts, stub_job
from tests.kit import StridingClock
from tests.patience import wait_for

pytestmark = pytest.mark.ci
LONG_LIVED_S = QUICK_S * 2
SUBMITTER = """
import sys
from pathlib import Path
from mac_runner.executors.local import LocalExecutor
from tests.executors.harness import Listener, stub_job
LocalExecutor().submit(stub_job(Path(sys.argv[1]), "wait", workers=2), Listener().terminal)
"""


def submit(directory: Path, *behaviours: str, workers: int, lived_s: float = LONG_LIVED_S) -> tuple[int, list[str]]:
    """Play a job to its end. Returns its exit code, and what was said."""
    listener = Listener()
    executor = LocalExecutor(StridingClock(lived_s))
    return executor.submit(stub_job(directory, *behaviours, workers=workers), listener.terminal), listener.said


def test_worker_that_is_killed_or_interrupted_is_started_again_until_the_job_is_done(tmp_path: Path) -> None:
    code, said = submit(tmp_path, "kill", "3", "3", "0", workers=2)

    assert code == 0
    assert len(starts(tmp_path)) == 5
    assert sum("by SIGKILL; starting" in line for line in said) == 1
    assert sum("status 3; starting" in line for line in said) == 2
    logs = "".join(path.read_text() for path in (tmp_path / ".submit").glob("worker-*.log"))
    assert logs.count("start ") == 5


def test_worker_that_met_bad_input_stops_all_and_its_words_are_shown(tmp_path: Path) -> None:
    code, said = submit(tmp_path, "wait", "wait", "2", workers=3)

    assert code == 2
    assert running(starts(tmp_path)) == []
    assert any("status 2: start 2: 2; stopping" in line for line in said)


def test_worker_that_cannot_start_its_engine_is_given_up_after_growing_pauses(tmp_path: Path) -> None:
    listener, clock = Listener(), StridingClock(1.0)

    code = LocalExecutor(clock).submit(stub_job(tmp_path, "3"), listener.terminal)

    assert code == 3
    assert len(starts(tmp_path)) == QUICK_ENDS_MAX
    assert clock.slept_s == [1, 2, 4, 8]
    assert f"{QUICK_ENDS_MAX} times " in listener.said[-1]


def test_exit_code_is_that_of_the_worker_that_saw_the_whole_done(tmp_path: Path) -> None:
    assert submit(tmp_path, "1", "0", workers=2)[0] == 1


def test_stop_by_the_user_ends_every_worker_in_order_and_starts_none_again(tmp_path: Path) -> None:
    listener = Listener(stops_when=lambda: len(starts(tmp_path)) == 3)

    code = LocalExecutor(StridingClock(LONG_LIVED_S)).submit(stub_job(tmp_path, "wait", workers=3), listener.terminal)

    assert code == 3
    assert len(starts(tmp_path)) == 3
    assert running(starts(tmp_path)) == []


def test_kill_of_the_submitter_leaves_no_worker(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SUBMITTER, str(tmp_path)]) as submitter:
        wait_for(lambda: len(starts(tmp_path)) == 2, "two workers")
        submitter.kill()

    wait_for(lambda: running(starts(tmp_path)) == [], "the end of the workers")


def test_job_with_more_gpus_than_the_machine_has_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # No nvidia-smi there.

    with pytest.raises(ConfigError, match="2 workers need 8"):
        LocalExecutor().check(stub_job(tmp_path / "shared", "0", workers=2, gpus=4))

    assert list(tmp_path.iterdir()) == []
