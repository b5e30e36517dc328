"""Workers as a Slurm array: the script as Slurm runs it, on a fake of its programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.executors.testing import QUICK_ENDS_MAX, Job, SlurmExecutor
from mac_runner.store.testing import Machine
from tests.executors.fake_slurm import JOB, FakeSlurm
from tests.executors.harness import Listener, running, starts, stub_job
from tests.patience import wait_for

pytestmark = pytest.mark.ci


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
    job = stub_job(tmp_path / "shared", "wait")
    submit(job)
    slurm.start_all()
    wait_for(lambda: len(starts(job.directory)) == 1, "a worker")

    slurm.cancel(0)

    assert slurm.wait(0) == 3
    assert slurm.requeued() == []
    assert running(starts(job.directory)) == []
    assert "cancelled; submit again" in log(job, 0)


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
