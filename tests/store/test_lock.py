"""Who works in a run directory: whom the lock lets in, whom the note of an owner keeps out, and many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from mac_runner.errors import RunLockedError
from mac_runner.store import Disk
from mac_runner.store.testing import (
    LEASE_INTERVAL_S,
    LEASE_PERIODS,
    LeaseWatch,
    Machine,
    Owner,
    RunLock,
    filesystem_at,
    is_alive,
    is_network,
    last_sign_of_life,
    read_owner,
    show_life,
    sign,
    sign_off,
    signs_of_life,
    this_process,
)
from tests import patience
from tests.kit import stale_files
from tests.sim.leaks import leak_in
from tests.store import player


def test_note_and_error_have_no_word_of_the_command_line_but_files(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, file = "Zq7Wv9Jp3Gf5Ty2Ub8Nd", str(run_dir.parent)
    words = [f"--mirror=s3://ID:{secret}@bucket", "--set", f"m.api_key={secret}", secret, file]
    monkeypatch.setattr("sys.argv", ["mac-run", *words])
    with player.open_toy(run_dir, 1):
        note = (run_dir / ".owner.json").read_text()
        with pytest.raises(RunLockedError) as caught:
            player.open_toy(run_dir, 1)

    assert f"(mac-run {file})" in str(caught.value)
    assert [leak for text in (note, str(caught.value)) if (leak := leak_in(text, secret, 4))] == []


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

    def wait(self, delay_s: float) -> None:
        self.waited_s += delay_s

    async def sleep(self, delay_s: float) -> None:
        self.wait(delay_s)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def owner_at(pid: int, **changes: str) -> Owner:
    start = Machine().process_start(pid) or "0"
    return replace(this_process(Machine(), started_at=START), pid=pid, **{"process_start": start, **changes})


def owned_elsewhere(tmp_path: Path) -> RoughClock:
    """Somebody on another machine has signed; the clock of whoever comes now."""
    sign(Disk(), tmp_path, owner_at(1, machine="0badcafe", host="node17"))
    return RoughClock()


def enter(
    tmp_path: Path, clock: RoughClock, wait: Callable[[float], None] | None = None, said: list[str] | None = None
) -> None:
    heard: list[str] = [] if said is None else said
    RunLock(
        Disk(), tmp_path, clock=clock, machine=NetworkMachine(), wait=wait or clock.wait, say=heard.append
    ).release()


@pytest.mark.ci
def test_owner_on_this_machine_is_left_alone_while_it_lives_and_never_waited_for(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """Whatever the lock says; and a number that was given out again is not taken for the owner."""
    clock, owner = RoughClock(), owner_at(sleeper.pid)
    sign(Disk(), tmp_path, owner)
    with pytest.raises(RunLockedError, match=f"pid {sleeper.pid} on .* since {START}"):
        enter(tmp_path, clock)
    sign(Disk(), tmp_path, replace(owner, process_start="1"))
    enter(tmp_path, clock)
    sign(Disk(), tmp_path, owner)
    sleeper.kill()
    sleeper.wait()
    enter(tmp_path, clock)

    assert clock.waited_s == 0


def test_owner_on_another_machine_is_believed_dead_after_three_periods_without_a_sign(tmp_path: Path) -> None:
    clock, said = owned_elsewhere(tmp_path), list[str]()

    enter(tmp_path, clock, said=said)

    assert clock.waited_s == LEASE_PERIODS * LEASE_INTERVAL_S == 30
    assert "pid 1 on node17" in said[1]


def test_owner_on_another_machine_that_shows_life_is_left_alone(tmp_path: Path) -> None:
    clock = owned_elsewhere(tmp_path)

    def wait(delay_s: float) -> None:
        clock.wait(delay_s)
        if clock.waited_s == 29:
            show_life(Disk(), tmp_path, at=START)

    with pytest.raises(RunLockedError, match="pid 1 on node17"):
        enter(tmp_path, clock, wait)

    assert clock.waited_s == 29


def test_leap_of_the_clock_is_no_proof_of_death(tmp_path: Path) -> None:
    """The machine slept for an hour, and so may its network have: the owner is given all of its time."""
    clock, looks = owned_elsewhere(tmp_path), list[float]()

    def wait(delay_s: float) -> None:
        looks.append(delay_s)
        clock.wait(delay_s if len(looks) != 5 else 3600.0)

    enter(tmp_path, clock, wait)

    assert len(looks) == 29


def test_several_owners_on_other_machines_are_watched_at_once_and_none_is_waited_for(tmp_path: Path) -> None:
    """One of two shards has a dead owner: it is free after its lease, by looks in between, and the other one is not."""
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    clock, watch, freed_at_s = RoughClock(), LeaseWatch(), list[float]()
    for place in (dead, alive):
        place.mkdir()
        owned_elsewhere(place)

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


def test_network_filesystem_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []

    enter(tmp_path, RoughClock(), said=said)

    assert "network filesystem (nfs4)" in said[0]


def test_note_that_cannot_be_read_keeps_nobody_out(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "{}", '{"pid": "1"}'):
        (tmp_path / ".owner.json").write_text(text)
        enter(tmp_path, RoughClock())


def test_note_that_has_become_somebody_elses_is_not_taken_away(tmp_path: Path) -> None:
    mine, other = owner_at(os.getpid()), owner_at(1)
    sign(Disk(), tmp_path, mine)
    sign(Disk(), tmp_path, other)

    sign_off(Disk(), tmp_path, mine)
    assert read_owner(Disk(), tmp_path) == other

    sign_off(Disk(), tmp_path, other)
    assert list(tmp_path.iterdir()) == []


def test_signs_of_life_come_at_their_interval_whatever_the_wall_clock_does(tmp_path: Path) -> None:
    clock = RoughClock()
    lock = RunLock(Disk(), tmp_path, clock=clock)
    counts = []
    for _ in range(25):
        clock.waited_s += 1
        lock.show_life_if_due()
        counts.append(len(signs_of_life(Disk(), tmp_path).splitlines()))
    lock.sign_off()
    lock.release()

    assert counts == [1] * 9 + [2] * 10 + [3] * 6


def test_last_sign_of_life_bears_its_time(tmp_path: Path) -> None:
    assert last_sign_of_life(Disk(), tmp_path) is None
    sign(Disk(), tmp_path, owner_at(1))
    show_life(Disk(), tmp_path, at="2025-01-01T00:00:10.000Z")

    assert last_sign_of_life(Disk(), tmp_path) == "2025-01-01T00:00:10.000Z"


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


def test_filesystem_that_machines_share_is_recognised() -> None:
    for filesystem in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "fuse.sshfs"):
        assert is_network(filesystem), filesystem
    for filesystem in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseless", ""):
        assert not is_network(filesystem), filesystem
    assert filesystem_at([], Path("/x")) == "", "without an account of the mounts"


def test_filesystem_of_a_real_path_is_told(tmp_path: Path) -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("this kernel does not say")
    assert Machine().filesystem(Path("/proc")) == "proc"
    assert Machine().filesystem(tmp_path / "not there yet") != ""


@pytest.mark.ci
def test_process_is_known_by_its_number_and_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    machine = Machine()
    start = machine.process_start(sleeper.pid)
    assert start
    assert machine.process_start(sleeper.pid) == start
    sleeper.kill()
    patience.wait_for_ends([psutil.Process(sleeper.pid)])  # Nobody has heard of it.
    assert machine.process_start(sleeper.pid) is None
    sleeper.wait()

    assert machine.process_start(sleeper.pid) is None
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


CROWDS = [4, pytest.param(8, marks=pytest.mark.nightly)]


@contextmanager
def crowd(mode: str, run_dir: Path, n: int, people: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes, all of them ready to begin at a word."""
    command = [sys.executable, player.__file__, mode, str(run_dir), str(n)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with ExitStack() as ending:
        processes = []
        for _ in range(people):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            ending.enter_context(process)
            ending.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert heard(process) == "ready"
        for process in processes:
            tell(process)
        yield processes


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


@pytest.mark.ci
@pytest.mark.parametrize("people", CROWDS)
def test_one_of_many_works_and_the_others_leave_at_once_naming_it(run_dir: Path, people: int) -> None:
    """The one goes on only when all others have left, so nobody can have waited for it."""
    with crowd("honest", run_dir, 40, people) as processes:
        answers = {process.pid: heard(process) for process in processes}
        (owner,) = (process for process in processes if answers[process.pid] == "inside")
        tell(owner)
        assert heard(owner) == "played 40"
        assert owner.wait() == 0

    refusals = [answer for pid, answer in answers.items() if pid != owner.pid]
    assert len(refusals) == people - 1
    # Who comes before the owner has signed is told so; afterwards everybody learns its name.
    named = [answer for answer in refusals if f"pid {owner.pid} on " in answer]
    assert all("left its name" in answer for answer in refusals if answer not in named)
    check(run_dir, 40)


@pytest.mark.ci
@pytest.mark.parametrize("people", CROWDS)
def test_broken_lock_loses_and_duplicates_nothing(run_dir: Path, people: int) -> None:
    n = 40
    with crowd("lied-to", run_dir, n, people) as processes:
        assert [heard(process) for process in processes] == ["inside"] * people
        for process in processes:
            tell(process)
        played = sum(int(heard(process).removeprefix("played ")) for process in processes)
        assert [process.wait() for process in processes] == [0] * people

    check(run_dir, n)
    assert played > n
    with player.open_toy(run_dir, n) as run:
        run.write_summary({})
    check(run_dir, n)
    assert player.surveyed(run_dir, n).is_complete


def check(run_dir: Path, n: int) -> None:
    report = player.verified(run_dir)
    assert report.findings == ()
    assert stale_files(run_dir) == []
    assert (report.attempted, report.acknowledged) == (n, n)
    rows = [json.loads(line) for line in (run_dir / "toy_index.jsonl").read_bytes().splitlines()]
    assert [row["index"] for row in rows] == list(range(n))
    answered = {(event["task"], event["turn"]) for event in events(run_dir) if event["event"] == "EVENT_INFER_DONE"}
    assert len(answered) == n * player.TURNS
    assert not list(run_dir.rglob(".tmp-*"))


def events(run_dir: Path) -> list[dict[str, str | int]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines() if line]
