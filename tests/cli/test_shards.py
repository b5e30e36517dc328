"""Shards: run each by itself and merged, or claimed by workers of one run; either equals a run of one process."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest
from syrupy.assertion import SnapshotAssertion

import mac_runner
from mac_runner.cli.process import Exit
from mac_runner.errors import ConfigError, StoreError
from mac_runner.store import Disk, session
from mac_runner.store.testing import RunLock
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, discussion, experiment, refusals, scripted
from tests.faults.test_kills import same_results
from tests.workers import play_shards

ACCOUNTING = ("sessions", "merged_runs", "parts", "wall_s", "played_s", "turns_per_s", "conversations_per_s")

FIRST, SECOND = "runs/small.shard-1-of-2", "runs/small.shard-2-of-2"

MERGE_BOTH = f"merge whole {FIRST} {SECOND}"


@pytest.fixture
def parts(lab: Lab, at_once: AtOnce) -> Lab:
    """A working directory with both shards of three games."""
    for shard in ("1/2", "2/2"):
        at_once(experiment(conversations=3), "--shard", shard, "--quiet").done()
    return lab


@pytest.mark.ci
def test_merged_shards_equal_a_single_run(parts: Lab, at_once: AtOnce) -> None:
    at_once("small.yaml --out single").done()

    at_once(MERGE_BOTH).done(told="3 of 3 conversations")
    at_once("show whole --tables").done("over 2 merged runs")

    whole, single = parts.dir("whole"), parts.dir("single")
    assert whole.transcripts == single.transcripts
    assert whole.statuses == single.statuses
    assert _told(whole) == _told(single)
    assert _results(whole.summary) == _results(single.summary)
    parts.verified(whole.path)


@pytest.mark.ci
def test_missing_shard_is_named_also_quietly_and_the_rest_is_run_in_place(parts: Lab, at_once: AtOnce) -> None:
    for quiet in ("--quiet", ""):
        merged = at_once(f"merge whole {FIRST} {quiet}").done(told=("them: shard 2/2", "FILE --out whole"))
        assert ("merged 1 run into whole: " in merged.stderr) == (quiet == "")
        assert bool(merged.stdout) == (not quiet)
        if quiet:
            shutil.rmtree(parts.path / "whole")
    at_once("small.yaml --out whole").done()

    assert parts.dir("whole").statuses == {"finished": 3}
    parts.verified(parts.path / "whole")
    assert at_once("small.yaml --out whole --dry-run").stdout.count("3 finished") == 1


def test_merge_of_other_experiments_is_bad_input(at_once: AtOnce) -> None:
    at_once(experiment(conversations=1), "--out", "a").done()
    at_once("small.yaml --out b --seed 12").done()

    at_once("merge whole a b").refused("seed: 11 in a, 12")


@pytest.mark.ci
def test_lost_result_is_refused_also_where_the_merge_is_quiet(parts: Lab, at_once: AtOnce) -> None:
    shutil.rmtree(parts.path / SECOND / "journal")
    (parts.path / SECOND / "transcripts/small-000001.json").unlink()
    command = f"mac-run FILE --shard 2/2 --out {SECOND}"

    at_once(f"{MERGE_BOTH} --quiet").refused("by the manifest or the index", command)

    at_once(f"verify {SECOND} --repair --quiet").ends(Exit.FAILURES)
    at_once(command.replace("FILE", "small.yaml").removeprefix("mac-run "), "--quiet").done()
    at_once(f"{MERGE_BOTH} --quiet").done()
    parts.verified(parts.path / "whole")


def _told(run: RunDir) -> Counter[tuple[str, str, str]]:
    """The events of conversations without their times."""
    names = ("EVENT_INFER_START", "EVENT_INFER_DONE", "EVENT_CONVERSATION_DONE")
    return Counter(
        (name, event["task"], str(event.get("turn", event.get("turns"))))
        for name in names
        for event in run.events(name)
    )


def _results(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what depends on time and on processes."""
    requests = {name: model["requests"] for name, model in summary["models"].items()}
    return {key: value for key, value in summary.items() if key not in ACCOUNTING} | {"models": requests}


AUTO = "small.yaml --shard auto/3 --out shared"


def talks(conversations: int = 6, **more: Any) -> JsonObject:
    """An experiment of short discussions."""
    return discussion(scripted("discussant", capacity=4), "small", conversations=conversations, max_rounds=1, **more)


