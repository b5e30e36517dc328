"""A grid of experiments from one file: run together, kept apart, gone on with, extended, laid out in one table."""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.environments.town_of_salem.testing import Game, TownOfSalem
from mac_runner.store import System, read_grid
from mac_runner.types import JsonObject, JsonValue, Task
from tests.cli.lab import ROOT, AtOnce, Lab, RunDir, differing, discussion, experiment, scripted

SEEDS: JsonObject = {"seed": [1, 2]}


def grid(sweep: JsonObject, **more: Any) -> JsonObject:
    """Games of `small` with this sweep; a swept seed is in the file at most once."""
    return experiment(**{"conversations": 1, "_grid": {"sweep": sweep}, **more})


def runs(directory: Path) -> dict[str, RunDir]:
    """The run directories of a grid by name, and that there is one for each combination."""
    record = read_grid(directory)
    assert record is not None
    return {entry.slug: RunDir(path=directory / entry.slug) for entry in record.entries}


def transcripts(directory: Path) -> dict[str, dict[str, bytes]]:
    return {slug: run.transcripts for slug, run in runs(directory).items()}


def table(directory: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((directory / "grid.csv").read_text(encoding="utf-8"))))


@contextmanager
def kept(directory: Path) -> Iterator[None]:
    """What the combinations of a grid have done stays as it is meanwhile."""
    before = {slug: run.hashes() for slug, run in runs(directory).items()}
    yield
    after = runs(directory)
    assert {slug: after[slug].hashes() for slug in before} == before


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which a grid of four was played to its end; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("grid"))
    lab.play(lab.write(grid({"game.lobby": ["classic-7", "classic-10"], **SEEDS})))
    return lab.path


@pytest.mark.ci
def test_every_combination_gets_a_run_directory_of_its_own_that_is_in_order(lab: Lab, run: RunDir) -> None:
    assert len(runs(run.path)) == 4
    for slug, one in runs(run.path).items():
        assert one.statuses == {"finished": 1}
        assert one.index[0]["task_id"] == f"small-{slug}-000000"
        assert one.summary["experiment_name"] == f"small-{slug}"
        lab.verified(one.path)
    assert run.summary["conversations"] == {"planned": 4, "finished": 4, "failed": 0}
    assert run.summary["combinations"] == {"asked": 4, "begun": 4, "complete": 4}
    lab.verified(run.path)


@pytest.mark.ci
def test_a_combination_has_the_games_that_it_has_alone(lab: Lab, run: RunDir, at_once: AtOnce) -> None:
    at_once(experiment("alone", conversations=1, seed=2, lobby="classic-10")).done()

    assert lab.run_dir("alone").turns == runs(run.path)["lobby-classic-10_seed-2"].turns


def test_table_is_the_same_in_csv_and_parquet_and_typed_in_the_latter(run: RunDir) -> None:
    rows, typed = table(run.path), pyarrow.parquet.read_table(run.path / "grid.parquet")

    assert [(row["game.lobby"], row["seed"], row["finished"]) for row in rows] == [
        (lobby, seed, "1") for lobby in ("classic-7", "classic-10") for seed in "12"
    ]
    assert typed.column_names == list(rows[0])
    assert typed.column("seed").to_pylist() == [1, 2, 1, 2]
    assert typed.column("wins.town.n").to_pylist() == [1, 1, 1, 1]
    types = {name: str(typed.schema.field(name).type) for name in ("seed", "game.lobby", "wins.town.rate")}
    assert types == {"seed": "int64", "game.lobby": "string", "wins.town.rate": "double"}


@pytest.mark.ci
def test_discussions_of_the_example_come_out_different_where_the_settings_matter(lab: Lab, at_once: AtOnce) -> None:
    at_once(ROOT / "experiments" / "bbq_moderated.yaml", "--limit", "12").done()
    rows = table(lab.run_dir("bbq_moderated").path)

    assert len(rows) == 4
    assert {row["accuracy.first.n"] for row in rows} == {"36"}
    assert len({row["consensus.rate"] for row in rows}) > 1
    lab.verified(lab.run_dir("bbq_moderated").path)


