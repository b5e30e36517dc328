"""Exported tables: their figures are those of the summary; they follow a run, survive a kill, and are never stale."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pandas
import pyarrow.parquet
import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.data import writing
from mac_runner.environments.discussion.testing import ANSWER_COLUMNS, answer_rows
from mac_runner.environments.town_of_salem.testing import Game
from mac_runner.errors import ConfigError, StoreError
from mac_runner.runs.testing import Exported, ExportRequest, export, exported, followed, open_run
from mac_runner.store import Disk
from mac_runner.store.testing import StagedFile
from mac_runner.types import JsonObject, Reply, Turn
from tests.cli.lab import ROOT, AtOnce, Lab, discussion, ending, experiment, refusals, scripted
from tests.patience import wait_for

ROLES: tuple[JsonObject, ...] = (
    {"agent_id": "ann", "persona": "=economist", "demographics": {"age": "old"}},
    {"agent_id": "bob", "if_as_human": True},
    {"agent_id": "cat"},
    {"agent_id": "mod", "role": "moderator"},
    {
        "agent_id": "jud",
        "role": "judge",
        "role_specific_config": {"speak_after_within_round": ["ann", "bob", "cat"]},
    },
)


def talk(*, conversations: int = 12, **more: Any) -> JsonObject:
    """A discussion of all roles but one, whose replies are often without use."""
    section: JsonObject = {
        "questions": ["q.jsonl"],
        "max_rounds": 3,
        "identity_reveal_config": {"persona": True},
    }
    more = {"discussion": section, "retry_config": {"max_retries": 0}, **more}
    return discussion(scripted("clumsy"), "small", conversations=conversations, agents=ROLES, **more)


def answers_of(at_once: AtOnce, lab: Lab, *flags: str) -> pandas.DataFrame:
    at_once("export runs/small --to tables", *flags).done()
    return pandas.read_csv(lab.path / "tables" / "answers.csv")


def assert_sums_to(answers: pandas.DataFrame, summary: Any) -> None:
    """Every figure of the summary that the table has the cases of, counted again."""
    report = summary["discussions"]
    given = answers[(answers.role == "participant") & (answers.status == "finished")]
    last = given[given["round"] == given.groupby("task_id")["round"].transform("max")]
    for kind, cases in (("first", given[given["round"] == 1]), ("final", last)):
        accuracy = report["accuracy"][kind]
        right = cases.right.astype(bool)
        assert (accuracy["n"], accuracy["count"]) == (len(cases), right.sum())
        assert accuracy["rate"] == round(right.mean(), 4)
        for context, name in (("ambig", "ambiguous"), ("disambig", "disambiguated")):
            scored = report["bias"][kind]["all"][name]
            kinds = cases[cases.context == context].kind.value_counts()
            for each in ("biased", "counter", "unknown"):
                assert scored[each] == kinds.get(each, 0)
            assert scored["unscored"] == kinds.get("pass", 0) + kinds.get("refusal", 0)
    for number, rate in report["accuracy_by_round"].items():
        assert rate["count"] == given[given["round"] == int(number)].right.sum()
    finished = answers[answers.status == "finished"]
    assert report["passes"] == finished.kind.isin(["pass", "refusal"]).sum()
    assert summary["tokens"]["prompt"] == answers.prompt_tokens.sum()
    assert summary["tokens"]["completion"] == answers.completion_tokens.sum()
    assert summary["turns"] == answers.attempts.sum()
    verdicts = answers[(answers.role == "judge") & answers.answer.notna()]
    assert report["roles"]["jud"]["verdicts"] == len(verdicts)


def test_the_figures_of_the_summary_follow_from_the_table(asked: Lab, at_once: AtOnce) -> None:
    at_once(talk(), "--quiet").done()

    answers = answers_of(at_once, asked)

    assert list(answers.columns) == list(ANSWER_COLUMNS)
    assert set(answers.kind) >= {"biased", "counter", "unknown", "pass", "statement"}
    assert_sums_to(answers, asked.run_dir().summary)
    ann = answers[answers.agent == "ann"].iloc[0]
    assert (ann.persona, ann.demographics) == ("'=economist", '{"age": "old"}')
    assert "old =economist" in ann.own_identity
    shown = answers[answers.agent == "ann"].groupby("round").shown_identity.first()
    assert "=economist" in shown[2]
    assert pandas.isna(shown.get(1))
    assert set(answers[answers.agent == "bob"].if_as_human) == {True}


def test_a_run_that_is_not_done_yet_has_the_rows_of_what_has_ended(asked: Lab, at_once: AtOnce) -> None:
    at_once(talk(), "--limit", "5", "--quiet").done()

    process = at_once("export runs/small --to tables")

    answers = pandas.read_csv(asked.path / "tables" / "answers.csv")
    process.done(f"{len(answers)} rows of 5 of ")
    assert sorted(set(answers["index"])) == [0, 1, 2, 3, 4]
    assert_sums_to(answers, asked.run_dir().summary)


def test_a_recorded_run_keeps_its_tokens_and_what_failed_discussions_said() -> None:
    run = ROOT / "tests" / "golden" / "commands" / "runs" / "failed"
    experiment = yaml.safe_load((run / "experiment.yaml").read_text())
    transcript = json.loads((run / "transcripts" / "failed-000000.json").read_text())

    whole = [*answer_rows(transcript, experiment)]
    # As it would be, had it failed over the last turn.
    transcript["record"]["events"].pop()
    cut = [*answer_rows({**transcript, "status": "failed", "outcome": None}, experiment)]

    assert sum(int(row["prompt_tokens"] or 0) for row in whole) == transcript["counts"]["tokens"]["prompt"] > 0
    assert [(row["kind"], row["status"]) for row in whole] == [("open", "finished")] * 2
    assert [(row["kind"], row["status"]) for row in cut] == [("open", "failed"), ("unanswered", "failed")]


def test_a_grid_is_one_table_with_its_values_first(asked: Lab, at_once: AtOnce) -> None:
    at_once(talk(conversations=2, _grid={"sweep": {"discussion.max_rounds": [2, 3]}}), "--quiet").done()

    answers = answers_of(at_once, asked)

    assert list(answers.columns[:2]) == ["combination", "discussion.max_rounds"]
    assert list(answers.columns[2:]) == list(ANSWER_COLUMNS)
    for combination, rows in answers.groupby("combination"):
        assert_sums_to(rows, asked.run_dir(f"small/{combination}").summary)
        assert set(rows["discussion.max_rounds"]) == {rows["round"].max()}


def test_parquet_has_the_same_cells_each_of_its_type(asked: Lab, at_once: AtOnce) -> None:
    at_once(talk(conversations=3), "--quiet").done()
    answers_of(at_once, asked, "--format", "csv", "--format", "parquet", "--tables", "answers")

    table = pyarrow.parquet.read_table(asked.path / "tables" / "answers" / "part-000000.parquet")

    types = {"text": "string", "integer": "int64", "number": "double", "truth": "bool"}
    assert {one.name: str(one.type) for one in table.schema} == {
        name: types[column.kind] for name, column in ANSWER_COLUMNS.items()
    }
    with (asked.path / "tables" / "answers.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    told = [{name: _as_text(cell) for name, cell in row.items()} for row in table.to_pylist()]
    assert [{name: cell.removeprefix("'") for name, cell in row.items()} for row in rows] == told


def _as_text(cell: object) -> str:
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if cell is None else str(cell)


def test_what_cannot_be_written_is_refused_before_anything_is(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    (finished.path / "full").mkdir()
    (finished.path / "full" / "conversations.csv").write_text("mine")
    flags = (
        *("tables --tables answers", "small.yaml", "full"),
        *(f"tables {more}" for more in ("--follow", "--jobs 2", "--format parquet --tables turns,nope")),
    )
    with finished.unchanged():
        assert refusals(at_once, [f"export runs/small --to {more}" for more in flags]) == snapshot


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_transcript_that_is_damaged_stops_the_export_and_is_exported_once_it_is_repaired(
    finished: Lab, at_once: AtOnce, form: str
) -> None:
    path = finished.run_dir().path / "transcripts" / "small-000001.json"
    path.write_text(path.read_text().replace("Night", "Knight", 1))
    command = f"export runs/small --to tables --format {form}"

    at_once(command).refused("small-000001.json is not what was acknowledged")
    assert not [*finished.path.glob(f"tables/**/*.{form}")]
    at_once("verify runs/small --repair").done()
    at_once(command).done("2 of 2")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two conversations."""
    monkeypatch.setattr(writing, "PART_CONVERSATIONS", 2)


