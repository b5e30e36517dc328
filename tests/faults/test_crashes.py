"""The power goes at any moment and takes with it whatever was not durable: the store loses nothing it acknowledged.

Every operation of a run, of its resume and of its end is a moment to crash at. What is not durable by then is kept, or
dropped, or torn by chance, and the real store goes on from what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from mac_runner.store import Disk, RunRecorder, System, writer
from mac_runner.store.testing import Layout, read_state, traces_beside
from mac_runner.types import RecordedReply, Task
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.tier import SCALE, one_in
from tests.kit import stale_files
from tests.store import player
from tests.store.conftest import StillClock

CONVERSATIONS = 3
TORN = 13
FEW_TORN = 2
STATES_MIN = 1_600
CHANGING_HANDS_MIN = 50
READS = frozenset({"open_read", "read", "last_byte", "names", "free"})


class Promised(NamedTuple):
    """What has to be there after a crash: so many results, and of the replies those of so many steps of play."""

    results: int
    steps: int


class Moments:
    """The disks that a crash before each operation leaves, and what was promised by then.

    Crashes that leave equal disks are one case: what was promised before the latest of them has to be there.
    """

    def __init__(self, disk: CrashDisk, torn: int = TORN) -> None:
        self.run: RunRecorder | None = None
        self.written_steps = 0
        self.states = 0
        self.cases: dict[frozenset[tuple[str, bytes]], tuple[CrashDisk, Promised]] = {}
        self._disk = disk
        self._torn = torn
        self._chance = Random(5)
        disk.before = self._note

    def _note(self, call: str, path: Path) -> None:
        if call in READS:
            return
        fates: list[Fate] = ["keep", "drop", *[self._chance] * self._torn]
        for crashed in map(self._disk.crash, fates):
            content = frozenset(crashed.files().items())
            self.cases[content] = crashed, Promised(self.run.written if self.run else 0, self.written_steps)
        self.states += len(fates)


def steps(run: RunRecorder) -> Iterator[None]:
    """Play what is left, one reply or one ending at a time."""
    for task, recorded in run.unfinished():
        replies = list(recorded)
        while len(replies) < player.TURNS:
            replies.append(player.answer(task, replies))
            run.reply(task, replies[-1])
            yield
        run.publish(task, player.transcript(task, replies))
        yield


def play_twice(disk: CrashDisk, run_dir: Path, moments: Moments) -> None:
    """Play in two sessions, the first of which is stopped half way, with several commits in each."""
    for begin, end in ((1, 8), (8, 99)):
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk), clock=StillClock()) as moments.run:
            for n, _ in zip(range(begin, end), steps(moments.run), strict=False):
                if n % 4 == 0:
                    moments.run.contents()
                    moments.written_steps = n
            moments.run.contents()


def examine(disk: CrashDisk, run_dir: Path, promised: Promised, expected: dict[str, bytes]) -> None:
    """Go on from `disk`: what was promised is there, and nothing else is but what was really played."""
    layout = Layout(directory=run_dir, experiment_name=player.NAME)
    noted = read_state(Disk(disk), layout).rows(Disk(disk), layout)
    assert {f"run/{row['transcript']}" for row in noted} <= disk.files().keys()
    with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk), clock=StillClock()) as run:
        counts = run.counts
        left = {task.index: (task, recorded) for task, recorded in run.unfinished()}

    ended, replies = divmod(promised.steps, player.TURNS + 1)
    assert min(left, default=CONVERSATIONS) >= max(promised.results, ended)
    assert ended not in left or len(left[ended][1]) >= replies
    assert all(is_beginning_of_play(task, recorded) for task, recorded in left.values())
    assert (counts.done, counts.failed) == (CONVERSATIONS - len(left), 0)
    files = disk.files()
    whole = {f"{player.NAME}_{n:05d}" for n in range(CONVERSATIONS) if n not in left}
    assert transcripts_in(files) == {path: data for path, data in expected.items() if Path(path).stem in whole}
    assert files["run/toy_index.jsonl"].count(b"\n") == counts.done
    assert not any("/.tmp-" in path for path in files)


def is_beginning_of_play(task: Task, recorded: tuple[RecordedReply, ...]) -> bool:
    """Whether these are the first replies of the task, and no others."""
    return tuple(reply.traceless() for reply in player.answers(task, len(recorded))) == recorded


def transcripts_in(files: dict[str, bytes]) -> dict[str, bytes]:
    results = ("/transcripts/", "/traces/")
    return {path: data for path, data in files.items() if any(map(path.__contains__, results)) and "/.tmp-" not in path}


def check_whole(disk: CrashDisk, run_dir: Path, expected: dict[str, bytes]) -> None:
    """Play to the end: the run is the one that was never disturbed, and the checker finds nothing lost or doubled."""
    player.played(run_dir, CONVERSATIONS, disk=Disk(disk))
    assert transcripts_in(disk.files()) == expected
    report = player.verified(run_dir, disk=Disk(disk))
    assert (report.attempted, report.acknowledged) == (CONVERSATIONS, CONVERSATIONS)
    assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0), report.findings
    assert stale_files(run_dir, disk=Disk(disk)) == []


@pytest.mark.ci
def test_crash_at_every_operation_loses_and_repeats_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    disk, run_dir = CrashDisk(tmp_path), tmp_path / "run"
    moments = Moments(disk)
    play_twice(disk, run_dir, moments)
    expected = transcripts_in(disk.files())

    assert len(expected) == CONVERSATIONS
    assert moments.states >= STATES_MIN
    for n, (crashed, promised) in enumerate(one_in(2, moments.cases.values())):
        examine(crashed, run_dir, promised, expected)
        if n % 50 == 0:
            check_whole(crashed, run_dir, expected)


@pytest.mark.ci
def test_crash_at_every_operation_leaves_no_transcript_without_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces are as durable as the transcript that names them, and those without a transcript are removed."""
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    monkeypatch.setattr(player, "TOKENS", 5)
    disk, run_dir = CrashDisk(tmp_path), tmp_path / "run"
    moments = Moments(disk, FEW_TORN * SCALE)
    play_twice(disk, run_dir, moments)
    expected = transcripts_in(disk.files())

    assert sorted(path.rpartition("/")[0] for path in expected) == [*["run/traces"] * 3, *["run/transcripts"] * 3]
    for n, (crashed, promised) in enumerate(moments.cases.values()):
        files = transcripts_in(crashed.files())
        named = {traces_beside(Path(path)).as_posix() for path in files if "/transcripts/" in path}
        assert all(files.get(path) == expected[path] for path in named)
        examine(crashed, run_dir, promised, expected)
        if n % 20 == 0:
            check_whole(crashed, run_dir, expected)