def test_finished_grid_is_left_as_it_is_byte_for_byte_and_its_table_is_printed(run: RunDir, at_once: AtOnce) -> None:
    with run.unchanged():
        at_once("small.yaml").done("4 of 4 combinations", told="all 4 combinations")
        printed = at_once("show runs/small --tables").done("classic-10", "over all combinations").stdout

    head = next(line for line in printed.splitlines() if line.startswith("lobby"))
    assert head.split() == ["lobby", "seed", "ended", "failed", "n", "wins.mafia", "%", "wins.neutral", "%",
                            "wins.town", "%"]  # fmt: skip


def test_grid_runs_only_what_is_new_and_says_which_part_came_when(run: RunDir, at_once: AtOnce) -> None:
    with kept(run.path):
        more = grid({"game.lobby": ["classic-7", "classic-10"], "seed": [1, 2, 3]})
        at_once(more).done()
        at_once("show runs/small --tables").done("came with session 2")

    assert [row["session"] for row in table(run.path)] == ["1", "1", "2", "1", "1", "2"]
    assert [len(part["combinations"]) for part in run.summary["parts"]] == [4, 2]


def test_a_combination_is_known_again_when_the_grid_varies_more_than_before(run: RunDir, at_once: AtOnce) -> None:
    key = "retry_config.max_retries"
    with kept(run.path):
        at_once(grid({key: [2, 1], "game.lobby": ["classic-7"], **SEEDS})).done()
        at_once("show runs/small --tables").done("2 combinations of earlier")

    assert len(runs(run.path)) == 6
    assert [(row[key], row["session"]) for row in table(run.path)] == [("2", "1"), ("2", "1"), ("1", "2"), ("1", "2")]
    record = read_grid(run.path)
    assert record is not None
    assert [entry.is_asked for entry in record.entries] == [True, True, False, False, True, True]


def test_a_grid_that_asks_for_less_runs_nothing_and_notes_it(run: RunDir, at_once: AtOnce) -> None:
    with kept(run.path):
        at_once(grid({"game.lobby": ["classic-7"], **SEEDS})).done()
        at_once("show runs/small --tables").done("2 combinations of earlier")
        at_once("small.yaml").done(told="nothing to run")

    assert len(table(run.path)) == 2


@pytest.mark.ci
def test_more_games_of_every_combination_are_played_beside_those_there_are(
    lab: Lab, run: RunDir, at_once: AtOnce
) -> None:
    before = transcripts(run.path)
    at_once("small.yaml --set conversation_config.conversations=2").done()

    for slug, one in runs(run.path).items():
        assert one.statuses == {"finished": 2}
        assert one.transcripts.items() >= before[slug].items()
        lab.verified(one.path)


def test_dry_run_prints_the_tree_and_touches_nothing(run: RunDir, at_once: AtOnce, snapshot: SnapshotAssertion) -> None:
    with run.unchanged():
        changed = grid({"game.lobby": ["classic-7", "classic-10"], "seed": [2, 3]})
        lines = at_once(changed, "--dry-run").stdout.splitlines()

    assert "\n".join(line for line in lines if "package" not in line) == snapshot


def test_dry_run_shows_a_grid_of_several_environments(at_once: AtOnce) -> None:
    policy = "model_definitions.m.scripted_config.policy"
    games: JsonObject = {"conversation_config.environment": "town_of_salem", "agent_definitions.0.role": "player"}
    talks: JsonObject = {"conversation_config.environment": "discussion", "agent_definitions.0.role": "participant"}
    rows: list[JsonValue] = [
        {**games, policy: "heuristic", "game": {"lobby": "classic-7"}, "discussion": None},
        {**talks, policy: "discussant", "game": None, "discussion": {"topics": ["Is it so?"]}},
    ]
    at_once(experiment(_grid={"zip": {"kinds": rows}}, models={"m": scripted()}), "--dry-run").done()


