"""Workers of one run directory, whatever befalls them: what comes out is what one run leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

import mac_runner
from mac_runner.store.testing import LEASES
from tests.cli.lab import RunDir, experiment, scripted
from tests.store.conftest import tree

CONVERSATIONS = 3


def play(out: Path, shard: str | None = None) -> RunDir:
    """The run directory of the experiment, once it is played."""
    config = experiment(conversations=CONVERSATIONS, models={"m": scripted()})
    mac_runner.run(config, out=out, shard=shard, progress=False)
    return RunDir(path=out)


@pytest.mark.parametrize("lost", ["small_index.jsonl", "task_manifest.json", "summary.json"])
def test_workers_end_a_run_that_was_cut_off_when_all_conversations_had_ended(tmp_path: Path, lost: str) -> None:
    """Nobody had leases there: it was played by one process."""
    single = play(tmp_path / "run")
    whole = tree(single.path)
    (single.path / lost).unlink()

    play(tmp_path / "run", "auto/2")

    assert {*tree(single.path)} - {*whole} <= {"journal/000002.jsonl"}
    assert tree(single.path)["small_index.jsonl"][1] == whole["small_index.jsonl"][1]
    assert RunDir(path=single.path).statuses == {"finished": CONVERSATIONS}
    assert not (single.path / LEASES).exists()
