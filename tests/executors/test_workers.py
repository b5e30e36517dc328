"""Workers on this machine and as a Slurm array, on a fake of its programs: kept alive, stopped, never left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.executors.testing import QUICK_ENDS_MAX, QUICK_S, Job, LocalExecutor, SlurmExecutor
from mac_runner.store.testing import Machine
from tests.executors.fake_slurm import JOB, FakeSlurm
from tests.executors.harness import Listener, running, starts, stub_job
from tests.faults.tier import SCALE
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


def played(directory: Path, *behaviours: str, workers: int, lived_s: float = LONG_LIVED_S) -> tuple[int, list[str]]:
    """Play a job to its end. Returns its exit code, and what was said."""
    listener = Listener()
    executor = LocalExecutor(StridingClock(lived_s))
    return executor.submit(stub_job(directory, *behaviours, workers=workers), listener.terminal), listener.said


def test_worker_that_is_killed_or_interrupted_is_started_again_until_the_job_is_done(tmp_path: Path) -> None:
    code, said = played(tmp_path, "kill", "3", "3", "0", workers=2)

    assert code == 0
    assert len(starts(tmp_path)) == 5
    assert sum("by SIGKILL; starting" in line for line in said) == 1
    assert sum("status 3; starting" in line for line in said) == 2
    logs = "".join(path.read_text() for path in (tmp_path / ".submit").glob("worker-*.log"))
    assert logs.count("start ") == 5


def test_worker_that_met_bad_input_stops_all_and_its_words_are_shown(tmp_path: Path) -> None:
    code, said = played(tmp_path, "wait", "wait", "2", workers=3)

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
    assert played(tmp_path, "1", "0", workers=2)[0] == 1


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


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    """A cluster whose programs are on the PATH."""
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.install()}{os.pathsep}{os.environ['PATH']}")
    yield slurm
    slurm.close()


def submit(job: Job, sbatch_args: str = "") -> list[str]:
    """Submit a job. Returns what was said."""
    listener, executor = Listener(), SlurmExecutor(sbatch_args)
    executor.check(job)
    assert executor.submit(job, listener.terminal) == 0
    return listener.said


def _have_started(job: Job, count: int) -> bool:
    return len(starts(job.directory)) == count


def log(job: Job, number: int) -> str:
    return job.log(number).read_text()


def test_workers_are_queued_again_until_the_job_is_done_whatever_befalls_them(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The limit of one passes, another's node dies, one is killed, one ends with 3."""
    job = stub_job(tmp_path / "shared", *["wait"] * 2, "kill", "3", "0", workers=2)
    said = submit(job)
    slurm.start_all()
    wait_for(lambda: len(starts(job.directory)) == 2, "two workers")

    slurm.pass_time_limit(0)
    slurm.lose_node(1)
    codes = slurm.play()

    assert codes == {0: 0, 1: 0}
    assert len(starts(job.directory)) == 6
    assert running(starts(job.directory)) == []
    assert f"job {JOB}: 2 workers on {job.directory}" in said[0]
    assert "with 3; queueing" in log(job, 0)
    assert "with 138" not in log(job, 0)
    assert "with 137; queueing" in log(job, 0) + log(job, 1)


def test_task_that_is_cancelled_ends_in_order_and_does_not_come_back(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Often: the shell may hear of the worker's end and of its own signal at once."""
    job = stub_job(tmp_path / "shared", "wait")
    submit(job)
    for number in range(20 * SCALE):
        slurm.start_all()
        wait_for(partial(_have_started, job, number + 1), "a worker")

        slurm.cancel(0)

        assert slurm.wait(0) == 3
    assert slurm.requeued() == []
    assert running(starts(job.directory)) == []
    assert log(job, 0).count("cancelled; submit again") == 20 * SCALE


def test_worker_that_met_bad_input_is_not_queued_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    job = stub_job(tmp_path / "shared", "2")
    submit(job)
    slurm.start_all()

    assert slurm.play() == {0: 2}
    assert len(starts(job.directory)) == 1
    assert "not queued again" in log(job, 0)


def test_worker_that_cannot_start_its_engine_is_given_up(slurm: FakeSlurm, tmp_path: Path) -> None:
    job = stub_job(tmp_path / "shared", "3")
    submit(job)
    slurm.start_all()

    assert slurm.play() == {0: 3}
    assert len(starts(job.directory)) == QUICK_ENDS_MAX + 1
    assert f"after {QUICK_ENDS_MAX} restarts; given up" in log(job, 0)


def test_node_that_does_not_see_the_directory_plays_nothing(slurm: FakeSlurm, tmp_path: Path) -> None:
    job = stub_job(tmp_path / "shared", "0")
    submit(job)
    moved = slurm.script.rename(tmp_path / "elsewhere.sh")
    (slurm.path / "script").write_text(str(moved))
    slurm.start_all()

    assert slurm.play() == {0: 2}
    assert starts(job.directory) == []
    assert "does not see" in log(job, 0)


def test_names_of_all_kinds_reach_slurm_and_the_worker_as_they_are(slurm: FakeSlurm, tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s 100%a $HOME `odd` "ü"'
    odd.mkdir()
    job = replace(stub_job(odd / "shared", "0", gpus=2), name="a b'; rm -rf $HOME #")
    submit(job, "--partition=gpu --time=8:00:00 --comment='two words'")
    slurm.start_all()

    assert slurm.play() == {0: 0}
    assert len(starts(job.directory)) == 1
    assert "start 0: 0" in log(job, 0)
    assert slurm.directives["--comment"] == "two words"
    assert slurm.directives["--gres"] == "gpu:2"
    assert set(slurm.directives["--job-name"]) <= set("ab-rmfHOME")


def test_script_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    text = SlurmExecutor("--time=1:00").describe(stub_job(tmp_path / "it's", "0"))
    checks = [["bash", "-n"], *([["shellcheck", "--severity=warning", "-"]] if shutil.which("shellcheck") else [])]

    for check in checks:
        assert subprocess.run(check, input=text.encode(), check=False).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_what_slurm_refuses_is_an_error_with_its_words(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.path / "refusal").write_text("sbatch: error: invalid partition specified: gpuu\n")

    with pytest.raises(RunDirectoryError, match=r"sbatch refused .*gpuu;"):
        submit(stub_job(tmp_path / "shared", "0"), "--partition=gpuu")


def test_job_that_cannot_run_is_refused_before_anything_is_written(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(Machine):
        def filesystem(self, path: Path) -> str:
            return "ext4"

    job = stub_job(tmp_path / "shared", "0", shared=False)
    with pytest.raises(ConfigError, match=r"ext4.*--assume-shared"):
        SlurmExecutor(machine=Local()).check(job)
    with pytest.raises(ConfigError, match="No closing quotation"):
        SlurmExecutor("--comment='a")
    with pytest.raises(ConfigError, match="backslashes"):
        SlurmExecutor("--comment='a\nb'")
    with pytest.raises(ConfigError, match=r"this name .* --out"):
        SlurmExecutor().check(replace(job, directory=tmp_path / "a\nb"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="on the PATH"):
        SlurmExecutor().check(job)

    assert not job.directory.exists()
