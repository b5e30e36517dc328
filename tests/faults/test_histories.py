"""Any history of runs, workers, grids, kills, steals and power cuts, found by chance: what was acknowledged stays.

Who is at work on what, and what befalls it, is drawn from a seed:

- `lock broken`: nobody is kept out, so that several have one shard or the whole run, and all believe that they hold it;
- `machines apart`: each process is on a machine of its own, and its note and its signs of life are all that others know
  of it. One that is paused is taken for dead after its lease and loses its shard, and goes on as if nothing had been;
- `grid`: its combinations are played by the grid, by themselves and by workers, and nobody is kept out.

In the end all is there once, as one run leaves it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import inf
from pathlib import Path
from random import Random
from typing import Final, TypeAlias, cast

import pytest

from mac_runner.errors import RunLockedError, StoreError
from mac_runner.plan import Plan, Shard, task_name
from mac_runner.store import (
    Disk,
    GridRecorder,
    Invocation,
    LeasesRecord,
    RunRecorder,
    System,
    has_run,
    is_grid,
    open_grid,
    open_run,
    without_timing,
)
from mac_runner.store.testing import (
    LEASE_INTERVAL_S,
    LEASE_PERIODS,
    Committer,
    Item,
    Layout,
    Lease,
    LeaseWatch,
    Machine,
    begin_leases,
    join_grid,
    make_claimable,
)
from mac_runner.types import JsonObject, JsonValue
from tests.faults.crashfs import CrashDisk
from tests.faults.test_grids import ASKED, TABLES
from tests.faults.test_workers import Life
from tests.kit import stale_files
from tests.sim.seeds import told
from tests.store import player
from tests.store.conftest import StillClock
from tests.tiers import first

KINDS: Final = ("lock broken", "machines apart", "grid")
HISTORIES = 15
"""Of each test."""
TESTS = 8
STEPS_MAX = 16
AT_WORK_MAX = 3
SHARDS = 2
CALLS_MAX = 80
"""What is killed in the middle makes at most so many calls of the disk before."""
LEASE_S = LEASE_PERIODS * LEASE_INTERVAL_S
PATIENCE_S = int(3 * LEASE_S)
"""More than it takes to find the holder of the run dead, and then those of its shards."""
ROOT = Path("/model")
TOP = ROOT / "run"

Steps: TypeAlias = Generator[RunRecorder | GridRecorder, None, None]
Play: TypeAlias = Callable[["Process"], Steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run, or a combination of a grid."""

    name: str
    directory: Path
    conversations: int
    grid: Path | None = None

    @property
    def tasks(self) -> Plan:
        return Plan(range(self.conversations), name_of=lambda index: task_name(self.name, index), make=player.made)

    @property
    def resolved(self) -> JsonObject:
        return {"experiment_metadata": {"experiment_name": self.name}}

    @property
    def record(self) -> LeasesRecord:
        return LeasesRecord(of=SHARDS, experiment_name=self.name, identity="ab12", conversations=self.conversations)

    def layout(self, lease: Lease | None = None) -> Layout:
        return Layout(directory=self.directory, experiment_name=self.name, grid=self.grid, lease=lease)


RUN = (Part(name=player.NAME, directory=TOP, conversations=4),)
GRID = tuple(
    Part(name=f"{player.NAME}_{entry.slug}", directory=TOP / entry.slug, conversations=2, grid=TOP)
    for entry in ASKED.entries
)


class Elsewhere(Machine):
    """A machine of its own, whose files are on a server."""

    def __init__(self, number: int) -> None:
        self.identity = f"machine {number}"

    def filesystem(self, path: Path) -> str:
        return "nfs4"


class Batches:
    """In the place of the writer's thread: what was handed over is written as one batch when it is waited for."""

    def __init__(self, committer: Committer[Item]) -> None:
        self.failure: StoreError | None = None
        self._committer = committer
        self._items: list[Item] = []
        self._is_closed = False

    def submit(self, item: Item) -> None:
        self._items.append(item)

    def drain(self) -> None:
        items, self._items = self._items, []
        if items:
            self._do(lambda: self._committer.commit(items))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                self.drain()
                self._do(self._committer.finish)
            finally:
                self._committer.close()

    def _do(self, act: Callable[[], None]) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            act()
        except StoreError as failure:
            self.failure = failure
            raise


