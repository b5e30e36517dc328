from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.errors import RunLockedError
from mac_runner.store import verify_run
from tests.store import player

HOLDER = """
import sys, time
from pathlib import Path
from mac_runner.store.disk import Disk
from mac_runner.store.lock import RunLock
lock = RunLock(Disk(), Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.ci
def test_second_process_leaves_at_once_naming_the_first(run_dir: Path) -> None:
    run_dir.mkdir(parents=True)
    command = [sys.executable, "-c", HOLDER, str(run_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunLockedError) as refusal:
            player.open_toy(run_dir, 1)
        holder.kill()

    assert f"pid {holder.pid} on {os.uname().nodename} since 20" in str(refusal.value)
    with player.open_toy(run_dir, 1) as run:
        player.play(run)
    assert verify_run(run_dir, rebuild=player.rebuild).ok


def test_second_run_of_the_same_process_is_refused_too(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1), pytest.raises(RunLockedError, match=f"pid {os.getpid()} "):
        player.open_toy(run_dir, 1)


def test_lock_file_is_never_removed(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1):
        inode = (run_dir / ".lock").stat().st_ino
    assert (run_dir / ".lock").stat().st_ino == inode

    with player.open_toy(run_dir, 1):
        assert (run_dir / ".lock").stat().st_ino == inode


def test_refused_run_does_not_take_the_lock_with_it(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1):
        pass
    (run_dir / "journal/000002.jsonl").write_bytes(b"")
    (run_dir / "experiment.yaml").write_text("- no mapping")
    with pytest.raises(Exception, match="mapping"):
        player.open_toy(run_dir, 1)

    (run_dir / "experiment.yaml").unlink()
    with pytest.raises(Exception, match="run directory"):
        player.open_toy(run_dir, 1)
