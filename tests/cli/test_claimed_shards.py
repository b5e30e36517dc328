"""`--shard auto/N`: what a worker plays, what it leaves for others, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from syrupy.assertion import SnapshotAssertion

import mac_runner
from mac_runner.cli.process import Exit
from mac_runner.errors import ConfigError, StoreError
from mac_runner.store import merge
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, experiment, refusals, scripted
from tests.faults.test_claimed_shards import same_results
from tests.patience import ended

AUTO = ("--shard", "auto/3", "--out", "shared", "--quiet")


def talks(conversations: int = 6, **more: JsonValue) -> JsonObject:
    """An experiment of short discussions."""
    return discussion(scripted("discussant", capacity=4), "small", conversations=conversations, max_rounds=1, **more)


@pytest.fixture
def shared(lab: Lab, at_once: AtOnce) -> RunDir:
    """A directory in which one worker has played three shards and merged them, beside a single run."""
    file = lab.write(talks())
    assert at_once(file, "--out", "single", "--quiet").returncode == Exit.OK
    process = at_once(file, *AUTO)
    assert process.returncode == Exit.OK, process.stderr
    return RunDir(path=lab.path / "shared")


def test_worker_alone_plays_all_shards_and_merges_them(lab: Lab, shared: RunDir) -> None:
    same_results(shared, RunDir(path=lab.path / "single"))
    assert [path.name for path in sorted((shared.path / "shards").iterdir())] == ["1-of-3", "2-of-3", "3-of-3"]
    assert not [*shared.path.rglob(".owner.json")]
    lab.verified(shared.path)
    models, single = shared.summary["models"], RunDir(path=lab.path / "single").summary["models"]
    assert isinstance(models, dict)
    assert isinstance(single, dict)
    # What the engines did is accounted to shards, all of it and once.
    assert _requests(models) == _requests(single)
    assert shared.summary["merged_runs"] == 3
    assert len(shared.events("EVENT_RUN_START")) == 1


def test_merged_directory_has_nothing_to_run_and_says_so(shared: RunDir, at_once: AtOnce) -> None:
    before = shared.hashes()

    again = at_once("small.yaml", *AUTO[:-1])
    ordinary = at_once("small.yaml", "--out", "shared")

    assert (again.returncode, ordinary.returncode) == (Exit.OK, Exit.OK)
    assert "shared: all 6 conversations" in again.stderr
    assert "nothing to run" in ordinary.stderr
    assert shared.hashes() == before


def test_merged_directory_is_extended_without_shards(shared: RunDir, at_once: AtOnce) -> None:
    more = ("--set", "conversation_config.conversations=8")

    refused = at_once("small.yaml", *AUTO, *more)

    assert refused.returncode == Exit.BAD_INPUT
    assert "6 conversations, and 8" in refused.stderr
    assert "--out DIR`" in refused.stderr
    assert at_once("small.yaml", "--out", "shared", "--quiet", *more).returncode == Exit.OK
    assert shared.statuses == {"finished": 8}


def test_other_input_is_refused_with_what_to_do_and_changes_nothing(
    shared: RunDir, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    before = shared.hashes()
    asked = (
        *("--shard auto/4 --out shared", "--shard auto/3 --out shared --seed 12", "--shard auto/3 --out single"),
        *("--shard auto/3", *(f"--shard {shard} --out shared" for shard in ("auto/0", "auto/1001", "any/3"))),
    )

    told = refusals(at_once, (f"small.yaml {each}" for each in asked))
    assert re.sub(r"[0-9a-f]{32}", "DIGEST", told) == snapshot
    assert shared.hashes() == before


def test_directory_with_something_else_is_refused_and_stays(lab: Lab, at_once: AtOnce) -> None:
    (lab.path / "shared").mkdir()
    (lab.path / "shared" / "thesis.tex").touch()

    refused = at_once(lab.write(talks()), *AUTO)

    assert refused.returncode == Exit.BAD_INPUT
    assert "holds 'thesis.tex'" in refused.stderr
    assert [path.name for path in (lab.path / "shared").iterdir()] == ["thesis.tex"]


def test_unmerged_directory_is_no_place_for_a_run_of_one_process(lab: Lab, at_once: AtOnce, shared: RunDir) -> None:
    for name in ("experiment.yaml", "task_manifest.json"):
        (shared.path / name).unlink()

    refused = at_once("small.yaml", "--out", "shared")

    assert refused.returncode == Exit.BAD_INPUT
    assert "`--shard auto/3`" in refused.stderr


def test_verbs_over_unmerged_shards_say_what_has_not_begun_and_retry_is_refused(
    lab: Lab, at_once: AtOnce, shared: RunDir
) -> None:
    unmerge(shared.path)
    shutil.rmtree(shared.path / "shards" / "2-of-3")
    before = shared.hashes()

    verified, retried = at_once("verify", "shared"), at_once("retry", "shared")

    assert verified.stdout.startswith("3 shards ")
    assert (verified.returncode, retried.returncode) == (Exit.OK, Exit.BAD_INPUT)
    assert "`--shard auto/3`" in retried.stderr
    assert shared.hashes() == before

    # Workers start their engines before they claim a shard.
    shutil.rmtree(shared.path / "shards")
    status, checked = at_once("status", "shared"), at_once("verify", "shared")

    assert status.returncode == Exit.OK, status.stderr
    assert "6 not begun, of 6" in status.stdout
    assert "1 ended" in status.stdout
    assert checked.returncode == Exit.BAD_INPUT
    assert "none has begun" in checked.stderr


@pytest.mark.ci
def test_merge_that_broke_off_anywhere_is_done_again(
    lab: Lab, at_once: AtOnce, shared: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_settings: object) -> NoReturn:
        raise StoreError("cannot write: no space left on device")

    for step in ("_copy_transcripts", "_copy_journals", "_copy_events", "write_manifest", "write_summary"):
        unmerge(shared.path)
        with monkeypatch.context() as broken:
            broken.setattr(merge, step, refuse)
            assert at_once("small.yaml", *AUTO).returncode == Exit.STORAGE_FAILED, step
        # An engine that is not needed is not started: nothing is left to play.
        sessions = [*(shared.path / "workers").iterdir()]
        assert at_once("small.yaml", *AUTO).returncode == Exit.OK, step
        assert [*(shared.path / "workers").iterdir()] == sessions
        same_results(shared, RunDir(path=lab.path / "single"))
        lab.verified(shared.path)


def test_workers_with_other_runtime_settings_work_on_one_directory(lab: Lab, at_once: AtOnce, shared: RunDir) -> None:
    unmerge(shared.path)
    shutil.rmtree(shared.path / "shards" / "2-of-3")

    process = at_once("small.yaml", *AUTO, "--set", "model_definitions.m.scripted_config.capacity=2")

    assert process.returncode == Exit.OK, process.stderr
    same_results(shared, RunDir(path=lab.path / "single"))
    # Shards that are complete are not opened again for the settings.
    assert [len([*path.iterdir()]) for path in sorted(shared.path.glob("shards/*/journal"))] == [1, 1, 1]


def test_more_shards_than_conversations_leave_the_rest_out(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talks(conversations=2))

    assert at_once(file, "--shard", "auto/8", "--out", "shared", "--quiet").returncode == Exit.OK

    assert RunDir(path=lab.path / "shared").statuses == {"finished": 2}
    assert len([*(lab.path / "shared" / "shards").iterdir()]) == 2


@pytest.mark.ci
def test_grid_of_claimed_shards_equals_a_grid_of_one_process(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talks(conversations=4, _grid={"sweep": {"seed": [1, 2]}}))
    assert at_once(file, "--out", "single", "--quiet").returncode == Exit.OK

    process = at_once(file, "--shard", "auto/2", "--out", "shared", "--quiet")

    assert process.returncode == Exit.OK, process.stderr
    slugs = [path.name for path in sorted((lab.path / "single").iterdir()) if (path / "experiment.yaml").exists()]
    assert len(slugs) == 2
    for slug in slugs:
        same_results(RunDir(path=lab.path / "shared" / slug), RunDir(path=lab.path / "single" / slug))
    together, alone = (json.loads((lab.path / name / "summary.json").read_text()) for name in ("shared", "single"))
    assert _requests(together["models"]) == _requests(alone["models"])
    assert together["conversations"] == alone["conversations"]
    assert at_once("verify", "shared").returncode == Exit.OK
    again = at_once(file, "--shard", "auto/2", "--out", "shared")
    assert (again.returncode, "nothing to run" in again.stderr) == (Exit.OK, True)
    other = at_once(file, "--shard", "auto/2", "--out", "shared", "--set", "_grid.sweep.seed=[1, 2, 3]")
    assert other.returncode == Exit.BAD_INPUT
    assert "play the same" in other.stderr


def test_dry_run_counts_what_is_in_the_shards(lab: Lab, at_once: AtOnce, shared: RunDir) -> None:
    unmerge(shared.path)
    shutil.rmtree(shared.path / "shards" / "2-of-3")
    before = shared.hashes()

    process = at_once("small.yaml", *AUTO, "--dry-run")

    assert "shared, shard auto/3" in process.stdout
    assert "6 asked for: 4" in process.stdout
    assert shared.hashes() == before


@pytest.mark.ci
def test_worker_stopped_by_sigterm_leaves_with_its_shards_free_and_the_next_one_ends_the_run(
    lab: Lab, at_once: AtOnce
) -> None:
    file, out = lab.write(talks(conversations=24)), lab.path / "shared"
    first = lab.start_held(12, file, "--shard", "auto/6", "--out", "shared", "--quiet")

    first.send_signal(signal.SIGTERM)
    code, _, words = ended(first)

    assert code == Exit.INTERRUPTED, words
    assert not [*out.rglob(".owner.json")]
    status = at_once("status", "shared")
    assert "1 ended" in status.stdout
    assert "0 claimed" in status.stdout
    assert at_once(file, "--shard", "auto/6", "--out", "shared", "--quiet").returncode == Exit.OK
    assert RunDir(path=out).statuses == {"finished": 24}
    lab.verified(out)


def test_run_in_python_claims_shards_too(tmp_path: Path) -> None:
    plan = experiment(conversations=2)

    found = mac_runner.run(plan, shard="auto/2", out=tmp_path / "shared", progress=False)

    assert found.summary["conversations"] == {"planned": 2, "finished": 2, "failed": 0}
    with pytest.raises(ConfigError, match="needs --out"):
        mac_runner.run(plan, shard="auto/2", progress=False)


def unmerge(directory: Path) -> None:
    """Bring a directory back to where every shard is complete, and none is merged."""
    for path in directory.iterdir():
        if path.is_dir() and path.name not in {"shards", "workers"}:
            shutil.rmtree(path)
        elif path.is_file() and path.name != "shards.json":
            path.unlink()


def _requests(models: JsonValue) -> dict[str, JsonValue]:
    assert isinstance(models, dict)
    return {name: model["requests"] for name, model in models.items() if isinstance(model, dict)}