@pytest.fixture
def shared(lab: Lab, at_once: AtOnce) -> RunDir:
    """A run whose three shards one worker has played to the end, beside a single run."""
    at_once(talks(), "--out", "single", "--quiet").done()
    at_once(f"{AUTO} --quiet").done()
    return lab.dir("shared")


@pytest.fixture
def unfinished(lab: Lab) -> RunDir:
    """One that a worker has left with two of three shards complete, and one not begun."""
    lab.write(talks())
    return RunDir(path=play_shards(lab.path / "small.yaml", lab.path / "shared", 3, 1, 3))


def test_run_of_workers_equals_a_run_of_one_process(lab: Lab, shared: RunDir) -> None:
    single = lab.dir("single")
    same_results(shared, single)
    assert _results(shared.summary) == _results(single.summary)
    assert {path.name for path in shared.path.iterdir()} - {path.name for path in single.path.iterdir()} == {
        *("leases", "workers")
    }
    assert not [*shared.path.rglob(".owner.json")]
    assert not [*shared.path.rglob(".tmp-*")]
    lab.verified(shared.path)


def test_nothing_is_left_to_run_after_the_end_and_more_is_played_with_or_without_workers(
    shared: RunDir, at_once: AtOnce
) -> None:
    with shared.unchanged():
        at_once(AUTO).done(told="shared: all 6 conversations")
        at_once("small.yaml --out shared").done(told="nothing to run")

    for number, more in ((8, "--out shared"), (10, "--out shared --shard auto/2")):
        at_once(f"small.yaml --set conversation_config.conversations={number} {more}").done()
        assert shared.statuses == {"finished": number}


