"""`open_run`: a run, a grid or several as tables and conversations, with or without tokens, in whatever state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from mac_runner import fork
from mac_runner.cli.checks import Verify
from mac_runner.cli.process import Exit
from mac_runner.data import files
from mac_runner.data.testing import FORMATS
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.runs.testing import open_run
from mac_runner.store import read_run
from mac_runner.store.testing import entry, objects
from tests.cli.lab import ROOT, AtOnce, Lab, environ
from tests.kit import own_game
from tests.trainers.learner import learning, play

COIN = """
from mac_runner import Ask, game


@game(rewards=lambda outcome, agent: {"doubled": 2.0 * (agent in outcome["winners"])})
def coin(table):
    yield Ask(table.agents[0], "Heads or tails?", default="heads")
    return {"winners": list(table.agents)}
"""
GOLDEN = ROOT / "tests" / "golden" / "commands" / "runs"


@pytest.mark.ci
def test_every_table_is_one_of_pandas_polars_and_duckdb(played: Path) -> None:
    run = open_run(played / "runs" / "small")

    agents = run.agents()
    turns = run.turns(columns=["conversation", "agent", "completion_tokens"])

    assert [*turns.column_names] == ["conversation", "agent", "completion_tokens"]
    frame = agents.to_pandas()
    assert len(frame) == 14
    assert set(frame.won) <= {True, False}
    joined = polars.DataFrame(turns).join(polars.DataFrame(agents), on=["conversation", "agent"])
    assert joined.height == turns.num_rows
    found = duckdb.sql("select sum(completion_tokens) from turns join agents using (conversation, agent)")
    summary: Any = run.summary
    assert found is not None
    assert found.fetchall() == [(summary["tokens"]["completion"],)]
    schema: Any = run.schema
    for name in {*run.tables} - {"rollouts", "trl-dpo"}:  # They need tokens, and a fork.
        assert {*schema["tables"][name]["columns"]} >= {*run.table(name).column_names}


@pytest.mark.ci
def test_columns_of_the_index_are_read_without_a_transcript(finished: Lab) -> None:
    path = finished.run_dir().path
    shutil.rmtree(path / "transcripts")

    run = open_run(path)

    assert run.conversations().column("winners").to_pylist()
    with pytest.raises(RunDirectoryError, match=r"small-000000\.json is"):
        run.conversations(columns=["seed"])


def test_a_damaged_transcript_is_named_and_the_others_can_be_read(finished: Lab) -> None:
    path = finished.run_dir().path
    damaged = path / "transcripts" / "small-000001.json"
    damaged.write_text(damaged.read_text().replace("Night", "Knight", 1))
    run = open_run(path)

    with pytest.raises(RunDirectoryError, match=r"small-000001\.json is"):
        run.turns()
    with pytest.raises(RunDirectoryError, match=r"small-000001\.json"):
        _ = run.conversation(1).outcome
    assert run.conversation(0).outcome is not None


def test_a_conversation_has_what_show_prints(finished: Lab, at_once: AtOnce) -> None:
    run = open_run(finished.run_dir().path)
    game = run.conversation(1)
    seat = game.agents[2].name
    turn = next(turn for turn in game.turns if turn.agent == seat)

    assert game.view() == at_once("show runs/small 1").stdout
    assert game.view(seat=seat) == at_once("show runs/small 1 --seat", seat).stdout
    prompt = "".join(f"=== {one.role}\n{one.content}\n" for one in game.prompt(turn.key).messages)
    assert prompt == at_once("show runs/small 1 --prompt", turn.key).stdout
    assert run.conversation("small-000001").task_id == game.task_id
    seen = game.seen(seat)
    assert 0 < len(seen) < len(game.events)
    assert not any("audience" in event for event in seen)
    own = {one.key for one in game.turns if one.agent == seat}
    assert {event["turn"] for event in seen if "turn" in event} <= own
    assert [one.task_id for one in run] == ["small-000000", "small-000001"]
    assert all(not each.report.findings for each in run.verify())
    standing: Any = run.standing()
    assert standing["conversations"]["finished"] == 2


def test_a_wrong_name_is_refused_with_what_there_is(played: Path) -> None:
    place = played / "runs" / "small"
    run = open_run(place)
    wrong: list[tuple[Callable[[], object], str]] = [
        *((partial(run.conversation, name), f"{name}.* 2 of 2 have ended") for name in (7, "nobody", "small-000009")),
        (lambda: run.table("turn"), "there is no table 'turn'; .*did you mean 'turns'"),
        (lambda: run.table("turns", ["agnet"]), "no column 'agnet'; .*did you mean 'agent'"),
        (lambda: run.table("turns", "agent"), r"is one name; give a list: \['agent'\]"),
        (lambda: open_run([place, place / ".." / "small"]), "named twice"),
    ]
    for call, text in wrong:
        with pytest.raises(ConfigError, match=text):
            call()


def test_a_half_done_run_has_its_ended_conversations_and_on_request_the_replies_of_open_ones() -> None:
    contents = read_run(GOLDEN / "killed")
    run = open_run(GOLDEN / "killed")

    ended = run.turns()
    every = run.turns(open=True)

    marked = every.filter(every.column("is_open"))
    assert len(run) == contents.counts.done < contents.counts.planned
    assert marked.num_rows > 0
    assert every.num_rows == ended.num_rows + marked.num_rows
    assert set(marked.column("conversation").to_pylist()).isdisjoint(contents.state.endings)
    assert marked.column("text").null_count == 0


def test_a_grid_and_a_list_of_runs_say_which_run_a_row_is_of() -> None:
    grid = open_run(GOLDEN / "grid")
    several = open_run([GOLDEN / "parts.shard-1-of-2", GOLDEN / "parts.shard-2-of-2"])

    rows = grid.answers()
    slugs = sorted(set(rows.column("combination").to_pylist()))

    assert [*rows.column_names[:2]] == ["combination", "discussion.max_rounds"]
    assert len(slugs) == 2
    assert set(several.conversations().column("run").to_pylist()) == {"parts.shard-1-of-2", "parts.shard-2-of-2"}
    assert grid.conversation(f"{slugs[1]}/0").task_id.startswith("grid-max_rounds-2")
    with pytest.raises(ConfigError, match=r"several runs; .*-1.*/0"):
        grid.conversation(0)
    assert several.conversation(3).task_id == "parts-000003"


def test_prompts_are_those_that_were_sent(played: Path) -> None:
    run = open_run(played / "runs" / "small")

    prompts = run.table("prompts")

    assert prompts.num_rows == run.turns(columns=["turn"]).num_rows
    game, turn = run.conversation(0), prompts.column("turn")[5].as_py()
    told = [{"role": one.role, "content": one.content} for one in game.prompt(turn).messages]
    assert json.loads(prompts.column("messages")[5].as_py()) == told


def test_without_pyarrow_the_extra_is_named(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"pip install .*\[data\]"):
        open_run(played / "runs" / "small").turns()


def test_every_run_that_was_recorded_can_be_read_as_tables() -> None:
    golden = ROOT / "tests" / "golden"
    runs = [path.parent for path in golden.rglob("experiment.yaml")]
    runs += [path.parents[1] / path.stem for path in golden.rglob("experiments/*.yaml")]
    assert len(runs) > 8
    for directory in runs:
        run = open_run(directory)
        # These render prompts again, with the code of the environment.
        for table in {*run.tables} - {"prompts", *FORMATS}:
            read = run.table(table)
            schema: Any = run.schema
            keys = schema["tables"][table]["key"]
            assert set(keys) <= {*read.column_names}, (directory, table)


@pytest.mark.ci
def test_rewards_of_agents_are_those_of_the_environment_or_of_the_outcome(played: Path, lab: Lab) -> None:
    game = json.loads(open_run(played / "runs" / "small").agents(columns=["rewards"]).column("rewards")[0].as_py())
    assert {*game} == {"won", "faction_won", "survived"}
    (lab.path / "coin.py").write_text(COIN)
    out = str(lab.run_dir().path)
    lab.done(lab.write(own_game("./coin.py:coin", conversations=1)), "--quiet")

    for is_trusted, rewards in ((False, {"won": 1.0}), (True, {"doubled": 2.0})):
        table = f"mac_runner.open_run({out!r}, trust={is_trusted}).agents(['rewards'])"
        script = f"import mac_runner; print({table}.column(0)[0])"
        found = subprocess.run(
            [sys.executable, "-c", script], env=environ(), check=True, capture_output=True, text=True
        )
        assert json.loads(found.stdout) == rewards


@pytest.mark.ci
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
    assert Verify(directory=tmp_path / "forks").work() == Exit.OK


@pytest.mark.ci
def test_verify_says_of_a_conversation_without_its_tokens_what_is_missing_and_what_cannot_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = play(tmp_path, learning(conversations=1)), tmp_path / "small"
    (place / "traces" / "small-000000.parquet").unlink()

    assert Verify(directory=place).work() == Exit.FAILURES
    out = capsys.readouterr().out
    assert "mismatched 0, without tokens 1" in out
    assert "traces/small-000000.parquet" in out
    assert f"`mac-run verify {place} --repair`" in out
    assert "rollouts, verifiers" in out
    for name in ("rollouts", "verifiers", "traces"):
        with pytest.raises(RunDirectoryError, match=r"small-000000\.parquet"):
            run.table(name)
    with pytest.raises(RunDirectoryError, match=r"small-000000\.parquet"):
        fork(place, 0, turn="#20", out=tmp_path / "forks", progress=False)
    for name in ("conversations", "trl-sft", "trl-kto", "verl-sft", "openai-chat"):
        assert run.table(name).num_rows