class Process:
    """A process at work; its calls reach the disk until it is killed, which may be after so many of them."""

    def __init__(
        self, number: int, disk: CrashDisk, machine: Machine, shard: Shard | None, *, calls: float, patience_s: int
    ) -> None:
        self.number = number
        self.machine = machine
        self.shard = shard
        self.patience_s = patience_s
        self.is_doomed = calls < inf
        self.has_begun = self.is_paused = self.was_paused = self.is_over = False
        self._calls_left = calls
        self._disk = disk

    def __getattr__(self, call: str) -> object:
        if call not in {"token", "close"}:  # Which cannot fail.
            if self._calls_left <= 0:
                raise OSError(errno.EIO, "killed")
            self._calls_left -= 1
        return getattr(self._disk, call)

    @property
    def disk(self) -> Disk:
        return Disk(cast(System, self))

    def begin(self, play: Play) -> None:
        self._steps = play(self)
        self._at = next(self._steps)
        self.has_begun = True

    def play(self, steps: int) -> None:
        """Play so many steps and wait for the disk."""
        for _ in range(steps):
            if (at := next(self._steps, None)) is None:
                self.is_over = True
                return
            self._at = at
        self._at.drain()

    def show_life(self) -> None:
        self._at.event("EVENT_ALIVE", {})
        self._at.drain()

    def stop(self) -> None:
        """End in good order."""
        self._steps.close()

    def kill(self) -> None:
        """Be gone: what was handed over and not written is lost."""
        self._calls_left = 0
        self._steps.close()


