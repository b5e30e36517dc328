"""Workers of one run directory, whatever befalls them: what comes out is what one run leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mac_runner
from mac_runner.errors import StoreError
from mac_runner.store import Disk, LeasesRecord, writer
from mac_runner.store.testing import LEASES, Layout, Lease, Machine, begin_leases, make_claimable
from mac_runner.types import JsonObject
from tests.cli.lab import RunDir, experiment, scripted
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.test_crashes import READS, transcripts_in
from tests.faults.tier import one_in, step_of
from tests.kit import stale_files
from tests.store import player
from tests.store.conftest import StillClock, tree

CONVERSATIONS = 3
TORN = 2
CUTS_MIN = 250
RECORD = LeasesRecord(of=2, experiment_name=player.NAME, identity="ab12", conversations=CONVERSATIONS)
PLAN = player.shared_plan(CONVERSATIONS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)


class Life(Machine):
    """This machine, on which whoever was at work before is dead."""

    lives = count(1)

    def __init__(self) -> None:
        super().__init__()
        self._start = str(next(self.lives))

    def process_start(self, pid: int) -> str | None:
        return self._start


class DiskOfOneMachine(CrashDisk):
    """Whose temporary files are all of processes that live."""

    def is_in_use(self, token: str) -> bool:
        return True


class Workers:
    """Those who play a run on a disk, one after the other; `acknowledged` are the conversations that have ended."""

    def __init__(self, disk: CrashDisk, run_dir: Path) -> None:
        self.acknowledged: set[str] = set()
        self._disk = Disk(disk)
        self._run_dir = run_dir
        self._opening: dict[str, Any] = {
            "disk": self._disk,
            "clock": StillClock(),
            "machine": Life(),
            "on_ended": self._ended,
        }

    def begin(self) -> None:
        """Have a run whose shards can be claimed."""
        begin_leases(self._disk, RECORD, player.asked(self._run_dir, PLAN), at="now")

    def play(self) -> None:
        """Claim each shard, and play it."""
        events = self._run_dir / "workers" / "one" / "events.jsonl"
        self._disk.make_directory(events.parent)
        for shard in RECORD.shards():
            lease = Lease(shard=shard, samples=1, events=events)
            make_claimable(self._disk, Layout(directory=self._run_dir, experiment_name=player.NAME, lease=lease).place)
            player.played(self._run_dir, PLAN.part(shard), lease=lease, **self._opening)

    def end(self) -> None:
        """Have the whole run, and do what is left."""
        with player.open_toy(self._run_dir, PLAN, **self._opening) as run:
            player.play(run)
            run.write_summary({})

    def do_all(self) -> None:
        """What workers do from the beginning to the end."""
        self.begin()
        self.play()
        self.end()

    def _ended(self, row: JsonObject) -> None:
        self.acknowledged.add(str(row["transcript"]))


GOING_ON: list[Callable[[Workers], None]] = [Workers.do_all, Workers.end]
"""Workers, or a plain run."""


def check_goes_on(disk: CrashDisk, run_dir: Path, acknowledged: set[str], go_on: Callable[[Workers], None]) -> None:
    """What was acknowledged is there; and in the end all is there once, as one run leaves it, and no lease is."""
    before = disk.files()
    assert {f"run/{path}" for path in acknowledged} <= before.keys()
    go_on(Workers(disk, run_dir))
    files = disk.files()
    assert transcripts_in(files) == EXPECTED
    assert files["run/toy_index.jsonl"].count(b"\n") == CONVERSATIONS
    report = player.verified(run_dir, disk=Disk(disk))
    assert (report.attempted, report.acknowledged) == (CONVERSATIONS, CONVERSATIONS)
    assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0), report.findings
    assert stale_files(run_dir, disk=Disk(disk)) == []
    # What the dead left beside their locks is left to who takes those.
    left = {path for path in files if not path.startswith("run/leases/") or go_on is Workers.do_all}
    assert not [path for path in left if path.endswith((LEASES, "/.owner.json")) or "/.tmp-" in path]


def single(place: Path) -> dict[str, bytes]:
    """The transcripts of one run that was never disturbed."""
    disk = CrashDisk(place)
    Workers(disk, place / "run").end()
    return transcripts_in(disk.files())


EXPECTED: dict[str, bytes] = {}


@pytest.fixture(autouse=True, scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> None:
    EXPECTED.update(single(tmp_path_factory.mktemp("single")))


@pytest.mark.ci
def test_power_that_goes_at_any_call_of_workers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """While they begin, play a shard each, and end the run; others go on, or a plain run does."""
    disk, chance = CrashDisk(tmp_path), Random(5)
    workers = Workers(disk, tmp_path / "run")
    cuts: dict[frozenset[tuple[str, bytes]], tuple[CrashDisk, set[str]]] = {}

    def note(call: str, path: Path) -> None:
        fates: list[Fate] = [] if call in READS else ["keep", "drop", *[chance] * TORN]
        for crashed in map(disk.crash, fates):
            cuts[frozenset(crashed.files().items())] = crashed, {*workers.acknowledged}

    disk.before = note
    workers.do_all()
    assert transcripts_in(disk.files()) == EXPECTED
    assert len(cuts) >= CUTS_MIN
    for number, (crashed, acknowledged) in enumerate(one_in(2, cuts.values())):
        check_goes_on(crashed, tmp_path / "run", acknowledged, GOING_ON[number % 2])


@pytest.mark.ci
def test_disk_that_is_full_at_any_call_of_workers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    for fail_at in count(1, step_of(2)):
        disk, calls = CrashDisk(tmp_path), count(1)
        workers = Workers(disk, tmp_path / "run")

        def fail(call: str, path: Path, calls: Iterator[int] = calls, fail_at: int = fail_at) -> None:
            if call not in {*READS, "unlink", "remove_directory"} and next(calls) >= fail_at:
                raise OSError(errno.ENOSPC, "full")

        disk.before = fail
        try:
            workers.do_all()
        except StoreError:
            disk.before = None
            check_goes_on(disk, tmp_path / "run", workers.acknowledged, GOING_ON[fail_at % 2])
        else:
            break
    assert fail_at > CUTS_MIN // 3


@pytest.mark.ci
@pytest.mark.parametrize("comes", [Workers.begin, Workers.do_all])
def test_worker_that_begins_while_another_one_does_changes_nothing(
    tmp_path: Path, comes: Callable[[Workers], None]
) -> None:
    """At any call of the first one the other one begins, or begins, plays all and ends the run."""
    for meets_at in count(1):
        disk, calls = DiskOfOneMachine(tmp_path), count(1)

        def meet(
            call: str, path: Path, disk: CrashDisk = disk, calls: Iterator[int] = calls, at: int = meets_at
        ) -> None:
            if next(calls) == at:
                comes(Workers(disk, tmp_path / "run"))

        disk.before = meet
        Workers(disk, tmp_path / "run").begin()
        disk.before = None
        check_goes_on(disk, tmp_path / "run", set(), GOING_ON[meets_at % 2])
        if next(calls) <= meets_at:
            break


def played(out: Path, shard: str | None = None) -> RunDir:
    """The run directory of the experiment, once it is played."""
    config = experiment(conversations=CONVERSATIONS, models={"m": scripted()})
    mac_runner.run(config, out=out, shard=shard, progress=False)
    return RunDir(path=out)


@pytest.mark.parametrize("lost", ["small_index.jsonl", "task_manifest.json", "summary.json"])
def test_workers_end_a_run_that_was_cut_off_when_all_conversations_had_ended(tmp_path: Path, lost: str) -> None:
    """Nobody had leases there: it was played by one process."""
    single = played(tmp_path / "run")
    whole = tree(single.path)
    (single.path / lost).unlink()

    played(tmp_path / "run", "auto/2")

    assert {*tree(single.path)} - {*whole} <= {"journal/000002.jsonl"}
    assert tree(single.path)["small_index.jsonl"][1] == whole["small_index.jsonl"][1]
    assert RunDir(path=single.path).statuses == {"finished": CONVERSATIONS}
    assert not (single.path / LEASES).exists()
