"""The table of answers: what a program of statistics finds in it is what the summary says."""

from __future__ import annotations

import csv
import json

import pandas
import pyarrow.parquet
import pytest
import yaml

from mac_runner.environments.discussion.testing import ANSWER_COLUMNS, answer_rows
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, scripted
from tests.kit import copied

QUESTIONS = ROOT / "experiments" / "questions" / "bbq_200.jsonl"
ROLES: list[JsonValue] = [
    {"agent_id": "ann", "role": "participant", "model": "m", "persona": "=economist", "demographics": {"age": "old"}},
    {"agent_id": "bob", "role": "participant", "model": "m", "if_as_human": True},
    {"agent_id": "cat", "role": "participant", "model": "m"},
    {"agent_id": "mod", "role": "moderator", "model": "m"},
    {
        "agent_id": "jud",
        "role": "judge",
        "model": "m",
        "role_specific_config": {"speak_after_within_round": ["ann", "bob", "cat"]},
    },
]


def experiment(*, conversations: int = 12, **more: JsonValue) -> JsonObject:
    """A discussion of all roles but one, whose replies are often without use."""
    return {
        "experiment_metadata": {"experiment_name": "small"},
        "conversation_config": {"environment": "discussion", "conversations": conversations},
        "discussion": {"questions": ["q.jsonl"], "max_rounds": 3, "identity_reveal_config": {"persona": True}},
        "agent_definitions": [*ROLES],
        "model_definitions": {"m": scripted("clumsy")},
        "retry_config": {"max_retries": 0},
        **more,
    }


@pytest.fixture
def asked(lab: Lab) -> Lab:
    """A working directory with questions in it."""
    copied(QUESTIONS, lab.path / "q.jsonl")
    return lab


def exported(at_once: AtOnce, lab: Lab, run: str = "runs/small", *flags: str) -> pandas.DataFrame:
    process = at_once("export", run, "--to", "tables", *flags)
    assert process.returncode == 0, process.stderr
    return pandas.read_csv(lab.path / "tables" / "answers.csv")


def part(record: object, *path: str) -> JsonObject:
    for key in path:
        assert isinstance(record, dict)
        record = record[key]
    assert isinstance(record, dict)
    return record


def assert_sums_to(answers: pandas.DataFrame, summary: JsonObject) -> None:
    """Every figure of the summary that the table has the cases of, counted again."""
    report = part(summary, "discussions")
    given = answers[(answers.role == "participant") & (answers.status == "finished")]
    last = given[given["round"] == given.groupby("task_id")["round"].transform("max")]
    for kind, cases in (("first", given[given["round"] == 1]), ("final", last)):
        accuracy = part(report, "accuracy", kind)
        right = cases.right.astype(bool)
        assert (accuracy["n"], accuracy["count"]) == (len(cases), right.sum())
        assert accuracy["rate"] == round(right.mean(), 4)
        for context, name in (("ambig", "ambiguous"), ("disambig", "disambiguated")):
            scored = part(report, "bias", kind, "all", name)
            kinds = cases[cases.context == context].kind.value_counts()
            for each in ("biased", "counter", "unknown"):
                assert scored[each] == kinds.get(each, 0)
            assert scored["unscored"] == kinds.get("pass", 0) + kinds.get("refusal", 0)
    for number, rate in part(report, "accuracy_by_round").items():
        assert isinstance(rate, dict)
        assert rate["count"] == given[given["round"] == int(number)].right.sum()
    finished = answers[answers.status == "finished"]
    assert report["passes"] == finished.kind.isin(["pass", "refusal"]).sum()
    assert part(summary, "tokens")["prompt"] == answers.prompt_tokens.sum()
    assert part(summary, "tokens")["completion"] == answers.completion_tokens.sum()
    assert summary["turns"] == answers.attempts.sum()
    verdicts = answers[(answers.role == "judge") & answers.answer.notna()]
    assert part(report, "roles", "jud")["verdicts"] == len(verdicts)


def test_the_figures_of_the_summary_follow_from_the_table(asked: Lab, at_once: AtOnce) -> None:
    asked.write(experiment())
    assert at_once("small.yaml", "--quiet").returncode == 0

    answers = exported(at_once, asked)

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
    asked.write(experiment())
    assert at_once("small.yaml", "--limit", "5", "--quiet").returncode == 0

    process = at_once("export", "runs/small", "--to", "tables")

    answers = pandas.read_csv(asked.path / "tables" / "answers.csv")
    assert f"{len(answers)} rows of 5 of " in process.stdout
    assert sorted(set(answers["index"])) == [0, 1, 2, 3, 4]
    assert_sums_to(answers, asked.run_dir().summary)


def test_a_recorded_run_keeps_its_tokens_and_what_failed_discussions_said() -> None:
    run = ROOT / "tests" / "golden" / "commands" / "v2" / "runs" / "failed"
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
    asked.write(experiment(conversations=2, _grid={"sweep": {"discussion.max_rounds": [2, 3]}}))
    process = at_once("small.yaml", "--quiet")
    assert process.returncode == 0, process.stderr

    answers = exported(at_once, asked)

    assert list(answers.columns[:2]) == ["combination", "discussion.max_rounds"]
    assert list(answers.columns[2:]) == list(ANSWER_COLUMNS)
    for combination, rows in answers.groupby("combination"):
        assert_sums_to(rows, asked.run_dir(f"small/{combination}").summary)
        assert set(rows["discussion.max_rounds"]) == {rows["round"].max()}


def test_parquet_has_the_same_cells_each_of_its_type(asked: Lab, at_once: AtOnce) -> None:
    asked.write(experiment(conversations=3))
    assert at_once("small.yaml", "--quiet").returncode == 0
    exported(at_once, asked, "runs/small", "--format", "csv", "--format", "parquet", "--tables", "answers")

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


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--to", "tables", "--tables", "votes"), "no table 'votes'; allowed: agents, answers"),
        (("--to", "small.yaml"), "small.yaml is not a directory"),
        (("--to", "full"), "answers.csv is there already; name another directory"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    asked: Lab, at_once: AtOnce, flags: tuple[str, ...], told: str
) -> None:
    asked.write(experiment(conversations=1))
    assert at_once("small.yaml", "--quiet").returncode == 0
    (asked.path / "full").mkdir()
    (asked.path / "full" / "answers.csv").write_text("mine")

    process = at_once("export", "runs/small", *flags)

    assert (process.returncode, process.stdout) == (2, "")
    assert told in process.stderr
    assert not (asked.path / "tables").exists()
    assert (asked.path / "full" / "answers.csv").read_text() == "mine"


def test_a_transcript_that_was_changed_is_not_exported(asked: Lab, at_once: AtOnce) -> None:
    asked.write(experiment(conversations=2))
    assert at_once("small.yaml", "--quiet").returncode == 0
    path = next((asked.run_dir().path / "transcripts").glob("*.json"))
    path.write_text(path.read_text().replace('"biased"', '"counter"', 1))

    process = at_once("export", "runs/small", "--to", "tables")

    assert process.returncode == 2
    assert f"{path.name} is not what was acknowledged" in process.stderr
    assert not (asked.path / "tables" / "answers.csv").exists()


def test_the_page_has_every_column_in_its_order_and_words() -> None:
    page = " ".join((ROOT / "docs" / "discussion.md").read_text(encoding="utf-8").split())

    items = " ".join(f"- `{name}` ({column.kind}): {column.meaning}" for name, column in ANSWER_COLUMNS.items())

    assert items in page
