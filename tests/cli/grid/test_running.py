"""A grid of experiments from one file: run together, kept apart, gone on with, extended, laid out in one table."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
from pathlib import Path
from random import Random

import pyarrow.parquet
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.cli.process import Exit
from mac_runner.environments.town_of_salem.testing import Game, TownOfSalem
from mac_runner.store import read_grid
from mac_runner.types import JsonObject, JsonValue, Task
from tests.cli.lab import ROOT, AtOnce, Lab, RunDir, discussion, experiment, scripted
from tests.patience import ended

SEEDS: JsonObject = {"seed": [1, 2]}


def grid(sweep: JsonObject, **more: JsonValue) -> JsonObject:
    """Games of `small` with this sweep; a swept seed is in the file at most once."""
    content = experiment(**{"conversations": 1, **more})  # type: ignore[arg-type]
    return {**content, "_grid": {"sweep": sweep}}


def runs(directory: Path) -> dict[str, RunDir]:
    """The run directories of a grid by name, and that there is one for each combination."""
    record = read_grid(directory)
    assert record is not None
    return {entry.slug: RunDir(path=directory / entry.slug) for entry in record.entries}


def transcripts(directory: Path) -> dict[str, dict[str, bytes]]:
    return {slug: run.transcripts for slug, run in runs(directory).items()}


def table(directory: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((directory / "grid.csv").read_text(encoding="utf-8"))))


def hashes(directory: Path) -> dict[str, tuple[int, str]]:
    return RunDir(path=directory).hashes()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory in which a grid of four was played to its end; not to be changed."""
    lab = Lab(path=tmp_path_factory.mktemp("grid"))
    lab.play(lab.write(grid({"game.lobby": ["classic-7", "classic-10"], **SEEDS})))
    return lab.path


@pytest.fixture
def finished(lab: Lab, played: Path) -> Lab:
    shutil.copytree(played, lab.path, dirs_exist_ok=True)
    return lab


@pytest.mark.ci
def test_every_combination_gets_a_run_directory_of_its_own_that_is_in_order(finished: Lab) -> None:
    directory = finished.run_dir().path

    assert len(runs(directory)) == 4
    for slug, run in runs(directory).items():
        assert run.statuses == {"finished": 1}
        assert run.index[0]["task_id"] == f"small-{slug}-000000"
        assert run.summary["experiment_name"] == f"small-{slug}"
        finished.verified(run.path)
    finished.verified(directory)


@pytest.mark.ci
def test_a_combination_has_the_games_that_it_has_alone(finished: Lab, at_once: AtOnce) -> None:
    alone = experiment("alone", conversations=1, seed=2, lobby="classic-10")
    assert at_once(finished.write(alone)).returncode == Exit.OK
    pooled = next(run for slug, run in runs(finished.run_dir().path).items() if slug == "lobby-classic-10_seed-2")
    (alone_turns,), (pooled_turns,) = (
        [json.loads(data)["turns"] for data in run.transcripts.values()] for run in (finished.run_dir("alone"), pooled)
    )

    assert pooled_turns == alone_turns


def test_table_is_the_same_in_csv_and_parquet_and_typed_in_the_latter(finished: Lab) -> None:
    directory = finished.run_dir().path
    rows, typed = table(directory), pyarrow.parquet.read_table(directory / "grid.parquet")

    assert [(row["game.lobby"], row["seed"], row["finished"]) for row in rows] == [
        ("classic-7", "1", "1"),
        ("classic-7", "2", "1"),
        ("classic-10", "1", "1"),
        ("classic-10", "2", "1"),
    ]
    assert typed.column_names == list(rows[0])
    assert typed.column("seed").to_pylist() == [1, 2, 1, 2]
    assert typed.column("wins.town.n").to_pylist() == [1, 1, 1, 1]
    assert {str(typed.schema.field(name).type) for name in ("seed", "game.lobby", "wins.town.rate")} == {
        "int64",
        "string",
        "double",
    }


@pytest.mark.ci
def test_discussions_of_the_example_come_out_different_where_the_settings_matter(lab: Lab, at_once: AtOnce) -> None:
    process = at_once(str(ROOT / "experiments" / "bbq_moderated.yaml"), "--limit", "12")
    rows = table(lab.run_dir("bbq_moderated").path)

    assert process.returncode == Exit.OK
    assert len(rows) == 4
    assert {row["accuracy.first.n"] for row in rows} == {"36"}
    assert len({row["consensus.rate"] for row in rows}) > 1
    lab.verified(lab.run_dir("bbq_moderated").path)


