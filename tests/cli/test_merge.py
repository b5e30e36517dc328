"""Shards run by processes of their own and merged: the same results, events and tables as one run."""

from __future__ import annotations

from collections import Counter

from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir, experiment

CONVERSATIONS = 3
ACCOUNTING = ("sessions", "merged_runs", "parts", "wall_s", "played_s", "turns_per_s", "conversations_per_s")


def test_merged_shards_equal_a_single_run(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    for shard in ("1/2", "2/2"):
        assert at_once(file, "--shard", shard).returncode == 0
    assert at_once(file, "--out", "single").returncode == 0

    process = at_once("merge", "whole", "runs/small.shard-1-of-2", "runs/small.shard-2-of-2")

    assert process.returncode == 0, process.stderr
    assert "3 of 3 conversations have ended" in process.stderr
    assert "added up over 2 merged runs" in process.stdout
    whole, single = RunDir(path=lab.path / "whole"), RunDir(path=lab.path / "single")
    assert whole.transcripts == single.transcripts
    assert whole.statuses == single.statuses
    assert _told(whole) == _told(single)
    assert _results(whole.summary) == _results(single.summary)
    lab.verified(whole.path)


def test_missing_shard_is_named_and_the_rest_is_run_in_place(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment(conversations=CONVERSATIONS))
    at_once(file, "--shard", "1/2")

    process = at_once("merge", "whole", "runs/small.shard-1-of-2")

    assert process.returncode == 0
    assert "not among them: shard 2/2" in process.stderr
    assert "can be run with: mac-run FILE --out whole" in process.stderr
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
    assert "seed: 11 in a, 12 in b" in process.stderr


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
