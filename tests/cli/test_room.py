"""The room that a run is said to need before its first conversation has ended, against what it takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import System
from mac_runner.store.testing import Free
from tests.cli.lab import ROOT, AtOnce, Lab

EXPERIMENTS: Final = (
    "tos_100games",
    "tos_grid",
    "tos_information_lag",
    "bbq_moderated",
    "discussion_small",
    "discussion_openai",
    "echo",
)


def taken_bytes(directory: Path) -> int:
    """What a directory takes on the disk, in whole blocks."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


@pytest.mark.ci
def test_estimate_before_the_first_ending_is_below_what_a_run_takes_and_near_it(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, wrong = System.free, list[str]()
    for name in EXPERIMENTS:
        command = (str(ROOT / "experiments" / f"{name}.yaml"), "--out", name, "--limit", "10", "--quiet")
        monkeypatch.setattr(System, "free", lambda _self, _path: Free(size_bytes=0, files=None, block_bytes=4096))
        refused = at_once(*command)
        monkeypatch.setattr(System, "free", free)
        told = re.search(r"conversations left need at least \S+ .B \((\d+) bytes\)", refused.stderr)
        assert refused.returncode == Exit.STORAGE_FAILED
        assert told is not None, refused.stderr
        assert not (lab.path / name).exists()
        assert at_once(*command).returncode == Exit.OK

        needed, taken = int(told[1]), taken_bytes(lab.path / name)
        if not 0.25 * taken < needed < taken:
            wrong.append(f"{name}: {needed} bytes told, {taken} taken")

    assert not wrong, "\n".join(wrong)