def test_table_is_printed_with_values_rates_and_engines(finished: Lab, at_once: AtOnce) -> None:
    printed = at_once("small.yaml")

    assert printed.returncode == Exit.OK
    head = next(line for line in printed.stdout.splitlines() if line.startswith("lobby"))
    assert head.split() == ["lobby", "seed", "ended", "failed", "n", "wins.mafia", "%", "wins.neutral", "%",
                            "wins.town", "%"]  # fmt: skip
    assert "classic-10" in printed.stdout
    assert "over all combinations" in printed.stdout


@pytest.mark.ci
def test_finished_grid_is_left_as_it_is_byte_for_byte(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    before = hashes(directory)
    again = at_once("small.yaml")

    assert again.returncode == Exit.OK
    assert "all 4 combinations" in again.stderr
    assert hashes(directory) == before


def test_grid_runs_only_what_is_new_and_says_which_part_came_when(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    before = {slug: run.hashes() for slug, run in runs(directory).items()}
    finished.write(grid({"game.lobby": ["classic-7", "classic-10"], "seed": [1, 2, 3]}), "small.yaml")
    more = at_once("small.yaml")

    assert more.returncode == Exit.OK
    assert {slug: runs(directory)[slug].hashes() for slug in before} == before
    assert [row["session"] for row in table(directory)] == ["1", "1", "2", "1", "1", "2"]
    assert "came with session 2" in more.stdout
    parts = RunDir(path=directory).summary["parts"]
    assert isinstance(parts, list)
    assert [len(part["combinations"]) for part in parts if isinstance(part, dict)] == [4, 2]  # type: ignore[arg-type]


def test_a_combination_is_known_again_when_the_grid_varies_more_than_before(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    before = {slug: run.hashes() for slug, run in runs(directory).items()}
    sweep: JsonObject = {"retry_config.max_retries": [2, 1], "game.lobby": ["classic-7"], **SEEDS}
    finished.write(grid(sweep), "small.yaml")
    more = at_once("small.yaml")

    assert more.returncode == Exit.OK
    assert {slug: runs(directory)[slug].hashes() for slug in before} == before
    assert len(runs(directory)) == 6
    rows = table(directory)
    assert [(row["retry_config.max_retries"], row["session"]) for row in rows] == [
        ("2", "1"),
        ("2", "1"),
        ("1", "2"),
        ("1", "2"),
    ]
    assert "2 combinations of earlier" in more.stdout
    record = read_grid(directory)
    assert record is not None
    assert [entry.is_asked for entry in record.entries] == [True, True, False, False, True, True]


def test_a_grid_that_asks_for_less_runs_nothing_and_notes_it(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    before = {slug: run.hashes() for slug, run in runs(directory).items()}
    finished.write(grid({"game.lobby": ["classic-7"], **SEEDS}), "small.yaml")
    less, again = at_once("small.yaml"), at_once("small.yaml")

    assert less.returncode == again.returncode == Exit.OK
    assert {slug: run.hashes() for slug, run in runs(directory).items()} == before
    assert "2 combinations of earlier" in less.stdout
    assert len(table(directory)) == 2
    assert "nothing to run" in again.stderr


@pytest.mark.ci
def test_more_games_of_every_combination_are_played_beside_those_there_are(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    before = transcripts(directory)
    more = at_once("small.yaml", "--set", "conversation_config.conversations=2")

    assert more.returncode == Exit.OK
    for slug, run in runs(directory).items():
        assert run.statuses == {"finished": 2}
        assert run.transcripts.items() >= before[slug].items()
        finished.verified(run.path)


def test_dry_run_prints_the_tree_and_touches_nothing(
    finished: Lab, at_once: AtOnce, snapshot: SnapshotAssertion
) -> None:
    directory = finished.run_dir().path
    before = hashes(directory)
    finished.write(grid({"game.lobby": ["classic-7", "classic-10"], "seed": [2, 3]}), "small.yaml")
    lines = at_once("small.yaml", "--dry-run").stdout.splitlines()

    assert "\n".join(line for line in lines if "package" not in line) == snapshot
    assert hashes(directory) == before


@pytest.mark.ci
def test_combinations_share_the_engine_of_an_equal_definition_and_no_other(lab: Lab, at_once: AtOnce) -> None:
    content = experiment(conversations=1, models={"a": scripted(), "b": scripted(capacity=3)})
    content["_grid"] = {
        "sweep": {"seed": [1, 2], "model_definitions.a.scripted_config.policy": ["heuristic", "random"]}
    }
    lab.write(content)
    assert at_once("small.yaml", "--quiet").returncode == Exit.OK
    models = lab.run_dir().summary["models"]
    assert isinstance(models, dict)

    names = sorted(models)
    assert [name.split("#")[0] for name in names] == ["a", "a", "b"]
    assert models["b"]["capacity"] == 3  # type: ignore[index,call-overload]
    (start,) = lab.run_dir().events("EVENT_RUN_START")
    assert start["models"] == {name: 3 if name == "b" else 8 for name in names}


def talks() -> JsonObject:
    """A grid of three settings of four short discussions each."""
    seeds: JsonObject = {"sweep": {"seed": [1, 2, 3]}}
    return discussion(scripted("discussant", capacity=4), "small", conversations=4, max_rounds=3, _grid=seeds)


@pytest.mark.ci
def test_grid_killed_at_many_moments_ends_like_one_that_was_not(lab: Lab) -> None:
    file = lab.write(talks())
    lab.play(file, "--out", "undisturbed")
    directory, chance = lab.run_dir().path, Random(3)

    for _ in range(3):
        process = lab.start_held(chance.randint(1, 20), file)
        process.send_signal(signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
    lab.play(file)

    assert transcripts(directory) == transcripts(lab.path / "undisturbed")
    assert (directory / "grid.csv").read_bytes() == (lab.path / "undisturbed" / "grid.csv").read_bytes()
    lab.verified(directory)
    assert not list(directory.rglob(".tmp-*"))


@pytest.mark.ci
def test_interrupted_grid_says_so_and_goes_on(lab: Lab) -> None:
    directory, file = lab.run_dir().path, lab.write(talks())
    process = lab.start_held(1, file)
    process.send_signal(signal.SIGINT)
    code, _, said = ended(process)

    assert code == Exit.INTERRUPTED
    assert "0 of 3 combinations" in said
    assert len(table(directory)) == 3
    lab.play(file)
    assert all(run.statuses == {"finished": 4} for run in runs(directory).values())
    lab.verified(directory)


@pytest.mark.ci
def test_two_processes_do_not_run_one_grid(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(talks())
    first = lab.start_held(1, file)
    second = at_once(file)
    first.send_signal(signal.SIGKILL)
    ended(first)

    assert second.returncode == Exit.IN_USE
    assert f"pid {first.pid}" in second.stderr


def test_directory_that_is_something_else_is_refused(finished: Lab, at_once: AtOnce) -> None:
    finished.write(experiment("plain", conversations=1))
    into_grid = at_once("plain.yaml", "--out", "runs/small")
    assert at_once("plain.yaml", "--quiet").returncode == Exit.OK
    into_run = at_once("small.yaml", "--out", "runs/plain")
    (finished.path / "other").mkdir()
    (finished.path / "other" / "file").touch()
    into_other = at_once("small.yaml", "--out", "other")

    assert [process.returncode for process in (into_grid, into_run, into_other)] == [Exit.BAD_INPUT] * 3
    assert "of one experiment" in into_run.stderr
    assert "holds 'file'" in into_other.stderr


def test_verbs_for_one_run_say_that_a_grid_is_many(finished: Lab, at_once: AtOnce) -> None:
    shown = at_once("show", "runs/small", "0")
    one = next(iter(runs(finished.run_dir().path)))

    assert shown.returncode == Exit.BAD_INPUT
    assert "runs/small is" in shown.stderr
    assert at_once("show", f"runs/small/{one}", "0").returncode == Exit.OK


def test_verify_goes_through_every_combination(finished: Lab, at_once: AtOnce) -> None:
    victim = list(runs(finished.run_dir().path).values())[2]
    (transcript,) = (victim.path / "transcripts").iterdir()
    transcript.write_bytes(transcript.read_bytes() + b"\n")
    told = at_once("verify", "runs/small")

    assert told.returncode == Exit.FAILURES
    assert told.stdout.count("attempted 1, acknowledged 1") == 4
    assert told.stdout.count("damaged 1") == 1


def test_table_of_an_earlier_version_is_compared_but_for_its_intervals(finished: Lab, at_once: AtOnce) -> None:
    directory = finished.run_dir().path
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps({**summary, "format": 3}))
    head, first, *others = csv.reader(io.StringIO((directory / "grid.csv").read_text(encoding="utf-8")))
    for ending, exit_code in ((".lo", Exit.OK), (".rate", Exit.FAILURES)):
        changed = ["0.4321" if name.endswith(ending) and cell else cell for name, cell in zip(head, first, strict=True)]
        with (directory / "grid.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, changed, *others])
        assert changed != first
        assert at_once("verify", "runs/small").returncode == exit_code, ending


def test_without_pyarrow_the_table_is_csv_alone_and_says_how_to_get_more(
    finished: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.reports.exports.find_spec", lambda name: None)
    finished.write(grid({"seed": [1]}, conversations=1), "other.yaml")
    process = at_once("other.yaml", "--out", "runs/other")

    assert process.returncode == Exit.OK
    assert "pip install 'mac_runner[parquet]'" in process.stderr
    assert not (finished.path / "runs" / "other" / "grid.parquet").exists()
    assert len(table(finished.path / "runs" / "other")) == 1


@pytest.mark.ci
def test_combinations_are_compared_beside_a_summary_that_does_not_depend_on_it(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = lab.run_dir().path
    lab.write(grid({"game.flags.mafia_parity": [False, True]}, conversations=3))
    compared = at_once("small.yaml")
    with_stats = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    monkeypatch.setattr("mac_runner.comparisons.find_spec", lambda name: None)
    judged = at_once("verify", "runs/small").stdout
    alone = at_once("small.yaml")
    without = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}

    assert "paired differences" in compared.stdout
    assert "mac_runner[stats]" not in compared.stderr
    assert "are not judged" in judged
    assert alone.returncode == Exit.OK
    assert "paired differences" not in alone.stdout
    assert "pip install 'mac_runner[stats]'" in alone.stderr
    assert {name for name in with_stats if with_stats[name] != without[name]} == {"comparisons.json"}
    assert json.loads(without["comparisons.json"])["differences"] is None


@pytest.mark.ci
def test_comparisons_that_are_not_what_the_games_make_of_them_are_found(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(grid({"game.flags.mafia_parity": [False, True], "seed": [1, 2]}, conversations=2))
    path = lab.run_dir().path / "comparisons.json"
    assert at_once(file).returncode == Exit.OK
    lab.verified(path.parent)
    written = path.read_text()
    for found in (written.replace('"deals": 4', '"deals": 5'), written[:-20]):
        path.write_text(found)
        process = at_once("verify", "runs/small")
        assert process.returncode == Exit.FAILURES
        assert "comparisons.json" in process.stdout
    assert at_once("small.yaml").returncode == Exit.OK
    assert path.read_text() == written


def test_summary_of_a_grid_adds_up_its_combinations(finished: Lab) -> None:
    summary = finished.run_dir().summary

    assert summary["conversations"] == {"planned": 4, "finished": 4, "failed": 0}
    assert summary["combinations"] == {"asked": 4, "begun": 4, "complete": 4}


def test_a_failed_conversation_of_any_combination_decides_the_exit_code(
    lab: Lab, at_once: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = TownOfSalem.open

    def failing(self: TownOfSalem, task: Task) -> Game:
        if "seed-2" in task.task_id:
            raise RuntimeError("this one cannot be opened")
        return opened(self, task)

    monkeypatch.setattr(TownOfSalem, "open", failing)
    lab.write(grid(SEEDS))
    ran, again = at_once("small.yaml"), at_once("small.yaml", "--quiet")

    assert (ran.returncode, again.returncode) == (Exit.FAILURES, Exit.FAILURES)
    assert [row["failed"] for row in table(lab.run_dir().path)] == ["0", "1"]


@pytest.mark.ci
def test_doctor_looks_at_each_definition_of_a_model_once(lab: Lab, at_once: AtOnce) -> None:
    policy = "model_definitions.m.scripted_config.policy"
    lab.write(grid({"seed": [1, 2], policy: ["heuristic", "random"]}))
    told = at_once("doctor", "small.yaml").stdout

    assert [line.split()[1:] for line in told.splitlines() if line.startswith("model ")] == [
        ["m", "(scripted,", "heuristic)"],
        ["m", "(scripted,", "random)"],
    ]


@pytest.mark.ci
def test_shard_of_a_grid_is_a_part_of_every_combination_and_its_combinations_are_merged(
    lab: Lab, at_once: AtOnce
) -> None:
    file = lab.write(grid(SEEDS, conversations=2))
    for shard in ("1/2", "2/2"):
        assert at_once(file, "--shard", shard, "--quiet").returncode == Exit.OK
    assert at_once(file, "--quiet").returncode == Exit.OK
    first, second, whole = (lab.path / "runs" / f"small{part}" for part in (".shard-1-of-2", ".shard-2-of-2", ""))

    for slug, run in runs(whole).items():
        sources = [str(part / slug) for part in (first, second)]
        assert at_once("merge", str(lab.path / slug), *sources, "--quiet").returncode == Exit.OK
        assert RunDir(path=lab.path / slug).transcripts == run.transcripts
        lab.verified(lab.path / slug)


def test_pull_asks_for_one_combination_with_a_model_of_ollama(lab: Lab, at_once: AtOnce) -> None:
    def sweep(*definitions: JsonValue) -> str:
        return lab.write(grid({"model_definitions.m": [*definitions]}))

    ollama: JsonObject = {"backend": "ollama", "ollama_config": {"model": "qwen3:4b"}}
    with_one = at_once(sweep(scripted(), ollama), "--pull", "--dry-run")
    with_none = at_once(sweep(scripted(), scripted("random")), "--pull")

    assert with_one.returncode == 0, with_one.stderr
    assert with_none.returncode == 2
    assert "--pull: found only" in with_none.stderr
    assert not (lab.path / "runs").exists()