def test_other_input_is_refused_with_what_to_do_and_changes_nothing(
    lab: Lab, unfinished: RunDir, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    at_once("small.yaml --shard 1/2 --out part").done()
    asked = (
        *("--shard auto/4 --out shared", "--shard auto/3 --out shared --seed 12", "--shard auto/3 --out part"),
        "--shard auto/3 --out shared --limit 4",
        *("--shard auto/3", *(f"--shard {shard} --out shared" for shard in ("auto/0", "auto/1001", "any/3", "1/3"))),
    )
    with lab.unchanged():
        told = refusals(at_once, (f"small.yaml {each}" for each in asked))

    assert re.sub(r"[0-9a-f]{32}", "DIGEST", told) == snapshot


@pytest.mark.ci
def test_verbs_take_what_workers_have_left_as_a_run_that_was_stopped(unfinished: RunDir, at_once: AtOnce) -> None:
    with unfinished.unchanged():
        at_once("status shared").done("4 finished, 0 failed, 0 half done, 2 not begun, of 6", "1 not begun, of 3")
        at_once("verify shared").done("acknowledged 4")
        at_once("show shared").done(told="2 of 6 have not ended")
        at_once("retry shared").done(told="nothing to retry")
        at_once(f"{AUTO} --dry-run").done("shared, shard auto/3", "6 asked for: 4")

    at_once("verify shared --repair").done()
    at_once(AUTO).done()
    assert unfinished.statuses == {"finished": 6}


@pytest.mark.ci
def test_run_goes_over_from_workers_to_one_process_and_back_at_any_moment(
    lab: Lab, at_once: AtOnce, unfinished: RunDir
) -> None:
    at_once("small.yaml --out single").done()
    one, workers, other = "small.yaml --out shared", AUTO, "small.yaml --out half --shard auto/3"

    at_once(one).done()
    at_once(f"{one.replace('shared', 'half')} --limit 3").done()
    at_once(other).done()

    for name in ("shared", "half"):
        same_results(lab.dir(name), lab.dir("single"))
        lab.verified(lab.path / name)
        with lab.dir(name).unchanged():
            at_once(workers.replace("shared", name)).done(told="all 6 conversations")


@pytest.mark.ci
def test_end_of_the_run_that_broke_off_anywhere_is_done_again(
    lab: Lab, at_once: AtOnce, unfinished: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_settings: object) -> NoReturn:
        raise StoreError("cannot write: no space left on device")

    at_once("small.yaml --out single").done()
    before = None
    for step in ("write_index", "write_summary", "write_manifest", "end_leases"):
        with monkeypatch.context() as broken:
            broken.setattr(session, step, refuse)
            at_once(AUTO).ends(Exit.STORAGE_FAILED)
        # An engine that is not needed is not started: nothing is left to play.
        workers = [*(unfinished.path / "workers").iterdir()]
        assert before in (None, workers)
        before = workers
    at_once(AUTO).done()
    same_results(unfinished, lab.dir("single"))
    lab.verified(unfinished.path)


def test_workers_with_other_runtime_settings_play_one_run(at_once: AtOnce, unfinished: RunDir) -> None:
    at_once(f"{AUTO} --set model_definitions.m.scripted_config.capacity=2").done()

    assert unfinished.statuses == {"finished": 6}
    # Shards that are complete are not opened again for the settings: one session each, and the one that ends the run.
    assert len([*(unfinished.path / "journal").iterdir()]) == 4


def test_more_shards_than_conversations_leave_the_rest_out(lab: Lab, at_once: AtOnce) -> None:
    at_once(talks(conversations=2), "--shard", "auto/8", "--out", "shared", "--quiet").done()

    assert lab.dir("shared").statuses == {"finished": 2}
    assert len([*(lab.path / "shared" / "leases").iterdir()]) == 2


@pytest.mark.ci
def test_grid_of_claimed_shards_equals_a_grid_of_one_process(lab: Lab, at_once: AtOnce) -> None:
    lab.write(talks(conversations=4, _grid={"sweep": {"seed": [1, 2]}}))
    at_once("small.yaml --out single --quiet").done()
    command = "small.yaml --shard auto/2 --out shared"

    at_once(command).done()

    shared, single = lab.dir("shared"), lab.dir("single")
    for slug in ("seed-1", "seed-2"):
        same_results(lab.dir(f"shared/{slug}"), lab.dir(f"single/{slug}"))
    assert _results(shared.summary)["models"] == _results(single.summary)["models"]
    assert shared.summary["conversations"] == single.summary["conversations"]
    at_once("verify shared").done()
    at_once(command).done(told="nothing to run")
    more = "_grid.sweep.seed=[1, 2, 3]"
    at_once(f"{command} --set", more).refused("play the same", "`mac-run FILE --out DIR` plays more combinations")
    at_once("small.yaml --out shared --set", more).done()


@pytest.mark.ci
def test_repair_of_a_grid_is_refused_while_a_worker_is_at_work_in_it(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talks(conversations=2, _grid={"sweep": {"seed": [1, 2]}}))
    shared = play_shards(lab.path / file, lab.path / "shared", 2, 1)
    min((shared / "transcripts").iterdir()).write_bytes(b"{}")
    worker = RunLock(Disk(), shared / "leases/seed-1/2-of-2")

    at_once("verify shared --repair").ends(Exit.IN_USE, "leases/seed-1/2-of-2 is being run")

    worker.sign_off()
    worker.release()
    at_once("verify shared --repair").done()


@pytest.mark.ci
def test_worker_waits_for_the_tables_of_a_grid_that_another_process_writes(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write(talks(conversations=2, _grid={"sweep": {"seed": [1, 2]}}))
    command, table = "small.yaml --shard auto/2 --out shared", lab.path / "shared/grid.csv"
    at_once(command).done()
    before = table.read_bytes()
    table.unlink()
    other = RunLock(Disk(), table.parent)

    def let_go(_s: float) -> None:
        other.sign_off()
        other.release()

    monkeypatch.setattr("mac_runner.runs.play.pause", let_go)
    at_once(command).done(told="waiting for the end of the run")

    assert table.read_bytes() == before


@pytest.mark.ci
def test_worker_stopped_by_sigterm_leaves_with_its_shards_free_and_the_next_one_ends_the_run(
    lab: Lab, at_once: AtOnce
) -> None:
    file, out, flags = lab.write(talks(conversations=24)), lab.dir("shared"), ("--shard=auto/6", "--out=shared")
    lab.stop_held(12, file, *flags, "--quiet")

    assert not [*out.path.rglob(".owner.json")]
    at_once("status shared").done("1 ended", "0 claimed")
    at_once(file, *flags).done()
    assert out.statuses == {"finished": 24}
    lab.verified(out.path)


def test_run_in_python_claims_shards_too(tmp_path: Path) -> None:
    plan = experiment(conversations=2)

    found = mac_runner.run(plan, shard="auto/2", out=tmp_path / "shared", progress=False)

    assert found.summary["conversations"] == {"planned": 2, "finished": 2, "failed": 0}
    with pytest.raises(ConfigError, match="needs --out"):
        mac_runner.run(plan, shard="auto/2", progress=False)
