"""A real disk, two mebibytes large, that fills up: a filesystem in memory in a mount namespace of its own."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.store import read_run
from mac_runner.store.testing import entry
from tests.cli.lab import RunDir, environ
from tests.faults.talks import Talks
from tests.patience import LIMIT_S

CONVERSATIONS = 100
PROGRAM = """
from mac_runner.cli import main
from mac_runner.store import writer
writer.WRITE_BACKLOG_ITEMS_MAX = 1
main()
"""
"""Commits come one after the other, not all at once."""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")

SCRIPT = """
set -u
mount -t tmpfs -o size=64m tmpfs {disk}
head -c 63000K /dev/zero > {disk}/others
{run}; echo "full $?"
cp -a {out} {kept}
{run}; echo "still full $?"
rm {disk}/others
{run}; echo "room again $?"
cp -a {out} {ended}
"""


@pytest.mark.ci
def test_disk_that_fills_up_costs_nothing_acknowledged_and_the_run_ends_once_there_is_room(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "x", "/mnt"]).returncode:
        pytest.skip("this user may not mount; tests/cli/test_storage.py fills files up instead")
    disk, kept, ended = tmp_path / "disk", tmp_path / "kept", tmp_path / "ended"
    disk.mkdir()
    args = Talks(conversations=CONVERSATIONS, out=disk / "run").args()
    run = shlex.join([sys.executable, "-c", PROGRAM, *args, "--quiet"])
    script = SCRIPT.format(disk=disk, run=run, out=disk / "run", kept=kept, ended=ended)

    process = subprocess.run(
        [*NAMESPACE, "sh", "-c", script],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )

    full = Exit.STORAGE_FAILED
    assert process.stdout.splitlines() == [f"full {full}", f"still full {full}", f"room again {Exit.OK}"]
    told = process.stderr.splitlines()
    assert len(told) == 2
    # The second start is refused for want of room where clearing up left a little of it.
    assert "(ENOSPC)" in told[0]
    assert "(ENOSPC)" in told[1] or "are missing" in told[1]
    assert all("conversations left need" in line for line in told)
    rows = [*read_run(kept).rows()]
    assert 0 < len(rows) < CONVERSATIONS
    for row in rows:
        transcript = kept / entry(row, "transcript", str)
        assert hashlib.sha256(transcript.read_bytes()).hexdigest() == row["sha256"]
        assert (ended / entry(row, "transcript", str)).read_bytes() == transcript.read_bytes()
    assert RunDir(path=ended).statuses == {"finished": CONVERSATIONS}
    assert verify(ended) == Exit.OK
