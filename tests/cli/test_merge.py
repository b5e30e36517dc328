"""Shards run by processes of their own and merged: the same results, events and tables as one run."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, experiment

CONVERSATIONS = 3
ACCOUNTING = ("sessions", "merged_runs", "parts", "wall_s", "played_s", "turns_per_s", "conversations_per_s")


@pytest.mark.ci
def test_merged_shards_equal_a_single_run(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    for shard in ("1/2", "2/2"):
        assert at_once(file, "--shard", shard).returncode == 0
    assert at_once(file, "--out", "single").returncode == 0

    process = at_once("merge", "whole", "runs/small.shard-1-of-2", "runs/small.shard-2-of-2")

    assert process.returncode == 0, process.stderr
    assert "3 of 3 conversations" in process.stderr
    assert "over 2 merged runs" in process.stdout
    whole, single = RunDir(path=lab.path / "whole"), RunDir(path=lab.path / "single")
    assert whole.transcripts == single.transcripts
    assert whole.statuses == single.statuses
    assert _told(whole) == _told(single)
    assert _results(whole.summary) == _results(single.summary)
    lab.verified(whole.path)


@pytest.mark.ci
def test_missing_shard_is_named_and_the_rest_is_run_in_place(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    at_once(file, "--shard", "1/2")

    process = at_once("merge", "whole", "runs/small.shard-1-of-2")

    assert process.returncode == 0
    assert "them: shard 2/2" in process.stderr
    assert "FILE --out whole" in process.stderr
    assert at_once(file, "--out", "whole").returncode == 0
    assert RunDir(path=lab.path / "whole").statuses == {"finished": 3}
    lab.verified(lab.path / "whole")
    assert at_once(file, "--out", "whole", "--dry-run").stdout.count("3 finished") == 1


def test_merge_of_other_experiments_is_bad_input(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=1))
    at_once(file, "--out", "a")
    at_once(file, "--out", "b", "--seed", "12")

    process = at_once("merge", "whole", "a", "b")

    assert process.returncode == 2
    assert "seed: 11 in a, 12" in process.stderr


def _told(run: RunDir) -> Counter[tuple[str, str, str]]:
    """The events of conversations without their times."""
    names = ("EVENT_INFER_START", "EVENT_INFER_DONE", "EVENT_CONVERSATION_DONE")
    return Counter(
        (name, str(event["task"]), str(event.get("turn", event.get("turns"))))
        for name in names
        for event in run.events(name)
    )


def _results(summary: JsonObject) -> JsonObject:
    """A summary without what depends on time and on processes."""
    models = summary["models"]
    assert isinstance(models, dict)
    requests = {name: model["requests"] for name, model in models.items() if isinstance(model, dict)}
    return {key: value for key, value in summary.items() if key not in ACCOUNTING} | {"models": dict(requests)}


@pytest.mark.parametrize("content", ["{}\n", "experiment_metadata: {experiment_name: small}\n", "[]\n", "x: [1\n", ""])
def test_run_whose_file_holds_no_experiment_is_bad_input_and_nothing_is_written(
    finished: Lab, at_once: AtOnce, content: str
) -> None:
    (finished.path / "runs/small/experiment.yaml").write_text(content)

    process = at_once("merge", "whole", "runs/small", "--quiet")

    assert process.returncode == 2
    assert "small/experiment.yaml" in process.stderr
    assert "put back" in process.stderr
    assert "pydantic" not in process.stderr
    assert not (finished.path / "whole").exists()


def test_quiet_merge_says_what_is_missing(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    at_once(file, "--shard", "1/2", "--quiet")
    at_once(file, "--shard", "2/2", "--limit", "1", "--quiet")

    process = at_once("merge", "whole", "runs/small.shard-1-of-2", "--quiet")

    assert (process.returncode, process.stdout) == (0, "")
    assert "them: shard 2/2" in process.stderr
    assert "FILE --out whole" in process.stderr


@pytest.mark.ci
def test_lost_result_is_refused_also_where_the_merge_is_quiet(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    for shard in ("1/2", "2/2"):
        at_once(file, "--shard", shard, "--quiet")
    victim = lab.path / "runs/small.shard-2-of-2"
    shutil.rmtree(victim / "journal")
    (victim / "transcripts/small-000001.json").unlink()
    sources = ("runs/small.shard-1-of-2", "runs/small.shard-2-of-2")

    process = at_once("merge", "whole", *sources, "--quiet")

    assert process.returncode == 2
    assert "by the index" in process.stderr
    command = "mac-run FILE --shard 2/2 --out runs/small.shard-2-of-2"
    assert command in process.stderr
    assert at_once("repair", "runs/small.shard-2-of-2", "--quiet").returncode == 1
    assert at_once(*command.replace("FILE", file).split()[1:], "--quiet").returncode == 0
    assert at_once("merge", "whole", *sources, "--quiet").returncode == 0
    lab.verified(lab.path / "whole")
