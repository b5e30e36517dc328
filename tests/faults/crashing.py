"""A run of random length in random sessions, and the power goes before each of its operations.

What `test_crashes.py` does with one run that never changes, for another one with each seed.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from mac_runner.store import Disk, writer
from tests.faults import test_crashes
from tests.faults.crashfs import CrashDisk
from tests.faults.test_crashes import CONVERSATIONS, Moments, examine, steps, transcripts_in
from tests.store import player

_TORN = 3


def play(seed: int) -> int:
    """Crash a random run at each of its operations; how many disks there were to go on from."""
    # The lock is a real one, and so each play needs a place of its own.
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        random, disk, run_dir = Random(seed), CrashDisk(Path(place)), Path(place, "run")
        patch.setattr(writer, "COMMIT_LINGER_S", 0.0)
        patch.setattr(test_crashes, "TORN", _TORN)
        moments = Moments(disk)
        _play_sessions(random, disk, run_dir, moments)
        expected = transcripts_in(disk.files())
        for crashed, promised in moments.cases.values():
            examine(crashed, run_dir, promised, expected)
    return moments.states


def _play_sessions(random: Random, disk: CrashDisk, run_dir: Path, moments: Moments) -> None:
    done, total = 0, CONVERSATIONS * (player.TURNS + 1)
    while done < total:
        stop = min(total, done + random.randint(1, total))
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk)) as moments.run:
            for step, _ in enumerate(islice(steps(moments.run), stop - done), start=done + 1):
                if random.random() < 0.3:
                    moments.run.contents()
                    moments.written_steps = step
            moments.run.contents()
            moments.written_steps = done = stop