@pytest.mark.ci
def test_combinations_share_the_engine_of_an_equal_definition_and_no_other(lab: Lab, at_once: AtOnce) -> None:
    sweep: JsonObject = {"seed": [1, 2], "model_definitions.a.scripted_config.policy": ["heuristic", "random"]}
    at_once(grid(sweep, models={"a": scripted(), "b": scripted(capacity=3)}), "--quiet").done()
    models = lab.run_dir().summary["models"]

    names = sorted(models)
    assert [name.split("#")[0] for name in names] == ["a", "a", "b"]
    assert models["b"]["capacity"] == 3
    (start,) = lab.run_dir().events("EVENT_RUN_START")
    assert start["models"] == {name: 3 if name == "b" else 8 for name in names}


def talks() -> JsonObject:
    """A grid of three settings of four short discussions each."""
    seeds: JsonObject = {"sweep": {"seed": [1, 2, 3]}}
    return discussion(scripted("discussant", capacity=4), "small", conversations=4, max_rounds=3, _grid=seeds)


@pytest.mark.ci
def test_start_of_a_complete_grid_sweeps_what_a_kill_at_its_end_left_if_it_may_write(
    run: RunDir, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rows = transcripts(run.path), table(run.path)
    for place in ("", "transcripts", "summaries", "experiments", "journal/lobby-classic-7_seed-2"):
        (run.path / place / ".tmp-0badcafe-4242-000000000000").touch()
        with monkeypatch.context() as patch, kept(run.path):
            patch.setattr(System, "is_writable", lambda _system, _path: False)
            at_once("small.yaml").done(told="nothing to run")
        at_once("small.yaml").done()
        assert not list(run.path.rglob(".tmp-*"))
    assert (transcripts(run.path), table(run.path)) == (before, rows)


@pytest.mark.ci
def test_interrupted_grid_says_so_and_goes_on(lab: Lab) -> None:
    directory, file = lab.run_dir().path, lab.write(talks())
    lab.stop_held(1, file, by=signal.SIGINT).ends(Exit.INTERRUPTED, "0 of 3 combinations")

    assert len(table(directory)) == 3
    lab.play(file)
    assert all(run.statuses == {"finished": 4} for run in runs(directory).values())
    lab.verified(directory)


@pytest.mark.ci
def test_two_processes_do_not_run_one_grid(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talks())
    first = lab.start_held(1, file)
    at_once(file).ends(Exit.IN_USE, f"pid {first.pid}")
    first.kill()


def test_directory_of_a_run_is_none_of_a_grid_and_the_other_way_round(run: RunDir, at_once: AtOnce) -> None:
    at_once(experiment("plain", conversations=1), "--out", "runs/small").refused()
    at_once("plain.yaml --quiet").done()
    at_once("small.yaml --out runs/plain").refused("of one experiment")


def test_nothing_begins_where_it_would_hide_a_combination(run: RunDir, at_once: AtOnce) -> None:
    hidden = run.path / "lobby-classic-7_seed-1"
    at_once(experiment("plain", conversations=1), "--quiet").done()
    before = run.hashes()
    for command in ("plain.yaml --out", "plain.yaml --shard auto/2 --out", "plain.yaml --dry-run --out"):
        at_once(f"{command} {hidden}").refused("a combination of the grid", "outside of it")
    at_once(f"merge {hidden} runs/plain").refused("a combination of the grid")
    at_once(f"fork runs/plain 0 --turn '#1' --out {hidden}").refused("a combination of the grid")
    assert run.hashes() == before


def test_files_of_a_system_beside_the_experiments_of_a_grid_are_left_alone(run: RunDir, at_once: AtOnce) -> None:
    (run.path / "experiments/._lobby-classic-7_seed-1.yaml").write_bytes(b"\0")
    at_once("verify runs/small").done("the journal of the grid is whole")


def test_verify_goes_through_every_combination(run: RunDir, at_once: AtOnce) -> None:
    (transcript,) = runs(run.path)["lobby-classic-10_seed-1"].transcript_files()
    transcript.write_bytes(transcript.read_bytes() + b"\n")
    told = at_once("verify runs/small").ends(Exit.FAILURES).stdout

    assert told.count("attempted 1, acknowledged 1") == 4
    assert told.count("damaged 1") == 1


def test_without_pyarrow_the_table_is_csv_alone_and_says_how_to_get_more(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.reports.exports.find_spec", lambda name: None)
    at_once(grid({"seed": [1]})).done(told=("pip install ", "[parquet]"))

    assert not (lab.run_dir().path / "grid.parquet").exists()
    assert len(table(lab.run_dir().path)) == 1


@pytest.mark.ci
def test_combinations_are_compared_beside_a_summary_that_does_not_depend_on_it(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in lab.run_dir().path.iterdir() if path.is_file()}

    compared = at_once(grid({"game.flags.mafia_parity": [False, True]}, conversations=3)).done()
    at_once("show runs/small --tables paired").done("paired differences")
    with_stats = files()
    monkeypatch.setattr("mac_runner.compared.find_spec", lambda name: None)
    at_once("small.yaml").done(told=("pip install ", "[stats]"))

    assert "[stats]" not in compared.stderr
    at_once("show runs/small --tables paired").refused("no table is called 'paired'; there are: grid small")
    assert differing(with_stats, files()) == ["comparisons.json"]
    assert json.loads(files()["comparisons.json"])["paired"]["rows"] is None


@pytest.mark.ci
def test_comparisons_that_are_not_what_the_games_make_of_them_are_written_again(lab: Lab, at_once: AtOnce) -> None:
    path = lab.run_dir().path / "comparisons.json"
    at_once(grid({"game.flags.mafia_parity": [False, True], **SEEDS}, conversations=2)).done()
    lab.verified(path.parent)
    written = path.read_text()
    for found in (written.replace('"n": 4', '"n": 5'), written[:-20]):
        path.write_text(found)
        at_once("small.yaml").done()
        assert path.read_text() == written


def test_a_failed_conversation_of_any_combination_decides_the_exit_code(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = TownOfSalem.open

    def failing(self: TownOfSalem, task: Task) -> Game:
        if "seed-2" in task.task_id:
            raise RuntimeError("this one cannot be opened")
        return opened(self, task)

    monkeypatch.setattr(TownOfSalem, "open", failing)
    for _ in ("played", "again"):
        at_once(grid(SEEDS)).ends(Exit.FAILURES)

    assert [row["failed"] for row in table(lab.run_dir().path)] == ["0", "1"]


@pytest.mark.ci
def test_doctor_looks_at_each_definition_of_a_model_once(at_once: AtOnce) -> None:
    policy = "model_definitions.m.scripted_config.policy"
    told = at_once("doctor", grid({**SEEDS, policy: ["heuristic", "random"]})).stdout

    assert [line.split(maxsplit=1)[1] for line in told.splitlines() if line.startswith("model ")] == [
        *("m (scripted, heuristic)", "m (scripted, random)")
    ]


@pytest.mark.ci
def test_shard_of_a_grid_is_a_part_of_every_combination_and_its_combinations_are_merged(
    lab: Lab, at_once: AtOnce
) -> None:
    lab.write(grid(SEEDS, conversations=2))
    for shard in ("--shard 1/2", "--shard 2/2", ""):
        at_once(f"small.yaml --quiet {shard}").done()

    for slug, run in runs(lab.run_dir().path).items():
        first, second = (f"runs/small.shard-{number}-of-2/{slug}" for number in (1, 2))
        at_once(f"merge {slug} {first} {second} --quiet").done()
        assert lab.dir(slug).transcripts == run.transcripts
        told = {event["task"] for event in lab.dir(slug).events("EVENT_INFER_DONE")}
        assert told == {name.removesuffix(".json") for name in run.transcripts}
        lab.verified(lab.path / slug)


def test_pull_asks_for_one_combination_with_a_model_of_ollama(lab: Lab, at_once: AtOnce) -> None:
    ollama: JsonObject = {"backend": "ollama", "ollama_config": {"model": "qwen3:4b"}}
    at_once(grid({"model_definitions.m": [scripted(), ollama]}), "--pull", "--dry-run").done()
    at_once(grid({"model_definitions.m": [scripted(), scripted("random")]}), "--pull").refused("--pull: found only")

    assert not (lab.path / "runs").exists()
