"""Tokens of a real run, read in Python, in tables, in forks, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner import RunDirectoryError, fork, open_run
from mac_runner.cli.maintenance import verify
from mac_runner.cli.process import Exit
from mac_runner.store.testing import entry, objects
from tests.trainers.learner import learning, play

pytestmark = pytest.mark.ci


def test_a_fork_of_a_run_with_tokens_keeps_those_of_the_replies_that_it_keeps(tmp_path: Path) -> None:
    parent = play(tmp_path, learning(conversations=1))
    (whole,) = parent
    spoken = {turn.key for turn in whole.turns if turn.model == "learner"}

    assert whole.traces.keys() == spoken
    assert not any("trace" in entry(turn, "reply", dict) for turn in objects(whole.transcript, "turns"))
    rows = parent.table("traces").to_pylist()
    assert {row["turn"]: tuple(row["prompt_ids"]) for row in rows if row["prompt_ids"]} == {
        key: trace.prompt_ids for key, trace in whole.traces.items() if trace.prompt_ids
    }
    fork(tmp_path / "small", 0, turn="#20", draws=1, out=tmp_path / "forks", progress=False)
    (branch,) = open_run(tmp_path / "forks")
    kept = {turn.key for turn in whole.turns[:20]} & spoken
    assert kept
    assert {key: branch.traces[key] for key in kept} == {key: whole.traces[key] for key in kept}
    assert branch.traces.keys() == {turn.key for turn in branch.turns if turn.model == "learner"}
    assert verify(tmp_path / "forks") == Exit.OK


def test_verify_says_of_a_conversation_without_its_tokens_what_is_missing_and_what_cannot_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = play(tmp_path, learning(conversations=1)), tmp_path / "small"
    (place / "traces" / "small-000000.parquet").unlink()

    assert verify(place) == Exit.FAILURES
    out = capsys.readouterr().out
    assert "mismatched 0, without tokens 1" in out
    assert "traces/small-000000.parquet" in out
    assert f"`mac-run repair {place}`" in out
    assert "rollouts, verifiers" in out
    for name in ("rollouts", "verifiers", "traces"):
        with pytest.raises(RunDirectoryError, match=r"small-000000\.parquet"):
            run.table(name)
    with pytest.raises(RunDirectoryError, match=r"small-000000\.parquet"):
        fork(place, 0, turn="#20", out=tmp_path / "forks", progress=False)
    for name in ("conversations", "trl-sft", "trl-kto", "verl-sft", "openai-chat"):
        assert run.table(name).num_rows