def play(seed: int) -> int:
    """Crash a run of random sessions at each of its operations; how many disks there were to go on from."""
    # The lock is a real one, and so each play needs a place of its own.
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        disk, run_dir = CrashDisk(Path(place)), Path(place, "run")
        patch.setattr(writer, "COMMIT_LINGER_S", 0.0)
        moments = Moments(disk)
        _play_sessions(Random(seed), disk, run_dir, moments)
        expected = transcripts_in(disk.files())
        for crashed, promised in moments.cases.values():
            examine(crashed, run_dir, promised, expected)
    return moments.states


def _play_sessions(random: Random, disk: CrashDisk, run_dir: Path, moments: Moments) -> None:
    done, total = 0, CONVERSATIONS * (player.TURNS + 1)
    while done < total:
        stop = min(total, done + random.randint(1, total))
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(disk), clock=StillClock()) as moments.run:
            for step, _ in enumerate(islice(steps(moments.run), stop - done), start=done + 1):
                if random.random() < 0.3:
                    moments.run.contents()
                    moments.written_steps = step
            moments.run.contents()
            moments.written_steps = done = stop


def test_model_disk_stands_in_for_every_call_of_the_system() -> None:
    """A call that reached the real system would be a moment that is never crashed at."""
    calls = {name for name in vars(System) if not name.startswith("_")}

    assert calls <= vars(CrashDisk).keys()


@pytest.mark.parametrize("sync", ["fsync", "fsync_directory"])
def test_model_disk_forgets_what_was_never_synced(tmp_path: Path, sync: str) -> None:
    """The model itself: without the one sync or the other a file does not survive, with both it does."""
    disk = CrashDisk(tmp_path)
    descriptor = disk.create(tmp_path / "a")
    disk.write(descriptor, memoryview(b"gold"))
    getattr(disk, sync)(descriptor if sync == "fsync" else tmp_path)

    assert disk.crash("keep").files() == {"a": b"gold"}
    assert disk.crash("drop").files() == ({} if sync == "fsync" else {"a": b""})
    disk.fsync(descriptor)
    disk.fsync_directory(tmp_path)
    assert disk.crash("drop").files() == {"a": b"gold"}
    assert disk.crash(Random(1)).files() == {"a": b"gold"}


@pytest.mark.ci
def test_crash_while_an_unplayed_directory_changes_hands_leaves_no_plan_of_another(tmp_path: Path) -> None:
    """The first experiment never played; the second goes on from whatever is left, with its own plan alone."""
    disk, run_dir = CrashDisk(tmp_path), tmp_path / "run"
    player.open_toy(run_dir, CONVERSATIONS + 2, disk=Disk(disk)).close()
    moments, corrected = Moments(disk, FEW_TORN), player.resolved(seed=2)
    player.played(run_dir, CONVERSATIONS, disk=Disk(disk), config=corrected, turns=1)

    assert len(moments.cases) >= CHANGING_HANDS_MIN
    for crashed, _ in moments.cases.values():
        with player.open_toy(run_dir, CONVERSATIONS, disk=Disk(crashed), config=corrected) as run:
            assert run.counts == (CONVERSATIONS, 0, 0)
