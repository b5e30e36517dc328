"""Directories of a grid: named by their values for ever, opened when they are wanted and closed when they are over."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from mac_runner.cli.process import Exit
from mac_runner.errors import StoreError
from mac_runner.store import Disk, RunRecorder, open_run, read_grid
from mac_runner.store.testing import THREAD_NAME, RunLock
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, experiment, scripted


def directories(lab: Lab) -> set[str]:
    return {path.stem for path in (lab.path / "runs" / "small").glob("experiments/*.yaml")}


def grid(*rounds: int, retries: int = 2) -> JsonObject:
    sweep: JsonObject = {"game.calendar.vote_rounds": [*rounds]}
    return experiment(conversations=1, _grid={"sweep": sweep}, retry_config={"max_retries": retries})


@pytest.mark.ci
def test_directories_are_named_by_values_and_a_changed_experiment_gets_another_name(lab: Lab, at_once: AtOnce) -> None:
    at_once(grid(1, 2), "--quiet").done()
    assert directories(lab) == {"vote_rounds-1", "vote_rounds-2"}
    before = {path: path.stat().st_mtime_ns for path in lab.run_dir().path.glob("vote_rounds-?/transcripts/*")}

    at_once(grid(3, 2, retries=5), "--quiet").done()
    added = directories(lab) - {"vote_rounds-1", "vote_rounds-2"}
    assert sorted(name.partition("_")[0] + name[4:13] for name in added) == ["vote_rounds-2", "vote_rounds-3"]
    assert {len(name) for name in added} == {len("vote_rounds-3"), len("vote_rounds-2_123456")}
    assert {path: path.stat().st_mtime_ns for path in before} == before

    at_once(grid(1, 2, 3), "--quiet").done()
    entries = yaml.safe_load((lab.run_dir().path / "grid.yaml").read_text())["combinations"]
    assert [entry["slug"] for entry in entries if entry["asked"]][:2] == ["vote_rounds-1", "vote_rounds-2"]
    assert len({entry["slug"] for entry in entries}) == len(entries) == 5
    lab.verified(lab.run_dir().path)


@pytest.fixture
def many(lab: Lab) -> Path:
    """The directory of a grid of twelve combinations, each of one short discussion, not yet run."""
    seeds: JsonObject = {"sweep": {"seed": [*range(12)]}}
    lab.write(discussion(scripted("discussant", capacity=64), "small", conversations=1, max_rounds=1, _grid=seeds))
    return lab.run_dir().path


def test_what_has_not_begun_is_told_wherever_conversations_are_counted(many: Path, at_once: AtOnce) -> None:
    at_once("small.yaml --quiet").done()
    assert "to go           0:00:00" in at_once(f"status {many}").done().stdout
    for slug in ("seed-3", "seed-5"):
        (many / "experiments" / f"{slug}.yaml").unlink()

    told = at_once(f"status {many}").done().stdout
    assert "10 of 12 complete, 2 not begun: their conversations are not counted above" in told
    assert json.loads(at_once(f"status {many} --json").done().stdout)["not_begun_combinations"] == 2
    told = at_once(f"report {many}").done().stderr
    assert "10 of 10 conversations have ended in the 10 combinations that have begun, of 12; nothing is at work" in told
    assert "Complete" not in told


def statuses(directory: Path) -> list[dict[str, int]]:
    record = read_grid(directory)
    assert record is not None
    return [RunDir(path=directory / entry.slug).statuses for entry in record.entries]


@pytest.mark.ci
def test_no_more_than_so_many_are_open_at_once_and_all_get_done(
    many: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[int] = []

    def counting(*args: object, **settings: object) -> RunRecorder:
        run = open_run(*args, **settings)  # type: ignore[arg-type]
        writers.append(sum(thread.name == THREAD_NAME for thread in threading.enumerate()))
        return run

    monkeypatch.setattr("mac_runner.runs.stream.open_run", counting)
    monkeypatch.setattr("mac_runner.descriptors.GRID_RUNS_OPEN_MAX", 2)
    # Slow enough that all of them would be at work together if they might.
    slow = "model_definitions.m.scripted_config.latency_ms=1200"
    fewer = "_grid.sweep.seed=[0, 1, 2, 3, 4, 5, 6, 7]"
    at_once("small.yaml --quiet --set", slow, "--set", fewer).done()

    assert statuses(many) == [{"finished": 1}] * 8
    # The grid has a writer too, and one run is opened ahead.
    assert len(writers) == 8
    assert max(writers) <= 2 + 1 + 1


@pytest.mark.ci
def test_every_run_is_closed_with_its_summary_and_no_thread_is_left(many: Path, at_once: AtOnce) -> None:
    at_once("small.yaml --quiet").done()

    assert len(list(many.glob("summaries/*.json"))) == 12
    assert not list(many.rglob(".owner.json"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mac-runner")]


@pytest.mark.ci
def test_a_run_that_cannot_be_closed_stops_the_grid_and_the_next_one_goes_on(
    many: Path, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: RunRecorder, summary: JsonObject) -> NoReturn:
        raise StoreError("cannot write summary.json: no space left on device (ENOSPC)")

    with monkeypatch.context() as broken:
        broken.setattr(RunRecorder, "write_summary", refuse)
        broken.setattr("mac_runner.descriptors.GRID_RUNS_OPEN_MAX", 2)
        at_once("small.yaml --quiet").ends(Exit.STORAGE_FAILED, "no space left")

    assert not list(many.rglob(".owner.json"))
    at_once("small.yaml --quiet").done()
    assert statuses(many) == [{"finished": 1}] * 12


@pytest.mark.ci
def test_a_combination_of_which_a_worker_has_a_shard_stops_the_grid_by_name(many: Path, at_once: AtOnce) -> None:
    at_once("small.yaml --quiet").done()
    record = read_grid(many)
    assert record is not None
    slug = record.entries[5].slug
    place = many / "leases" / slug / "1-of-1"
    lock = RunLock(Disk(), place)
    at_once("small.yaml --quiet --set conversation_config.conversations=2").ends(Exit.IN_USE, slug, "by this process")
    lock.sign_off()
    lock.release()

    at_once("small.yaml --quiet --set conversation_config.conversations=2").done()
    assert statuses(many) == [{"finished": 2}] * 12
