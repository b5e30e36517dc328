"""Whom the lock lets in where it cannot be relied on, and whom the note of an owner keeps out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mac_runner.errors import RunLockedError
from mac_runner.store import Disk, verify_run
from mac_runner.store.testing import (
    LEASE_INTERVAL_S,
    LEASE_PERIODS,
    LeaseWatch,
    Machine,
    Owner,
    RunLock,
    is_alive,
    last_sign_of_life,
    read_owner,
    show_life,
    sign,
    sign_off,
    signs_of_life,
    this_process,
)
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


START = "2025-01-01T00:00:00.000Z"


class NetworkMachine(Machine):
    """This machine, with its files on a server."""

    def filesystem(self, path: Path) -> str:
        return "nfs4"


class RoughClock:
    """Monotonic time goes on by what is waited; wall time is anywhere."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.wall_s = 0.0

    def utc_now(self) -> datetime:
        self.wall_s = -self.wall_s - 86_400.0
        return datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=self.wall_s)

    def monotonic_s(self) -> float:
        return self.waited_s

    async def sleep(self, delay_s: float) -> None:
        self.waited_s += delay_s


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def owner_at(pid: int, **changes: str) -> Owner:
    start = Machine().process_start(pid) or "0"
    return replace(this_process(Machine(), started_at=START), pid=pid, **{"process_start": start, **changes})


def enter(
    place: Path, clock: RoughClock, wait: Callable[[float], None] | None = None, said: list[str] | None = None
) -> None:
    def sleep(delay_s: float) -> None:
        clock.waited_s += delay_s

    heard: list[str] = [] if said is None else said
    lock = RunLock(Disk(), place, clock=clock, machine=NetworkMachine(), wait=wait or sleep, say=heard.append)
    lock.release()


