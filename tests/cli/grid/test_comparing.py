"""A grid of discussions that declares a baseline, from the command line: its table, its files, and what is refused."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner import compared as statistics
from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import ROOT, AtOnce, Lab, refusals

EXAMPLE = ROOT / "experiments" / "bbq_identity.yaml"


def shortened(**changes: JsonValue) -> JsonObject:
    """The example with half as many settings and a tenth of the discussions."""
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    example |= {"name": "small", "conversations": 20}
    example["discussion"]["questions"] = ["q.jsonl"]
    del example["_grid"]["broadcast"]["moderator"]
    example["report"] = {
        "baseline": {"identity_shown": False, "discussion.identity_reveal_config.presence_mode": "hidden"},
        "primary": "bias.final.ambiguous",
    }
    return {**example, **changes}


@pytest.fixture
def asked(asked: Lab) -> Lab:
    """A working directory with the example and its questions in it."""
    asked.write(shortened())
    return asked


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "grid.csv").open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def compared_in(directory: Path) -> Any:
    return json.loads((directory / "comparisons.json").read_text())["paired"]


@pytest.mark.ci
def test_example_ends_in_a_table_of_differences_with_the_primary_outcome_first(lab: Lab, at_once: AtOnce) -> None:
    ended = at_once(EXAMPLE, "--limit", "20", "--no-live").done("bias.final.ambiguous: largest difference from")
    assert len(ended.stdout.splitlines()) <= 14
    process = at_once("show runs/bbq_identity --tables differences").done()

    _, _, table = process.stdout.partition("differences from the baseline, presence_mode hidden, identity_shown false")
    assert table[table.index("─") :].splitlines()[1].startswith("bias.final.ambiguous *")
    assert ": bias.final.ambiguous (*)." in table
    found = compared_in(lab.run_dir("bbq_identity").path)
    figures = Counter(row["figure"] for row in found["rows"])
    assert (next(iter(figures)), len(figures), {*figures.values()}) == (found["primary"], 12, {7})


@pytest.mark.ci
def test_table_of_the_grid_has_the_differences_and_further_figures_as_columns(asked: Lab, at_once: AtOnce) -> None:
    at_once("small.yaml --quiet").done()
    directory = asked.run_dir().path
    rows, found = rows_of(directory), compared_in(directory)
    typed = pyarrow.parquet.read_table(directory / "grid.parquet")

    assert typed.column_names == list(rows[0])
    assert {str(typed.schema.field(f"followed.{part}").type) for part in ("diff", "p", "q", "odds_hi")} == {"double"}
    for each in found["rows"]:
        row = next(row for row in rows if [row["combination"]] == each["combinations"][0])
        assert float(row[f"{each['figure']}.diff"]) == each["difference"]
        assert float(row[f"{each['figure']}.q"]) == each["q"]
        assert row[f"{each['figure']}.diff_n"] == str(each["n"])
    (baseline,) = (row for row in rows if row["combination"] == found["baseline"])
    assert baseline["accuracy.final.diff"] == baseline["accuracy.final.p"] == ""
    for column in ("changes.rate", "followed.rate", "unscored.group.rate", "bias.group.ambiguous.Age.score"):
        assert all(row[column] for row in rows), column
    assert int(rows[0]["unscored.final.n"]) == 60


@pytest.mark.ci
def test_same_seed_gives_the_same_bytes_and_a_directory_names_the_baseline_as_well(asked: Lab, at_once: AtOnce) -> None:
    at_once("small.yaml --quiet").done()
    directory = asked.run_dir().path
    files = {name: (directory / name).read_bytes() for name in ("grid.csv", "grid.parquet", "comparisons.json")}
    slug = compared_in(directory)["baseline"]
    at_once("small.yaml --quiet --out runs/again --set", f"report.baseline={slug}").done()
    assert {name: (asked.path / "runs/again" / name).read_bytes() for name in files} == files

    # It was declared before anything was played; a combination alone is an experiment like any other.
    assert yaml.safe_load((directory / "grid.yaml").read_text())["report"] == shortened()["report"]
    assert yaml.safe_load((directory / "experiments" / f"{slug}.yaml").read_text())["report"]["baseline"] is None

    # Another baseline is another table of the same discussions, without playing any of them again.
    other = next(row["combination"] for row in rows_of(directory) if row["combination"] != slug)
    process = at_once("small.yaml --set", f"report.baseline={other}", "--set", "report.primary=consensus")
    assert (process.returncode, process.stderr.splitlines()[1:]) == (Exit.OK, [])
    assert compared_in(directory)["baseline"] == other
    assert compared_in(directory)["rows"][0]["figure"] == "consensus"
    at_once("verify runs/small").done()


@pytest.mark.ci
@pytest.mark.parametrize("damaged", [None, b"", b'{"format": 1, "libraries": null}'])
def test_comparisons_that_were_damaged_are_written_again_with_the_table(
    asked: Lab, at_once: AtOnce, damaged: bytes | None
) -> None:
    at_once("small.yaml --quiet --limit 8").done()
    directory = asked.run_dir().path
    whole = {name: (directory / name).read_bytes() for name in ("grid.csv", "comparisons.json")}
    for name in whole:
        (directory / name).unlink() if damaged is None else (directory / name).write_bytes(damaged)

    at_once("small.yaml --quiet --limit 8").done()

    assert {name: (directory / name).read_bytes() for name in whole} == whole


@pytest.mark.ci
def test_without_scipy_there_is_a_hint_and_without_a_baseline_a_note(
    asked: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "has_stats", lambda: False)
    at_once("small.yaml --limit 4 --no-live").done(told=("pip install ", "[stats]"))
    assert compared_in(asked.run_dir().path)["rows"] is None
    assert not any(name.endswith(".diff") for name in rows_of(asked.run_dir().path)[0])
    at_once("verify runs/small").done()

    at_once("small.yaml --limit 4 --no-live --set report=null --out runs/other").done()
    at_once("show runs/other --tables").done("as `report.baseline`")
    assert not (asked.path / "runs" / "other" / "comparisons.json").exists()
    at_once("verify runs/other").done()


def test_bad_declaration_ends_with_code_2_before_anything_runs(
    asked: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    declared: list[tuple[JsonObject, JsonObject]] = [
        ({"baseline": {"identity_show": True}}, {}),
        ({"baseline": {"identity_shown": 1}}, {}),
        ({"baseline": "hidden"}, {}),
        ({"baseline": {"identity_shown": True}}, {}),
        ({"primary": "consensus"}, {}),
        ({"baseline": {}, "primary": "x"}, {}),
        ({"baseline": {"identity_shown": True}}, {"_grid": None}),
    ]
    told = ""
    for report, more in declared:
        asked.write(shortened(report=report, **more))
        ran, dry = refusals(at_once, ["small.yaml"]), refusals(at_once, ["small.yaml --dry-run"])
        assert ran.splitlines()[1:] == dry.splitlines()[1:]
        told += ran
    asked.write(shortened())
    told += refusals(at_once, ["small.yaml --dry-run --set report.primary=bias.final.ambigous"])
    games = (ROOT / "experiments" / "tos_grid.yaml", "--dry-run")
    told += at_once(*games, "--set", "report.baseline={game.flags.mafia_parity: true}").refused().stderr

    assert told == snapshot
    assert not (asked.path / "runs").exists()
