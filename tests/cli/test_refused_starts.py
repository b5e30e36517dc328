"""A start that is refused leaves the directory as it was: no name more, no byte changed."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from mac_runner.cli.process import Exit
from mac_runner.store import Disk, System
from mac_runner.store.testing import Free, RunLock
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, discussion
from tests.cli.test_odd_files import tree
from tests.cli.test_starting import NOWHERE, openai
from tests.patience import ended
from tests.sim.behaviour import Say, failure
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer


@pytest.fixture
def half_played(lab: Lab, at_once: AtOnce) -> Lab:
    """A run directory in which one of two conversations has been played, and one is left; beside it a grid likewise."""
    with in_a_thread(OpenaiServer()) as server:
        at_once(lab.write(discussion(openai(server.url, "stub"))), "--out", "run", "--limit", "1", "--quiet")
        at_once(lab.write(grid(openai(server.url, "stub"))), "--out", "many", "--limit", "1", "--quiet")
    assert json.loads((lab.path / "run" / "summary.json").read_text())
    return lab


def grid(model: JsonObject) -> JsonObject:
    return discussion(model, experiment_metadata={"experiment_name": "many"}, _grid={"sweep": {"seed": [1, 2]}})


@pytest.mark.ci
def test_start_refused_by_an_engine_or_for_a_key_leaves_everything_as_it_was(half_played: Lab, at_once: AtOnce) -> None:
    lab, wrong = half_played, list[str]()
    with in_a_thread(OpenaiServer()) as server:
        causes: dict[str, JsonObject] = {
            "an engine that is not there": openai(NOWHERE, "stub"),
            "a model that the engine does not have": openai(server.url, "mistyped"),
            "a key that is not set": {
                "backend": "openai",
                "openai_config": {"model": "stub", "base_urls": [server.url], "api_key_env": "NO_SUCH_KEY"},
            },
            "a setting that the engine does not have": {**openai(server.url, "stub"), "record_tokens": True},
        }
        for cause, model in causes.items():
            for make, out in ((discussion, "run"), (grid, "many"), (discussion, "new"), (grid, "new")):
                name = lab.write(make(model), "refused.yaml")
                for times in range(2):
                    before = tree(lab.path)
                    told = at_once(name, "--out", out, "--quiet")
                    if told.returncode not in {Exit.BAD_INPUT, Exit.INTERRUPTED} or not told.stderr:
                        wrong.append(f"{cause}, {out}: {told.returncode} {told.stderr}")
                    if (after := tree(lab.path)) != before:
                        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
                        wrong.append(f"{cause}, {out}, start {times}: {sorted(changed)}")

    assert not wrong, "\n".join(wrong)


def test_retry_refused_by_an_engine_leaves_the_failed_conversation_as_it_was(lab: Lab, at_once: AtOnce) -> None:
    with in_a_thread(
        OpenaiServer(script=lambda received: failure(400, "no") if received.number == 2 else Say("So be it."))
    ) as server:
        assert at_once(lab.write(discussion(openai(server.url, "stub"))), "--out", "run").returncode == Exit.FAILURES
    before = tree(lab.path)

    told = at_once("retry", "run", "--quiet")

    assert told.returncode == Exit.INTERRUPTED, told.stderr
    assert tree(lab.path) == before


def test_start_refused_for_want_of_room_or_by_a_full_disk_leaves_everything_as_it_was(
    half_played: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = half_played
    with in_a_thread(OpenaiServer()) as server:
        file = lab.write(discussion(openai(server.url, "stub")))
        before = tree(lab.path)
        monkeypatch.setattr(System, "free", lambda _self, _path: Free(size_bytes=10, files=None, block_bytes=4096))
        for out in ("run", "new/place"):
            told = at_once(file, "--out", out, "--quiet")

            assert told.returncode == Exit.STORAGE_FAILED
            assert "are missing" in told.stderr
            assert tree(lab.path) == before


@pytest.mark.ci
@pytest.mark.parametrize("size_bytes_max", [10, 150, 500])
def test_start_on_a_disk_that_takes_no_more_leaves_everything_as_it_was(finished: Lab, size_bytes_max: int) -> None:
    before = tree(finished.path)
    process = finished.start(
        "small.yaml",
        "--set",
        "conversation_config.conversations=3",
        preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes_max, size_bytes_max)),
    )

    assert ended(process)[0] == Exit.STORAGE_FAILED
    assert tree(finished.path) == before


def test_start_refused_because_a_run_is_at_it_leaves_everything_as_it_was(finished: Lab, at_once: AtOnce) -> None:
    for out in ("runs/small", "new"):
        directory = finished.path / out
        directory.mkdir(exist_ok=True)
        lock = RunLock(Disk(), directory)
        try:
            before = tree(finished.path)
            told = at_once("small.yaml", "--out", out, "--set", "conversation_config.conversations=3")

            assert told.returncode == Exit.IN_USE
            assert "by this process" in told.stderr
            assert tree(finished.path) == before
        finally:
            lock.sign_off()
            lock.release()


def test_start_that_was_killed_is_taken_over_by_the_next(lab: Lab, at_once: AtOnce) -> None:
    """Whatever a start on trial keeps under temporary names is swept by the next start."""
    with in_a_thread(OpenaiServer()) as server:
        file = lab.write(discussion(openai(server.url, "stub")))
        at_once(file, "--out", "run", "--limit", "1", "--quiet")
        (lab.path / "run" / ".tmp-00000000-1-0123456789ab").write_text("kept")
        at_once(file, "--out", "run", "--quiet")

    assert not list(Path(lab.path / "run").rglob(".tmp-*"))
    assert Disk().names(lab.path / "run" / "journal") == ["000001.jsonl", "000002.jsonl"]
