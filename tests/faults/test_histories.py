"""Any history of runs, kills and power cuts, found by chance: what was acknowledged stays, as it was, for ever.

Two processes may be at work at once, as where a network filesystem grants the lock to everybody.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mac_runner.errors import StoreError
from mac_runner.store import Disk, RunRecorder, System, writer
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.test_crashes import transcripts_in
from tests.faults.tier import SCALE
from tests.kit import stale_files
from tests.store import player
from tests.store.conftest import StillClock

CONVERSATIONS = 4
ROOT = Path("/model")
RUN_DIR = ROOT / "run"
fates = st.one_of(st.just("keep"), st.just("drop"), st.integers(0, 99).map(Random))


class Process:
    """A process at work on a run; its calls reach the disk until it is killed."""

    def __init__(self, number: int, disk: CrashDisk) -> None:
        self.number = number
        self.is_killed = False
        self.ended: list[str] = []
        self._disk = disk
        self.run: RunRecorder = player.open_toy(
            RUN_DIR, CONVERSATIONS, disk=Disk(cast(System, self)), clock=StillClock()
        )
        self._steps = self._play()

    def __getattr__(self, call: str) -> object:
        if self.is_killed:
            raise OSError(errno.EIO, "killed")
        return getattr(self._disk, call)

    def _play(self) -> Iterator[None]:
        for task, recorded in self.run.unfinished():
            replies = list(recorded)
            while len(replies) < player.TURNS:
                replies.append(player.answer(task, replies))
                self.run.reply(task, replies[-1])
                yield
            transcript = player.transcript(task, replies)
            # The same result in other bytes: which process wrote a transcript shows.
            self.run.publish(task, {**transcript, "timing": {"process": self.number}})
            self.ended.append(task.task_id)
            yield

    def play(self, steps: int) -> list[str]:
        """Play so many steps and wait for the disk; the tasks acknowledged so far."""
        for _ in islice(self._steps, steps):
            pass
        self.run.contents()
        return self.ended

    def kill(self) -> None:
        """Be gone: what was handed over and not written is lost."""
        self.is_killed = True
        with pytest.raises(StoreError):
            self.run.close()


class Histories(RuleBasedStateMachine):
    """`acknowledged` holds every transcript that a process reported as written, byte by byte."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(writer, "COMMIT_LINGER_S", 0.0)
        self.patch.setattr("filelock.FileLock.acquire", lambda self: None)
        self.disk = CrashDisk(ROOT)
        self.at_work: list[Process] = []
        self.started = 0
        self.acknowledged: dict[str, bytes] = {}

    @initialize()
    def start_two(self) -> None:
        self.start()
        self.start()

    @precondition(lambda self: len(self.at_work) < 2)
    @rule()
    def start(self) -> None:
        self.started += 1
        self.at_work.append(Process(self.started, self.disk))

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 1), steps=st.integers(1, 12))
    def play(self, which: int, steps: int) -> None:
        process = self.at_work[which % len(self.at_work)]
        for task_id in process.play(steps):
            path = f"run/transcripts/{task_id}.json"
            self.acknowledged.setdefault(path, self.disk.files()[path])

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 1))
    def kill(self, which: int) -> None:
        self.at_work.pop(which % len(self.at_work)).kill()

    @precondition(lambda self: self.at_work)
    @rule(which=st.integers(0, 1))
    def end(self, which: int) -> None:
        process = self.at_work.pop(which % len(self.at_work))
        process.run.close()

    @precondition(lambda self: self.at_work)
    @rule(steps=st.integers(1, 9), operations=st.integers(0, 30), fate=fates)
    def cut_power_in_the_middle(self, steps: int, operations: int, fate: Fate) -> None:
        """The power goes a number of operations into a commit."""
        left = [operations]

        def count(call: str, path: Path) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "no power")

        self.disk.before = count
        with suppress(StoreError):
            self.play(0, steps)
        self.cut_power(fate)

    @rule(fate=fates)
    def cut_power(self, fate: Fate) -> None:
        for process in self.at_work:
            process.kill()
        self.at_work.clear()
        self.disk = self.disk.crash(fate)

    @invariant()
    def acknowledged_results_stay_as_they_were(self) -> None:
        files = self.disk.files()
        assert {path: files.get(path) for path in self.acknowledged} == self.acknowledged

    def teardown(self) -> None:
        self.cut_power("drop")
        process = Process(0, self.disk)
        process.play(99)
        process.run.close()
        self.acknowledged_results_stay_as_they_were()
        report = player.verified(RUN_DIR, disk=Disk(self.disk))
        assert (report.attempted, report.acknowledged) == (CONVERSATIONS, CONVERSATIONS)
        assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0), report.findings
        assert stale_files(RUN_DIR, disk=Disk(self.disk)) == []
        assert len(transcripts_in(self.disk.files())) == CONVERSATIONS
        self.patch.undo()


TestHistories = pytest.mark.ci(Histories.TestCase)
# The same histories each time, unless more are asked for. They are short enough to be read as they are found.
TestHistories.settings = settings(
    max_examples=50 * SCALE,
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=SCALE == 1,
    deadline=None,
    database=None,
)
