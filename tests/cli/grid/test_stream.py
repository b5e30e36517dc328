"""Run directories of a grid are opened when they are wanted and closed when they are over, a few at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest

from mac_runner.cli.process import Exit
from mac_runner.errors import StoreError
from mac_runner.store import Disk, Run, open_run, read_grid
from mac_runner.store.testing import THREAD_NAME, RunLock
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, scripted

pytestmark = pytest.mark.ci


@pytest.fixture
def many(lab: Lab) -> Path:
    """The directory of a grid of twelve combinations, each of one short discussion, not yet run."""
    seeds: JsonObject = {"sweep": {"seed": [*range(12)]}}
    lab.write(discussion(scripted("discussant", capacity=64), "small", conversations=1, max_rounds=1, _grid=seeds))
    return lab.run_dir().path


def statuses(directory: Path) -> list[dict[str, int]]:
    record = read_grid(directory)
    assert record is not None
    return [RunDir(path=directory / entry.slug).statuses for entry in record.entries]


def test_no_more_than_so_many_are_open_at_once_and_all_get_done(
    many: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[int] = []

    def counting(*args: object, **settings: object) -> Run:
        run = open_run(*args, **settings)  # type: ignore[arg-type]
        writers.append(sum(thread.name == THREAD_NAME for thread in threading.enumerate()))
        return run

    monkeypatch.setattr("mac_runner.runs.stream.open_run", counting)
    monkeypatch.setattr("mac_runner.descriptors.GRID_RUNS_OPEN_MAX", 2)
    # Slow enough that all of them would be at work together if they might.
    slow = "model_definitions.m.scripted_config.latency_ms=1200"
    fewer = "_grid.sweep.seed=[0, 1, 2, 3, 4, 5, 6, 7]"
    assert at_once("small.yaml", "--quiet", "--set", slow, "--set", fewer).returncode == Exit.OK

    assert statuses(many) == [{"finished": 1}] * 8
    # The grid has a writer too, and one run is opened ahead.
    assert len(writers) == 8
    assert max(writers) <= 2 + 1 + 1


def test_every_run_is_closed_with_its_summary_and_no_thread_is_left(many: Path, at_once: AtOnce) -> None:
    assert at_once("small.yaml", "--quiet").returncode == Exit.OK

    assert len(list(many.glob("*/summary.json"))) == 12
    assert not list(many.rglob(".owner.json"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mac-runner")]


def test_a_run_that_cannot_be_closed_stops_the_grid_and_the_next_one_goes_on(
    many: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Run, summary: JsonObject) -> NoReturn:
        raise StoreError("cannot write summary.json: no space left on device (ENOSPC)")

    with monkeypatch.context() as broken:
        broken.setattr(Run, "write_summary", refuse)
        broken.setattr("mac_runner.descriptors.GRID_RUNS_OPEN_MAX", 2)
        stopped = at_once("small.yaml", "--quiet")

    assert stopped.returncode == Exit.STORAGE_FAILED
    assert "no space left" in stopped.stderr
    assert not list(many.rglob(".owner.json"))
    assert at_once("small.yaml", "--quiet").returncode == Exit.OK
    assert statuses(many) == [{"finished": 1}] * 12


def test_a_combination_that_is_being_run_stops_the_grid_by_name(many: Path, at_once: AtOnce) -> None:
    assert at_once("small.yaml", "--quiet").returncode == Exit.OK
    record = read_grid(many)
    assert record is not None
    slug = record.entries[5].slug
    lock = RunLock(Disk(), many / slug)
    more = at_once("small.yaml", "--quiet", "--set", "conversation_config.conversations=2")
    lock.sign_off()
    lock.release()

    assert more.returncode == Exit.IN_USE
    assert slug in more.stderr
    assert "by this process" in more.stderr
    assert at_once("small.yaml", "--quiet", "--set", "conversation_config.conversations=2").returncode == Exit.OK
    assert statuses(many) == [{"finished": 2}] * 12
