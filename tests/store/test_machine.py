from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mac_runner.store.testing import Machine, filesystem_at, is_network

MOUNTS = [
    ("/proc", "proc"),
    ("/", "ext4"),
    ("/scratch", "lustre"),
    ("/scratch/local", "xfs"),
    ("/home dirs", "nfs4"),
    ("/twice", "ext4"),
    ("/twice", "cifs"),
]


@pytest.mark.parametrize(
    ("path", "filesystem"),
    [
        ("/runs/x", "ext4"),
        ("/scratch", "lustre"),
        ("/scratch/runs/x", "lustre"),
        ("/scratch/local/x", "xfs"),
        ("/scratch/locally/x", "lustre"),
        ("/home dirs/me/runs", "nfs4"),
        ("/twice/x", "cifs"),
    ],
)
def test_filesystem_is_that_of_the_nearest_mount(path: str, filesystem: str) -> None:
    assert filesystem_at(MOUNTS, Path(path)) == filesystem


def test_filesystem_without_an_account_of_the_mounts_is_unknown() -> None:
    assert filesystem_at([], Path("/x")) == ""
    assert not is_network("")


@pytest.mark.parametrize(
    "filesystem", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "fuse.sshfs"]
)
def test_filesystem_that_machines_share_is_recognised(filesystem: str) -> None:
    assert is_network(filesystem)


@pytest.mark.parametrize("filesystem", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseless"])
def test_filesystem_of_one_machine_is_not_taken_for_a_shared_one(filesystem: str) -> None:
    assert not is_network(filesystem)


def test_filesystem_of_a_real_path_is_told(tmp_path: Path) -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("this kernel does not say")
    assert Machine().filesystem(Path("/proc")) == "proc"
    assert Machine().filesystem(tmp_path / "not there yet") != ""


@pytest.mark.ci
def test_process_is_known_by_its_number_and_its_start() -> None:
    machine = Machine()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        start = machine.process_start(other.pid)
        assert start is not None
        assert machine.process_start(other.pid) == start
        other.kill()

    assert machine.process_start(other.pid) is None
    assert machine.process_start(os.getpid()) is not None
    assert machine.process_start(2**40) is None


def test_process_start_is_in_the_kernel_ticks_that_earlier_versions_wrote() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("this kernel does not say")
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]

    assert Machine().process_start(os.getpid()) == ticks


def test_clock_that_is_set_while_a_process_is_looked_up_does_not_change_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, booted_at_s = Machine().process_start(os.getpid()), psutil.boot_time()
    answers = [booted_at_s - 3600.0]
    monkeypatch.setattr(psutil, "boot_time", lambda: answers.pop() if answers else booted_at_s)

    assert Machine().process_start(os.getpid()) == start


@pytest.mark.ci
@pytest.mark.parametrize("fault", [psutil.AccessDenied(), OSError(), RuntimeError()])
def test_process_whose_start_the_system_does_not_say_is_there(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_process: psutil.Process) -> float:
        raise fault

    monkeypatch.setattr(psutil.Process, "create_time", refuse)

    assert Machine().process_start(os.getpid()) == ""


@pytest.mark.ci
def test_machine_is_the_same_for_all_its_processes() -> None:
    told = "from mac_runner.store.machine import Machine; print(Machine().identity)"
    root = str(Path(__file__).parents[2])
    other = subprocess.run(
        [sys.executable, "-c", told], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True
    )

    assert other.stdout.strip() == Machine().identity