@pytest.mark.ci
def test_live_owner_on_this_machine_is_left_alone_whatever_the_lock_says(
    place: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    sign(Disk(), place, owner_at(sleeper.pid))
    clock = RoughClock()

    with pytest.raises(RunLockedError, match=f"pid {sleeper.pid} on .* since {START}"):
        enter(place, clock)

    assert clock.waited_s == 0


@pytest.mark.ci
def test_dead_owner_on_this_machine_is_not_waited_for(place: Path, sleeper: subprocess.Popen[bytes]) -> None:
    owner = owner_at(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    sign(Disk(), place, owner)
    clock = RoughClock()

    enter(place, clock)

    assert clock.waited_s == 0


@pytest.mark.ci
def test_number_given_out_again_is_not_taken_for_the_owner(place: Path, sleeper: subprocess.Popen[bytes]) -> None:
    sign(Disk(), place, owner_at(sleeper.pid, process_start="1"))
    clock = RoughClock()

    enter(place, clock)

    assert clock.waited_s == 0


def test_owner_on_another_machine_is_believed_dead_after_three_periods_without_a_sign(place: Path) -> None:
    sign(Disk(), place, owner_at(1, machine="0badcafe", host="node17"))
    clock, said = RoughClock(), list[str]()

    enter(place, clock, said=said)

    assert clock.waited_s == LEASE_PERIODS * LEASE_INTERVAL_S == 30
    assert "pid 1 on node17" in said[1]


def test_owner_on_another_machine_that_shows_life_is_left_alone(place: Path) -> None:
    sign(Disk(), place, owner_at(1, machine="0badcafe", host="node17"))
    clock = RoughClock()

    def wait(delay_s: float) -> None:
        clock.waited_s += delay_s
        if clock.waited_s == 29:
            show_life(Disk(), place, at=START)

    with pytest.raises(RunLockedError, match="pid 1 on node17"):
        enter(place, clock, wait)

    assert clock.waited_s == 29


def test_leap_of_the_clock_is_no_proof_of_death(place: Path) -> None:
    """The machine slept for an hour, and so may its network have: the owner is given all of its time."""
    sign(Disk(), place, owner_at(1, machine="0badcafe", host="node17"))
    clock, looks = RoughClock(), list[float]()

    def wait(delay_s: float) -> None:
        looks.append(delay_s)
        clock.waited_s += delay_s if len(looks) != 5 else 3600.0

    enter(place, clock, wait)

    assert len(looks) == 29


def test_several_owners_on_other_machines_are_watched_at_once_and_none_is_waited_for(tmp_path: Path) -> None:
    """One of two shards has a dead owner: it is free after its lease, by looks in between, and the other one is not."""
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    clock, watch, freed_at_s = RoughClock(), LeaseWatch(), list[float]()
    for place in (dead, alive):
        place.mkdir()
        sign(Disk(), place, owner_at(1, machine="0badcafe", host="node17"))

    def never(_delay_s: float) -> None:
        pytest.fail("it waited")

    for second in range(45):
        if second % LEASE_INTERVAL_S == 0:
            show_life(Disk(), alive, at=START)
        for place in (dead, alive):
            try:
                lock = RunLock(Disk(), place, clock=clock, machine=NetworkMachine(), wait=never, watch=watch)
            except RunLockedError:
                continue
            lock.release()
            assert place == dead
            freed_at_s.append(clock.waited_s)
        clock.waited_s += 1

    assert freed_at_s[0] == LEASE_PERIODS * LEASE_INTERVAL_S


def test_looks_that_are_far_apart_count_as_a_moment_each(tmp_path: Path) -> None:
    watch = LeaseWatch()

    found = [watch.look(tmp_path, b"sign", 3600.0 * look) for look in range(18)]

    assert found[:15] == [None] * 15
    assert found[15:] == [False] * 3
    assert watch.look(tmp_path, b"another sign", 1e6) is True


def test_network_filesystem_is_told_of(place: Path) -> None:
    said: list[str] = []

    enter(place, RoughClock(), said=said)

    assert "network filesystem (nfs4)" in said[0]


def test_note_that_cannot_be_read_keeps_nobody_out(place: Path) -> None:
    for text in ("", "{", "[]", "{}", '{"pid": "1"}'):
        (place / ".owner.json").write_text(text)
        enter(place, RoughClock())


def test_note_that_has_become_somebody_elses_is_not_taken_away(place: Path) -> None:
    mine, other = owner_at(os.getpid()), owner_at(1)
    sign(Disk(), place, mine)
    sign(Disk(), place, other)

    sign_off(Disk(), place, mine)
    assert read_owner(Disk(), place) == other

    sign_off(Disk(), place, other)
    assert list(place.iterdir()) == []


def test_signs_of_life_come_at_their_interval_whatever_the_wall_clock_does(place: Path) -> None:
    clock = RoughClock()
    lock = RunLock(Disk(), place, clock=clock)
    counts = []
    for _ in range(25):
        clock.waited_s += 1
        lock.show_life_if_due()
        counts.append(len(signs_of_life(Disk(), place).splitlines()))
    lock.sign_off()
    lock.release()

    assert counts == [1] * 9 + [2] * 10 + [3] * 6


def test_last_sign_of_life_bears_its_time(place: Path) -> None:
    assert last_sign_of_life(Disk(), place) is None
    sign(Disk(), place, owner_at(1))
    show_life(Disk(), place, at="2025-01-01T00:00:10.000Z")

    assert last_sign_of_life(Disk(), place) == "2025-01-01T00:00:10.000Z"


def test_process_of_another_machine_is_neither_alive_nor_dead() -> None:
    assert is_alive(owner_at(os.getpid()), Machine()) is True
    assert is_alive(owner_at(os.getpid(), machine="0badcafe"), Machine()) is None


@pytest.mark.ci
def test_owner_whose_start_is_not_known_is_alive_while_its_number_is(sleeper: subprocess.Popen[bytes]) -> None:
    """An earlier version wrote no start where the system does not say one; nor may this one learn it."""

    class Silent(Machine):
        def process_start(self, pid: int) -> str | None:
            return None if super().process_start(pid) is None else ""

    unknown, known = owner_at(sleeper.pid, process_start=""), owner_at(sleeper.pid)
    assert is_alive(unknown, Machine()) is True
    assert is_alive(known, Silent()) is True

    sleeper.kill()
    sleeper.wait()
    assert is_alive(unknown, Machine()) is False
    assert is_alive(known, Silent()) is False