def asked_for(lab: Lab, to: str, **more: Any) -> ExportRequest:
    return ExportRequest(
        directories=[lab.run_dir().path], to=lab.path / to, **{"formats": ("parquet", "jsonl"), **more}
    )


def files(directory: Path) -> dict[str, bytes]:
    """Every exported file by its name."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def rows_of(query: str) -> list[Any]:
    """What DuckDB answers."""
    found = duckdb.sql(query)
    assert found is not None
    return found.fetchall()


@pytest.fixture(scope="module")
def straight(played: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an export of that run writes that nothing disturbs, in parts of two conversations."""
    lab = Lab(path=tmp_path_factory.mktemp("straight"))
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "PART_CONVERSATIONS", 2)
        made(lab, "tables")
    return files(lab.path / "tables")


def table_of(directory: Path, table: str, part: int = 0) -> list[dict[str, Any]]:
    """The rows of a part."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(directory / table / f"part-{part:06d}.parquet").to_pylist()
    return rows


def made(lab: Lab, to: str, **more: Any) -> list[Exported]:
    return [*exported(asked_for(lab, to, **more))]


def written(made: list[Exported], table: str = "turns") -> int:
    return sum(each.written for each in made if each.path.parent.name == table)


@pytest.mark.ci
def test_the_sums_of_the_tables_are_those_of_the_summary(lab: Lab, at_once: AtOnce) -> None:
    models = {"good": scripted(), "odd": scripted("random")}
    at_once(experiment(conversations=4, models=models), "--quiet").done()

    at_once("export runs/small --to tables --format parquet").done()

    summary = lab.run_dir().summary
    tables = lab.path / "tables"

    def asked(text: str) -> Any:
        places = {name: f"'{tables}/{name}/*.parquet'" for name in os.listdir(tables)}
        (row,) = rows_of(text.format(**places))
        return row

    tokens = summary["tokens"]
    assert asked("select count(*), sum(prompt_tokens), sum(completion_tokens) from {turns}") == (
        summary["turns"],
        tokens["prompt"],
        tokens["completion"],
    )
    assert asked("select sum(turns), sum(corrections), sum(defaults), sum(prompt_tokens) from {conversations}") == (
        summary["turns"],
        summary["corrections"],
        summary["defaults"],
        tokens["prompt"],
    )
    assert asked("select count(*) from {turns} where receipt = 'correction'") == (summary["corrections"],)
    wins = Counter(
        player["faction"] for row in lab.run_dir().index for player in row["outcome"]["players"] if player["won"]
    )
    assert dict(rows_of(f"select faction, count(*) from '{tables}/agents/*.parquet' where won group by all")) == wins
    schema = json.loads((tables / "_schema.json").read_text())
    for name, declared in schema["tables"].items():
        if (tables / name).exists():
            (part,) = (tables / name).iterdir()
            assert pyarrow.parquet.read_schema(part).names == [*declared["columns"]]


@pytest.mark.ci
def test_a_second_export_writes_only_what_has_changed(lab: Lab, at_once: AtOnce, small_parts: None) -> None:
    lab.write(experiment(conversations=5))
    at_once("small.yaml --limit 3 --quiet").done()

    first = made(lab, "tables")
    again = made(lab, "tables")
    before = files(lab.path / "tables")
    at_once("small.yaml --quiet").done()
    more = made(lab, "tables")
    straight = made(lab, "straight")

    assert (written(first), written(again), written(more), written(straight)) == (4, 0, 4, 6)
    after = files(lab.path / "tables")
    assert after == files(lab.path / "straight")
    assert {name for name, data in before.items() if after[name] == data} >= {
        "turns/part-000000.parquet",
        "turns/part-000000.jsonl",
    }
    assert [each.rows for each in more] == [each.rows for each in straight]


class FullDisk(Disk):
    """A disk that has no room for the replies."""

    def stage(self, path: Path) -> StagedFile:
        staged = super().stage(path)
        if path.name == "turns.csv":
            patch.object(staged, "append", side_effect=StoreError("no room")).start()
        return staged


def test_a_csv_export_that_found_the_disk_full_can_be_made_again(finished: Lab) -> None:
    with pytest.raises(StoreError):
        made(finished, "tables", formats=("csv",), disk=FullDisk())

    assert files(finished.path / "tables") == {}
    assert made(finished, "tables", formats=("csv",))


def test_a_part_that_was_removed_or_altered_is_written_again(finished: Lab) -> None:
    assert made(finished, "tables")
    whole = files(finished.path / "tables")
    (finished.path / "tables/turns/part-000000.parquet").unlink()
    (finished.path / "tables/agents/part-000000.jsonl").write_text("")
    (finished.path / "tables/events/part-000000.parquet").write_text("altered")

    again = made(finished, "tables")

    assert [written(again, table) for table in ("turns", "agents", "events", "claims")] == [1, 1, 1, 0]
    assert files(finished.path / "tables") == whole


@pytest.mark.ci
@pytest.mark.parametrize("moment", [0, 11, 23])
def test_an_export_that_is_cut_short_leaves_no_half_file_and_the_next_one_goes_on(
    finished: Lab, small_parts: None, straight: dict[str, bytes], moment: int
) -> None:
    class CutShort(Disk):
        left = moment

        def rename(self, source: Path, target: Path) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().rename(source, target)

    with pytest.raises(KeyboardInterrupt):
        made(finished, "tables", disk=CutShort())
    for name, data in files(finished.path / "tables").items():
        assert not Path(name).name.startswith(".tmp-")
        if name.endswith(".parquet"):
            pyarrow.parquet.read_table(finished.path / "tables" / name)
        elif name.endswith(".jsonl"):
            assert data.endswith(b"\n") or not data

    made(finished, "tables")

    assert files(finished.path / "tables") == straight


@pytest.mark.ci
def test_an_export_that_is_killed_is_swept_up_by_the_next(finished: Lab) -> None:
    place = finished.path / "tables" / "turns"
    command = ("export", "runs/small", "--to", "tables", "--format", "parquet")
    process = finished.start(*command)
    wait_for(lambda: place.exists() and any(place.iterdir()), "the first file")
    process.send_signal(signal.SIGKILL)
    process.wait()

    finished.done(*command, "--jobs", "2")

    made(finished, "straight", formats=("parquet",))
    assert files(finished.path / "tables") == files(finished.path / "straight")


@pytest.mark.ci
def test_a_conversation_that_is_played_again_replaces_its_rows(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    lab.write(experiment(conversations=4))
    receive = Game.receive

    def refuse(self: Game, turn: Turn, reply: Reply) -> Any:
        if turn.round == 3 and self._task.index == 2:
            raise RuntimeError("not today")
        return receive(self, turn, reply)

    with monkeypatch.context() as patch:
        patch.setattr(Game, "receive", refuse)
        at_once("small.yaml --quiet").ends(Exit.FAILURES)
    failed = made(lab, "tables")
    assert open_run(lab.run_dir().path).conversation(2).status == "failed"

    at_once("retry runs/small --quiet").done()
    retried = made(lab, "tables")

    assert (written(failed), written(retried)) == (4, 2)
    made(lab, "straight")
    assert files(lab.path / "tables") == files(lab.path / "straight")
    rows = [row for part in (0, 1) for row in table_of(lab.path / "tables", "conversations", part)]
    assert [row["attempts"] for row in rows] == [1, 1, 2, 1]


@pytest.mark.ci
def test_a_followed_export_equals_one_that_is_made_at_the_end(lab: Lab, at_once: AtOnce, small_parts: None) -> None:
    lab.write(experiment(conversations=7))
    at_once("small.yaml --quiet --limit 3").done()
    running = lab.start_held(1, "small.yaml", "--quiet")

    def sleep(_delay_s: float) -> None:
        running.send_signal(signal.SIGTERM)
        ending(running).ends(Exit.INTERRUPTED)
        at_once("small.yaml --quiet").done()

    looked = [*followed(asked_for(lab, "tables"), sleep)]

    assert [*dict.fromkeys(each.ended for each in looked)] == [3, 7]
    made(lab, "straight")
    assert files(lab.path / "tables") == files(lab.path / "straight")


@pytest.mark.ci
def test_following_a_run_that_has_ended_ends_and_an_interrupt_ends_it_cleanly(finished: Lab, at_once: AtOnce) -> None:
    at_once("export runs/small --to tables --format parquet --follow").done("2 of 2 conversations")

    running = finished.start_held(1, finished.write(experiment("slow")), "--quiet")
    following = finished.start("export", "runs/slow", "--to", "slow", "--format", "parquet", "--follow")
    wait_for(lambda: (finished.path / "slow").exists(), "the first look")
    following.send_signal(signal.SIGINT)

    assert len(ending(following).ends(Exit.INTERRUPTED).stderr.splitlines()) == 1
    running.send_signal(signal.SIGKILL)


def test_a_directory_with_the_export_of_another_run_is_refused(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment("other", conversations=1))
    at_once("other.yaml --quiet").done()
    export(finished.run_dir().path, finished.path / "tables")

    with pytest.raises(ConfigError, match=r"export of \['small'\]"):
        export(finished.run_dir("other").path, finished.path / "tables")


@pytest.mark.ci
def test_a_grid_is_exported_with_a_part_for_each_combination(lab: Lab, at_once: AtOnce) -> None:
    at_once(experiment(conversations=1, _grid={"sweep": {"game.lobby": ["classic-7", "classic-10"]}}), "--quiet").done()

    made = export(lab.path / "runs" / "small", lab.path / "tables", tables=["agents"], format=["parquet"])

    names = [path.name for path in sorted((lab.path / "tables" / "agents").iterdir())]
    assert [name.split("-part")[0].endswith("000000.parquet") for name in names] == [True, True]
    assert all(name.startswith("part-lobby-classic-") for name in names)
    table = pyarrow.parquet.read_table(lab.path / "tables" / "agents")
    assert Counter(table.column("game.lobby").to_pylist()) == {"classic-7": 7, "classic-10": 10}
    assert made[0].rows == table.num_rows == 17
    declared = json.loads((lab.path / "tables" / "_schema.json").read_text())["tables"]["agents"]["key"]
    for one in (table, open_run(lab.path / "runs" / "small").agents(["won"])):
        assert one.schema.metadata[b"mac_runner.key"].decode().split(",") == declared
