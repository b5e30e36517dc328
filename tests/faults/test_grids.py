"""A grid in its one directory, whatever befalls it: what comes out is what an undisturbed one leaves."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mac_runner.errors import StoreError
from mac_runner.plan import Plan, task_name
from mac_runner.store import (
    Disk,
    GridRecord,
    Invocation,
    RunRecorder,
    grid_entries,
    has_run,
    open_grid,
    open_run,
    read_grid,
    read_run,
    writer,
)
from mac_runner.store.testing import GridAtRest, Layout
from mac_runner.types import JsonObject
from tests.faults.crashfs import CrashDisk, Fate
from tests.faults.test_crashes import READS
from tests.faults.tier import one_in, step_of
from tests.store import player
from tests.store.conftest import StillClock

CONVERSATIONS = 2
TORN = 1
CUTS_MIN = 200
SLUGS = ("seed-1", "seed-2")
NAMES = {slug: f"{player.NAME}_{slug}" for slug in SLUGS}
FAILING = task_name(NAMES[SLUGS[1]], 1)
ASKED = GridRecord(
    name=player.NAME,
    profile="default",
    asked={"sweep": {"seed": [1, 2]}},
    entries=grid_entries((slug, f"identity of {slug}", {"seed": seed}) for seed, slug in enumerate(SLUGS, start=1)),
)
TABLES = {
    "grid.csv": b"a table\n",
    **{f"summaries/{slug}.json": b'{\n  "of": "%s"\n}\n' % slug.encode() for slug in SLUGS},
}
RESULTS = ("transcripts/", "attempts/", "experiments/", "toy_index.jsonl", "task_manifest.json", "grid.yaml", *TABLES)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)


class Grid:
    """A grid on a disk; `acknowledged` are the conversations that have ended, and how."""

    def __init__(self, disk: CrashDisk, directory: Path) -> None:
        self.acknowledged: dict[str, str] = {}
        self._directory = directory
        self._disk = Disk(disk)

    def play(self) -> None:
        """What the command of the grid does where something is left: each combination is opened ahead of its turn."""
        with open_grid(self._directory, asked=ASKED, clock=StillClock(), disk=self._disk) as grid:
            grid.begin()
            grid.drain()
            with self._opened(SLUGS[0], is_guarded=True) as first:
                steps = self._steps(first)
                next(steps, None)
                with self._opened(SLUGS[1], is_guarded=True) as second:
                    steps_ahead = self._steps(second)
                    next(steps_ahead, None)
                    self._end(first, steps)
                    first.close()
                    self._end(second, steps_ahead)
            grid.write_tables(TABLES)

    def retry(self) -> None:
        """Play the conversation that failed again, in its combination by itself."""
        with self._opened(SLUGS[1], is_retried=FAILING.__eq__) as run:
            player.play(run)
            run.write_summary({"of": SLUGS[1]})

    def mend(self) -> None:
        """What the command of the grid does where nothing is left."""
        record = read_grid(self._directory, disk=self._disk)
        assert record is not None
        grid = GridAtRest(self._directory, record, StillClock(), self._disk)
        grid.write_whole(lambda _known, _contents, rows: rows)
        grid.write_tables(TABLES)

    def live(self) -> None:
        """A life from the beginning to the end."""
        self.play()
        self.retry()
        self.mend()

    def _opened(self, slug: str, **more: Any) -> RunRecorder:
        return open_run(
            Invocation(
                layout=Layout(directory=self._directory / slug, experiment_name=NAMES[slug], grid=self._directory),
                resolved={"experiment_metadata": {"experiment_name": NAMES[slug]}},
                tasks=Plan(range(CONVERSATIONS), name_of=lambda index: task_name(NAMES[slug], index), make=player.made),
            ),
            clock=StillClock(),
            disk=self._disk,
            on_ended=self._ended,
            **more,
        )

    def _steps(self, run: RunRecorder) -> Iterator[bool]:
        """One conversation fails when it is played for the first time."""
        directory = run.layout.directory
        is_retried = has_run(directory, disk=self._disk) and read_run(directory, disk=self._disk).under_retry()
        return player.steps(run, failing=() if is_retried else {FAILING})

    def _end(self, run: RunRecorder, steps: Iterator[bool]) -> None:
        for _ in steps:
            pass
        run.write_summary({"of": run.layout.directory.name})

    def _ended(self, row: JsonObject) -> None:
        self.acknowledged[str(row["task_id"])] = str(row["status"])


def results(disk: CrashDisk) -> dict[str, bytes]:
    """What an undisturbed grid and a disturbed one have in common, byte for byte."""
    found = {path.removeprefix("grid/"): data for path, data in disk.files().items()}
    return {path: data for path, data in found.items() if path.startswith(RESULTS) and "/.tmp-" not in path}


def check_goes_on(disk: CrashDisk, directory: Path, acknowledged: dict[str, str], expected: dict[str, bytes]) -> None:
    """What was acknowledged is there; and its commands end the grid as if nothing had been."""
    before = results(disk)
    for task_id, status in acknowledged.items():
        places = [f"transcripts/{task_id}.json", *([f"attempts/{task_id}.1.json"] if status == "failed" else [])]
        assert any(place in before for place in places), f"{task_id} was lost"
    Grid(disk, directory).live()
    assert results(disk) == expected
    assert not [path for path in disk.files() if "/.tmp-" in path or path.endswith("/.owner.json")]
    for slug in SLUGS:
        report = player.verified(directory / slug, disk=Disk(disk))
        assert (report.attempted, report.acknowledged) == (CONVERSATIONS, CONVERSATIONS)
        assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0), report.findings


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    disk = CrashDisk(tmp_path)
    Grid(disk, tmp_path / "grid").live()
    found = results(disk)
    assert [*map(found.__contains__, (f"transcripts/{FAILING}.json", f"attempts/{FAILING}.1.json"))] == [True, True]
    return found


@pytest.mark.ci
def test_power_that_goes_at_any_call_of_a_grid_loses_and_doubles_nothing(
    tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """While two combinations are played, the second opened ahead, and one is retried by itself."""
    disk, chance = CrashDisk(tmp_path), Random(5)
    grid = Grid(disk, tmp_path / "grid")
    cuts: dict[frozenset[tuple[str, bytes]], tuple[CrashDisk, dict[str, str]]] = {}

    def note(call: str, path: Path) -> None:
        fates: list[Fate] = [] if call in READS else ["keep", "drop", *[chance] * TORN]
        acknowledged = {**grid.acknowledged}  # Before the cut: each combination has a writer of its own.
        for crashed in map(disk.crash, fates):
            cuts[frozenset(crashed.files().items())] = crashed, acknowledged

    disk.before = note
    grid.live()
    assert results(disk) == expected
    assert len(cuts) >= CUTS_MIN
    for crashed, acknowledged in one_in(4, cuts.values()):
        check_goes_on(crashed, tmp_path / "grid", acknowledged, expected)


@pytest.mark.ci
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_disk_that_fails_at_any_call_of_a_grid_loses_and_doubles_nothing(
    tmp_path: Path, expected: dict[str, bytes], fault: int
) -> None:
    """One that is full stays so; another fault comes once."""
    for fail_at in count(1, step_of(4)):
        disk, calls = CrashDisk(tmp_path), count(1)
        grid = Grid(disk, tmp_path / "grid")

        def fail(call: str, path: Path, calls: Iterator[int] = calls, fail_at: int = fail_at) -> None:
            if call not in {*READS, "unlink", "remove_directory"}:
                number = next(calls)
                if number == fail_at or (number > fail_at and fault == errno.ENOSPC):
                    raise OSError(fault, "planted")

        disk.before = fail
        try:
            grid.live()
        except StoreError:
            disk.before = None
            check_goes_on(disk, tmp_path / "grid", grid.acknowledged, expected)
        else:
            break
    assert fail_at > CUTS_MIN // 5
