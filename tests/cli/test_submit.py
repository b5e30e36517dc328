"""`mac-run submit`: real workers that are killed and stopped end in the run that one process would have played."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.executors.testing import LocalExecutor
from mac_runner.store.testing import Machine
from tests.cli.lab import ROOT, AtOnce, Lab, RunDir, echoes, ending, experiment, refusals
from tests.executors.fake_slurm import FakeSlurm
from tests.patience import is_alive, wait_for
from tests.workers import play_shards

CONVERSATIONS = 9
SHARDS = ("--shards", "3")
HELD = """
import asyncio
from pathlib import Path
from mac_runner import OwnBackend, Reply

class Held(OwnBackend):
    capacity = 1
    asked = 0

    async def generate(self, request):
        Held.asked += 1
        while Held.asked > 1 and Path({gate!r}).exists():
            await asyncio.sleep(0.01)
        return Reply(text=f"{{request.prompt.messages[-1].content[-9:]}}, and so on")
"""


def study(lab: Lab) -> str:
    """An experiment whose workers give a reply each, and no more as long as there is a gate.

    One request is in flight at a time, or the first worker would begin all shards.
    """
    (lab.path / "gate").touch()
    (lab.path / "held.py").write_text(HELD.format(gate=str(lab.path / "gate")))
    return lab.write(echoes({"backend": "./held.py:Held"}, "small", conversations=CONVERSATIONS, rounds=3))


def has_begun(directory: Path) -> bool:
    """Whether two workers are at work."""
    return sum(b"EVENT_INFER_DONE" in log.read_bytes() for log in directory.glob("workers/*/events.jsonl")) >= 2


def open_gate(lab: Lab) -> None:
    """Let go of the replies in flight, once a worker has said in its log that it stops."""
    logs = [*lab.path.rglob("worker-*.log")]
    assert logs
    wait_for(lambda: any("stopping" in log.read_text() for log in logs), "a worker that stops")
    (lab.path / "gate").unlink()


def check_equal(lab: Lab, shared: RunDir, at_once: AtOnce) -> None:
    """Compare a run of workers with a run by one process."""
    at_once("small.yaml --out alone --quiet").done()
    assert len(shared.transcripts) == CONVERSATIONS
    assert shared.transcripts == lab.dir("alone").transcripts
    lab.verified(shared.path)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.install()}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return slurm


@pytest.mark.ci
def test_array_whose_tasks_are_warned_and_lost_ends_like_a_single_run(
    lab: Lab, at_once: AtOnce, slurm: FakeSlurm
) -> None:
    file = study(lab)
    shared = lab.dir("shared")
    flags = (file, "--executor", "slurm", "--nodes", "2", *SHARDS, "--out", "shared", "--assume-shared")
    at_once("submit", *flags).done()
    try:
        slurm.start_all()
        wait_for(lambda: has_begun(shared.path), "two workers at work")

        slurm.pass_time_limit(0)
        slurm.lose_node(1)
        open_gate(lab)

        assert slurm.play() == {0: 0, 1: 0}
    finally:
        slurm.close()
    assert slurm.restarts == {0: 1, 1: 1}
    at_once("submit", *flags).done(told="nothing to submit")
    check_equal(lab, shared, at_once)


@pytest.mark.ci
def test_workers_here_that_are_killed_and_interrupted_end_like_a_single_run(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = study(lab)
    shared = lab.run_dir()
    command = ("submit", file, "--executor", "local", "--nodes", "2", *SHARDS)
    submitter = lab.start(*command)
    wait_for(lambda: has_begun(shared.path), "two workers at work")
    processes = psutil.Process(submitter.pid).children(recursive=True)
    guardians = [one for one in processes if one.ppid() == submitter.pid]
    workers = [one for one in processes if one.ppid() != submitter.pid]

    workers[0].kill()
    submitter.send_signal(signal.SIGINT)
    open_gate(lab)

    ending(submitter).ends(Exit.INTERRUPTED)
    assert [one for one in (*workers, *guardians) if is_alive(one)] == []
    at_once(*command).done(f"{CONVERSATIONS} of {CONVERSATIONS} conversations finished")
    check_equal(lab, shared, at_once)


def test_submission_that_cannot_work_is_refused_before_anything_is_written(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    lab.write(experiment())
    lab.write(experiment("bad", lobby="nowhere"))
    monkeypatch.setattr(Machine, "filesystem", lambda _self, _path: "ext4")
    monkeypatch.setattr("mac_runner.executors.ray.find_spec", lambda _name: None)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "sbatch" else name)
    flags = (
        *("--executor pbs --nodes 2", "--executor local --nodes 0", "--executor local"),
        *(
            f"--executor local --nodes 2 {more}"
            for more in ("--shards 1001", "--sbatch-args '-p x'", "--assume-shared")
        ),
    )
    asked = (
        *(f"small.yaml {each}" for each in flags),
        *(f"{name}.yaml --executor local --nodes 2" for name in ("absent", "bad")),
        *(f"small.yaml --executor {name} --nodes 2" for name in ("ray", "slurm")),
    )
    with lab.unchanged():
        told = refusals(at_once, (f"submit {each}" for each in asked))
        monkeypatch.setattr("shutil.which", lambda name: name)
        told += refusals(at_once, ["submit small.yaml --executor slurm --nodes 2"])

    assert told.replace(str(lab.path), "PLACE").replace(str(ROOT), "CLONE") == snapshot


def test_directory_of_other_shards_or_another_experiment_is_refused(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_shards(lab.path / lab.write(experiment()), lab.path / "shared", 2, 1)
    monkeypatch.setattr(LocalExecutor, "submit", lambda *_: pytest.fail("nothing is to be started"))

    for more, words in (("--shards 3", "split into 2 shards, and 3"), ("--seed 5", "another experiment")):
        at_once(f"submit small.yaml --executor local --nodes 2 --out shared {more}").refused(words)


def test_dry_run_prints_what_would_be_submitted_and_touches_nothing(lab: Lab, at_once: AtOnce) -> None:
    lab.write(experiment())
    flags = "--nodes 3 --set game.lobby=classic-7 --limit 1 --concurrency 4 --dry-run"
    command = f"run small.yaml --shard auto/24 --out {lab.path}/runs/small --no-live --limit=1 --concurrency=4"

    with lab.unchanged():
        for executor, line in (("slurm", "#SBATCH --array=0-2"), ("ray", "# 3 Ray tasks"), ("local", "")):
            shown = at_once(f"submit small.yaml --executor {executor} {flags}")
            assert shown.done(line, f"{command} --set=game.lobby=classic-7").stderr == ""