class History:
    """What happens in one directory. `acknowledged` are the endings that were: task, status and digest."""

    def __init__(self, seed: int) -> None:
        self.kind = KINDS[seed % len(KINDS)]
        self.parts = GRID if self.kind == "grid" else RUN
        self.disk = CrashDisk(ROOT)
        self.acknowledged: set[tuple[str, str, str]] = set()
        self.is_healed = False
        """Whether the one that fails does no more."""
        self._failing = task_name(self.parts[-1].name, 1)
        self._chance = Random(seed)
        self._clock = StillClock()
        self._watch = LeaseWatch() if self.kind == "machines apart" else None
        self._at_work: list[Process] = []
        self._started = 0

    def live(self) -> None:
        """A number of things happen, each of which leaves all that was acknowledged as it was."""
        often = [self.begin] * 4 + [self.play] * 8 + [self.cut_power] * 2 + [self.steal] * (3 if self._watch else 0)
        for _ in range(self._chance.randint(4, STEPS_MAX)):
            self._chance.choice([*often, self.kill, self.stop, self.merge, self.retry])()
            self.check_acknowledged()

    def begin(self) -> None:
        """A process comes: for the whole run or grid, for a part of it, or for a shard of that."""
        if len(self._at_work) == AT_WORK_MAX:
            return
        part = self._chance.choice(self.parts)
        shard = Shard(self._chance.randint(1, SHARDS), SHARDS)
        whole = self.whole(part) if self._is_there(part) else self.whole_directory
        self._come(
            *self._chance.choice([(None, self.whole_directory), (None, whole), (shard, self.worker(part, shard))])
        )

    def play(self) -> None:
        """Of those at work one goes on; who was paused may find its shard taken."""
        if self._at_work:
            process = self._chance.choice(self._at_work)
            process.is_paused = False
            self._do(process, lambda: process.play(self._chance.randint(1, 12)))

    def kill(self) -> None:
        if self._at_work:
            self._leave(self._chance.choice(self._at_work)).kill()

    def stop(self) -> None:
        if self._at_work:
            process = self._leave(self._chance.choice(self._at_work))
            self._do(process, process.stop)

    def steal(self) -> None:
        """A process is paused for longer than its lease, and another one comes for what it has."""
        if 0 < len(self._at_work) < AT_WORK_MAX:
            process = self._chance.choice(self._at_work)
            process.is_paused = process.was_paused = True
            (part,) = self.parts
            play = self.whole(part) if process.shard is None else self.worker(part, process.shard)
            self._come(process.shard, play, patience_s=PATIENCE_S)

    def retry(self) -> None:
        """What has failed is opened again, by who has the run to itself."""
        if not self._at_work and self._is_there(self.parts[-1]):
            self.is_healed = True
            self._come(None, self.whole(self.parts[-1], is_retried=True))

    def merge(self) -> None:
        """The run, at rest, is made into another one, which has what was acknowledged."""
        if self._at_work or self.kind == "grid" or not has_run(TOP, disk=Disk(self.disk)):
            return
        disk = self.disk.crash("keep")
        # Who was killed on another machine may live.
        with suppress(*([RunLockedError] if self._watch else [])):
            player.merged(ROOT / "merged", TOP, tasks=RUN[0].tasks, disk=Disk(disk))
            self.check_acknowledged(disk, "merged")

    def cut_power(self) -> None:
        for process in self._at_work:
            process.kill()
        self._at_work.clear()
        self.disk = self.disk.crash(self._chance.choice(["keep", "drop", Random(self._chance.random())]))

    def finish(self) -> None:
        """Those at work end somehow, and what is left is played."""
        while self._at_work:
            self.play()
            self._chance.choice([self.kill, self.stop])()
        self._come(None, self.whole_directory, is_last=True)
        self.is_healed = True
        for part in self.parts:
            self._come(None, self.whole(part, is_retried=True), is_last=True)
        self._come(None, self.whole_directory, is_last=True)

    @property
    def whole_directory(self) -> Play:
        return self.grid if self.kind == "grid" else self.whole(*self.parts)

    def whole(self, part: Part, *, is_retried: bool = False) -> Play:
        def play(process: Process) -> Steps:
            with self._opened(process, part, is_retried=is_retried) as run:
                yield from self._steps(process, run)

        return play

    def worker(self, part: Part, shard: Shard) -> Play:
        def play(process: Process) -> Steps:
            disk = process.disk
            if part.grid:
                join_grid(part.grid, ASKED, disk=disk)
            asked = Invocation(layout=part.layout(), resolved=part.resolved, tasks=part.tasks)
            begin_leases(disk, part.record, asked, at="now")
            lease = Lease(shard=shard, samples=1, events=TOP / "workers" / str(process.number) / "events.jsonl")
            disk.make_directory(lease.events.parent)
            make_claimable(disk, part.layout(lease).place)
            with self._opened(process, part, lease=lease) as run:
                yield from self._steps(process, run)

        return play

    def grid(self, process: Process) -> Steps:
        with open_grid(TOP, asked=ASKED, clock=self._clock, disk=process.disk) as grid:
            grid.begin()
            grid.drain()
            yield grid
            for part in self.parts:
                with self._opened(process, part, is_guarded=True) as run:
                    yield from self._steps(process, run)
            grid.write_tables(TABLES)

    def check_acknowledged(self, disk: CrashDisk | None = None, top: str = "run") -> None:
        """Each ending that was acknowledged is there, byte for byte; one that failed perhaps as an earlier attempt."""
        digests = {path: sha256(data).hexdigest() for path, data in (disk or self.disk).files().items()}
        for task_id, status, digest in self.acknowledged:
            place = f"{top}/transcripts/{task_id}.json"
            attempts = (found for path, found in digests.items() if path.startswith(f"{top}/attempts/{task_id}."))
            places = [digests.get(place), *(attempts if status == "failed" else ())]
            assert digest in places, f"{task_id}, which {status}, is not there or another one"

    def check(self) -> None:
        """All is there once, nothing was made up, and no file lags behind."""
        self.check_acknowledged()
        assert results(self.disk) == expected(self.kind)
        assert stale_files(TOP, disk=Disk(self.disk)) == []
        for part in self.parts:
            report = player.verified(part.directory, disk=Disk(self.disk))
            assert (report.attempted, report.acknowledged) == (part.conversations, part.conversations)
            assert (report.lost, report.unexpected, report.mismatched) == (0, 0, 0), report.findings
        self.merge()

    def _opened(
        self,
        process: Process,
        part: Part,
        *,
        lease: Lease | None = None,
        is_guarded: bool = False,
        is_retried: bool = False,
    ) -> RunRecorder:
        """A part, once nobody keeps the process out. Raises RunLockedError when its patience is at its end."""
        for left_s in reversed(range(process.patience_s)):
            try:
                run = open_run(
                    Invocation(layout=part.layout(lease), resolved=part.resolved, tasks=part.tasks.part(process.shard)),
                    clock=self._clock,
                    disk=process.disk,
                    machine=process.machine,
                    watch=self._watch,
                    is_guarded=is_guarded,
                    is_retried=(lambda _task_id: is_retried),
                    on_ended=self._note,
                )
            except RunLockedError:
                assert self._watch is not None, "somebody was kept out by a broken lock"
                if not left_s:
                    raise
                self._pass_a_second()
            else:
                self._check_alone(process)
                return run
        raise AssertionError("unreachable")

    def _is_there(self, part: Part) -> bool:
        """Whether it can be played by itself: a combination begins with its grid."""
        return part.grid is None or is_grid(part.grid, disk=Disk(self.disk))

    def _steps(self, process: Process, run: RunRecorder) -> Steps:
        yield run
        failing = () if self.is_healed else {self._failing}
        for _ in player.steps(run, failing=failing, wall_s=process.number):
            yield run

    def _note(self, row: JsonObject) -> None:
        self.acknowledged.add((str(row["task_id"]), str(row["status"]), str(row["sha256"])))

    def _come(self, shard: Shard | None, play: Play, *, patience_s: int | None = None, is_last: bool = False) -> None:
        self._started += 1
        machine = Elsewhere(self._started) if self._watch else Life()
        is_doomed = not is_last and self._chance.random() < 0.2
        process = Process(
            self._started,
            self.disk,
            machine,
            shard,
            calls=self._chance.randint(0, CALLS_MAX) if is_doomed else inf,
            patience_s=PATIENCE_S if is_last else patience_s or self._chance.choice([1, PATIENCE_S]),
        )
        self._at_work.append(process)
        try:
            self._do(process, lambda: process.begin(play))
        except RunLockedError:
            assert not is_last
            self._leave(process)
        if is_last:
            process.play(99)
            assert process.is_over
            self._leave(process)

    def _do(self, process: Process, act: Callable[[], None]) -> None:
        """What a process does, unless it dies of it."""
        try:
            act()
        except StoreError:
            if not process.is_doomed:
                raise
            self._leave(process).kill()
        else:
            if process.is_over:
                self._leave(process)

    def _leave(self, process: Process) -> Process:
        if process in self._at_work:
            self._at_work.remove(process)
        return process

    def _pass_a_second(self) -> None:
        """Who is awake shows life when it is time."""
        self._clock.now_s += 1
        if self._clock.now_s % LEASE_INTERVAL_S == 0:
            for process in [*self._at_work]:
                if process.has_begun and not process.is_paused:
                    self._do(process, process.show_life)

    def _check_alone(self, comer: Process) -> None:
        """Who has shown life all the time keeps its shard, or the whole run."""
        if self._watch is not None:
            for process in self._at_work:
                is_rival = process is not comer and (process.shard in (None, comer.shard) or comer.shard is None)
                assert not is_rival or process.was_paused, f"{comer.number} came in beside {process.number}"


def results(disk: CrashDisk) -> dict[str, JsonValue]:
    """The transcripts, but for what depends on time."""
    found = {path: data for path, data in disk.files().items() if path.startswith("run/transcripts/")}
    return {path: without_timing(json.loads(data)) for path, data in found.items()}


@cache
def expected(kind: str) -> dict[str, JsonValue]:
    """The results of an undisturbed run."""
    history = History(KINDS.index(kind))
    history.finish()
    return results(history.disk)


def play(seed: int) -> None:
    """Live a history to its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mac_runner.store.session.Writer", Batches)
        patch.setattr("mac_runner.store.lock.FileLock", player.BrokenLock)
        history = History(seed)
        history.live()
        history.finish()
        history.check()


@pytest.mark.parametrize("number", first(1, range(TESTS)))
def test_whatever_happens_to_a_run_or_a_grid_loses_and_doubles_nothing(number: int) -> None:
    for seed in range(number * HISTORIES, (number + 1) * HISTORIES):
        with told("history", seed):
            play(seed)
