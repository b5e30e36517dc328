"""Many processes in one run directory: with a lock that holds one of them works, without it nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mac_runner.store import read_run, verify_run
from tests.store import player

pytestmark = pytest.mark.ci

CROWD = Path(__file__).with_name("crowd.py")
CROWDS = [4, pytest.param(8, marks=pytest.mark.nightly)]


@contextmanager
def crowd(mode: str, run_dir: Path, n: int, people: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes, all of them ready to begin at a word."""
    command = [sys.executable, str(CROWD), mode, str(run_dir), str(n)]
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
    assert "repeated" not in read_run(run_dir).accounting


@pytest.mark.parametrize("people", CROWDS)
def test_broken_lock_loses_and_duplicates_nothing_and_counts_what_was_done_twice(run_dir: Path, people: int) -> None:
    n = 40
    with crowd("lied-to", run_dir, n, people) as processes:
        assert [heard(process) for process in processes] == ["inside"] * people
        for process in processes:
            tell(process)
        played = sum(int(heard(process).removeprefix("played ")) for process in processes)
        assert [process.wait() for process in processes] == [0] * people

    check(run_dir, n)
    repeated = read_run(run_dir).accounting["repeated"]
    assert isinstance(repeated, dict)
    assert repeated["conversations"] == played - n > 0
    told = [event for event in events(run_dir) if event["event"] == "EVENT_WORK_REPEATED"]
    assert len(told) == repeated["conversations"]
    assert sum(int(event["replies"]) for event in told) == repeated["replies"]
    with player.open_toy(run_dir, n) as run:
        run.write_summary({})
    check(run_dir, n)
    assert player.surveyed(run_dir, n).is_complete


def check(run_dir: Path, n: int) -> None:
    report = verify_run(run_dir, rebuild=player.rebuild)
    assert report.findings == ()
    assert (report.attempted, report.acknowledged) == (n, n)
    rows = [json.loads(line) for line in (run_dir / "toy_index.jsonl").read_bytes().splitlines()]
    assert [row["index"] for row in rows] == list(range(n))
    answered = {(event["task"], event["turn"]) for event in events(run_dir) if event["event"] == "EVENT_INFER_DONE"}
    assert len(answered) == n * player.TURNS
    assert not list(run_dir.rglob(".tmp-*"))


def events(run_dir: Path) -> list[dict[str, str | int]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines() if line]
